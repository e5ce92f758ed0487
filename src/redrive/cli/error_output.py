"""Errors in a terminal (the problem, then the command to type next), and exit codes for scripts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click
import msgspec

from redrive import errors
from redrive.cli.common_options import as_json, command_line
from redrive.errors import RedriveError
from redrive.model.limits import DEFAULT_NAMESPACE
from redrive.model.text import pluralize, visible, visible_json
from redrive.wire.error_codec import error_body

OK = 0
FAILED = 1
"""Another error; `doctor` found a problem; not all of several items were changed."""
USAGE = 2
"""The command line itself is wrong; nothing was done."""
INVALID = 3
NOT_FOUND = 4
REFUSED = 5
UNAVAILABLE = 6
"""The store or server cannot be used now."""
UNAUTHORIZED = 7
UNKNOWN = 8
"""The outcome is unknown: check whether the change happened before you repeat it."""
BUSY = 9
"""The same command can succeed later: a full queue, an item that a worker has, a store that is overloaded."""
NOT_CONFIRMED = 10
"""The number of items was not confirmed, or the confirmed number differs from the actual one."""
STOPPED = 11
"""An operation stopped, was cancelled, or did not end in the given time."""
NOTHING = 12
"""No item was changed."""
INTERRUPTED = 130
"""Ctrl-C."""

EXITS: dict[str, int] = {
    "error": FAILED,
    "invalid_input": INVALID,
    "invalid_name": INVALID,
    "invalid_setting": INVALID,
    "invalid_duration": INVALID,
    "invalid_payload": INVALID,
    "payload_too_large": INVALID,
    "invalid_arguments": INVALID,
    "invalid_config": INVALID,
    "untrusted_file": INVALID,
    "request_too_large": INVALID,
    "not_found": NOT_FOUND,
    "queue_not_found": NOT_FOUND,
    "item_not_found": NOT_FOUND,
    "operation_not_found": NOT_FOUND,
    "breaker_not_open": NOT_FOUND,
    "result_unavailable": NOT_FOUND,
    "result_not_kept": NOT_FOUND,
    "refused": REFUSED,
    "queue_exists": REFUSED,
    "queue_in_use": REFUSED,
    "queue_paused": REFUSED,
    "item_held": REFUSED,
    "wrong_status": REFUSED,
    "idempotency_conflict": REFUSED,
    "lease_lost": REFUSED,
    "wrong_queue": REFUSED,
    "operation_ended": REFUSED,
    "task_failed": REFUSED,
    "confirm_mismatch": NOT_CONFIRMED,
    "item_active": BUSY,
    "item_moving": BUSY,
    "queue_full": BUSY,
    "queue_gated": BUSY,
    "overloaded": BUSY,
    "result_timeout": BUSY,
    "store_error": UNAVAILABLE,
    "store_unavailable": UNAVAILABLE,
    "store_busy": UNAVAILABLE,
    "store_read_only": UNAVAILABLE,
    "disk_full": UNAVAILABLE,
    "not_a_store": UNAVAILABLE,
    "schema_too_new": UNAVAILABLE,
    "schema_too_old": UNAVAILABLE,
    "engine_unsupported": UNAVAILABLE,
    "store_failed": UNAVAILABLE,
    "store_damaged": UNAVAILABLE,
    "closed": UNAVAILABLE,
    "access_error": UNAUTHORIZED,
    "unauthorized": UNAUTHORIZED,
    "forbidden": UNAUTHORIZED,
    "outcome_unknown": UNKNOWN,
}
"""The exit code of each error code. A test checks that no error is missing."""

MEANINGS: dict[int, str] = {
    OK: "success",
    FAILED: "another error; `doctor` found a problem; not all of several items were changed",
    USAGE: "the command line is wrong: an unknown option, a missing argument",
    INVALID: "the input is invalid: a name, a setting, a payload",
    NOT_FOUND: "there is no such queue, item or operation",
    REFUSED: "refused in the current state: the item is in another status, the queue exists with other settings",
    UNAVAILABLE: "the store or server cannot be reached or used",
    UNAUTHORIZED: "the token is missing or invalid, or does not have the right to do this",
    UNKNOWN: "the connection broke during the change: check whether it happened",
    BUSY: "not now; the same command can succeed later: the queue is full, a worker has the item",
    NOT_CONFIRMED: "the number of items was not confirmed, or the confirmed number was wrong",
    STOPPED: "an operation stopped because of a problem, was cancelled, or has not ended in the given time",
    NOTHING: "nothing was changed: no item matched, or all that matched were skipped",
    INTERRUPTED: "Ctrl-C",
}
"""The meaning of each exit code, for the documentation."""


def exit_of_change(changed: int, skipped: int) -> int:
    """Return the exit code of a command that changes all items that match."""
    if not changed:
        return NOTHING
    return FAILED if skipped else OK


def exit_code(code: str) -> int:
    """Return the exit code for an error code."""
    return EXITS.get(code, FAILED)


class NotConfirmed(errors.ConfirmationMismatch):
    """The number of items was not confirmed, or the confirmed number is another one."""

    def __init__(self, what: str, confirmed: int | None, actual: int, text: str) -> None:
        super().__init__(what, confirmed, actual)
        self.args = (text,)


def print_error(error: RedriveError) -> None:
    """Print an error to stderr: a line or two, or an object with `-o json`."""
    if as_json():
        body = error_body(error)
        _print_json({"code": body.code, "message": error_text(error), "details": body.details})
    else:
        _print(f"redrive: {error_text(error)}")


def show_usage(error: click.ClickException) -> None:
    """Print a mistake in the command line itself."""
    if as_json():
        body = {"code": "usage", "message": error.format_message(), "details": {}}
        _print_json(body)
    else:
        error.show()


def _print_json(value: dict[str, Any]) -> None:
    click.echo(visible_json(msgspec.json.encode(value).decode()), err=True)


def _print(text: str) -> None:
    click.echo(visible(text, "\n"), err=True)


def error_text(error: RedriveError) -> str:
    """Return the text of an error, with commands instead of calls in Python."""
    write = next((_TEXTS[kind] for kind in type(error).__mro__ if kind in _TEXTS), str)
    return write(error)


def forget_output() -> None:
    """Discard the output that is not written yet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _queue_not_found(error: Any) -> str:
    where = "" if error.namespace == DEFAULT_NAMESPACE else f" in namespace '{error.namespace}'"
    meant = "".join(getattr(error, "__notes__", ()))  # a similar name, if the caller could read the queues
    return (
        f"queue '{error.queue}' does not exist{where}{meant}\n"
        f"  {command_line('queue list')} shows all queues; {command_line(f'queue create {error.queue}')} creates it"
    )


def _operation_not_found(error: Any) -> str:
    return f"operation '{error.id}' does not exist\n  {command_line('operation list')} shows all operations"


def _breaker_not_open(error: Any) -> str:
    return (
        f"breaker '{error.kind}' of queue '{error.queue}' is not open\n"
        f"  {command_line(f'breaker list {error.queue}')} shows those that are open"
    )


def _operation_ended(error: Any) -> str:
    return str(error).replace(error.id, error.id[:8])


def _queue_exists(error: Any) -> str:
    return (
        f"queue '{error.queue}' exists already with other settings\n"
        f"  {command_line(f'queue show {error.queue}')} shows them; "
        f"{command_line(f'queue update {error.queue}')} changes them"
    )


def _item_active(error: Any) -> str:
    held = f"worker '{error.worker}'" if error.worker else "a worker"
    take = "with --force" if _takes("--force") else f"first: {command_line(f'queue retry {error.id[:8]} --force')}"
    return f"item {error.id[:8]} is being worked on by {held}\n  wait for it, or revoke the lease of the worker {take}"


def _takes(option: str) -> bool:
    """Return whether the current command has that option."""
    context = click.get_current_context(silent=True)
    return context is not None and any(option in parameter.opts for parameter in context.command.params)


def _wrong_status(error: Any) -> str:
    return str(error).replace(error.id, error.id[:8])


def _store_unavailable(error: Any) -> str:
    if error.store.startswith(("http://", "https://")):
        return (
            f"server {error.store} does not answer: {error.problem}\n"
            f"  is it running, and is the address right? On the host of its store, redrive serve starts one"
        )
    problem, _, in_python = error.problem.partition(", or leave create_if_missing=False out")
    if not in_python:
        return str(error)
    return (
        f"there is no store yet: {error.store}: {problem.partition(';')[0]}\n"
        f"  name another one with --url, or create one here: {command_line('queue create NAME')}"
    )


def _unauthorized(error: Any) -> str:
    return (
        f"{error.problem.partition(', in the header')[0]}\n"
        f"  give it in the variable REDRIVE_TOKEN, or with --token. An admin creates one: redrive token create NAME "
        f"--role ROLE"
    )


def _invalid_config(error: Any) -> str:
    if len(error.problems) == 1:
        return str(error)
    listed = "\n".join(f"  {line}" for line in str(error).splitlines())
    return f"{error.file} has {pluralize(len(error.problems), 'mistake')}\n{listed}"


_TEXTS: dict[type[RedriveError], Callable[[Any], str]] = {
    errors.QueueNotFound: _queue_not_found,
    errors.OperationNotFound: _operation_not_found,
    errors.BreakerNotOpen: _breaker_not_open,
    errors.OperationEnded: _operation_ended,
    errors.QueueExists: _queue_exists,
    errors.ItemActive: _item_active,
    errors.WrongStatus: _wrong_status,
    errors.StoreUnavailable: _store_unavailable,
    errors.Unauthorized: _unauthorized,
    errors.InvalidConfig: _invalid_config,
}


def one_of_several(error: RedriveError) -> str:
    """Return an error as a cell of a table: its first line."""
    return error_text(error).partition("\n")[0]


def exit_for(failures: list[RedriveError], total: int) -> int:
    """Return the exit code of a command on several items: that of the error if all failed with the same exit code."""
    codes = {exit_code(error.code) for error in failures}
    if not codes:
        return OK
    return codes.pop() if len(failures) == total and len(codes) == 1 else FAILED
