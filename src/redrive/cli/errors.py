"""Errors as a person reads them in a terminal: what is wrong, and what to type next."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click
import msgspec

from redrive import errors
from redrive.cli import exits
from redrive.cli.options import as_json, to_type
from redrive.errors import RedriveError
from redrive.model.address import DEFAULT_NAMESPACE
from redrive.model.shown import several
from redrive.model.text import visible, visible_json
from redrive.wire.errors import body_of


class NotConfirmed(errors.ConfirmMismatch):
    """Nobody said how many items are meant, and there is nobody to ask."""

    def __init__(self, what: str, confirmed: int | None, actual: int, text: str) -> None:
        super().__init__(what, confirmed, actual)
        self.args = (text,)


def show(error: RedriveError) -> None:
    """Print it to stderr: a line or two, or an object with `-o json`."""
    if as_json():
        body = body_of(error)
        _print_json({"code": body.code, "message": text_of(error), "details": body.details})
    else:
        _print(f"redrive: {text_of(error)}")


def show_usage(error: click.ClickException) -> None:
    """A mistake in the command line itself."""
    if as_json():
        body = {"code": "usage", "message": error.format_message(), "details": {}}
        _print_json(body)
    else:
        error.show()


def _print_json(value: dict[str, Any]) -> None:
    click.echo(visible_json(msgspec.json.encode(value).decode()), err=True)


def _print(text: str) -> None:
    click.echo(visible(text, "\n"), err=True)


def text_of(error: RedriveError) -> str:
    """The text of an error, with commands in place of calls in Python."""
    write = next((_TEXTS[kind] for kind in type(error).__mro__ if kind in _TEXTS), str)
    return write(error)


def forget_output() -> None:
    """Send what is still to be written nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _queue_not_found(error: Any) -> str:
    where = "" if error.namespace == DEFAULT_NAMESPACE else f" in namespace '{error.namespace}'"
    meant = "".join(getattr(error, "__notes__", ()))  # a name that is near, where whoever raised it could look
    return (
        f"queue '{error.queue}' does not exist{where}{meant}\n"
        f"  {to_type('queue list')} shows all there are; {to_type(f'queue create {error.queue}')} makes it"
    )


def _operation_not_found(error: Any) -> str:
    return f"operation '{error.id}' does not exist\n  {to_type('operation list')} shows those that are kept"


def _operation_ended(error: Any) -> str:
    return str(error).replace(error.id, error.id[:8])


def _queue_exists(error: Any) -> str:
    return (
        f"queue '{error.queue}' exists already with other settings\n"
        f"  {to_type(f'queue show {error.queue}')} shows them; {to_type(f'queue update {error.queue}')} changes them"
    )


def _item_active(error: Any) -> str:
    held = f"worker '{error.worker}'" if error.worker else "a worker"
    take = "with --force" if _takes("--force") else f"first: {to_type(f'queue retry {error.id[:8]} --force')}"
    return f"item {error.id[:8]} is being worked on by {held}\n  wait for it, or take it away from the worker {take}"


def _takes(option: str) -> bool:
    """Whether the command that runs has that option."""
    context = click.get_current_context(silent=True)
    return context is not None and any(option in parameter.opts for parameter in context.command.params)


def _wrong_status(error: Any) -> str:
    return str(error).replace(error.id, error.id[:8])


def _store_unavailable(error: Any) -> str:
    if error.store.startswith(("http://", "https://")):
        return (
            f"server {error.store} does not answer: {error.problem}\n"
            f"  is it running, and is that its address? On the host of its store, redrive serve starts one"
        )
    problem, _, in_python = error.problem.partition(", or leave create=False out")
    if not in_python:
        return str(error)
    return (
        f"there is no store yet: {error.store}: {problem.partition(';')[0]}\n"
        f"  name another one with --url, or begin one here: {to_type('queue create NAME')}"
    )


def _unauthorized(error: Any) -> str:
    return (
        f"{error.problem.partition(', in the header')[0]}\n"
        f"  give it in the variable REDRIVE_TOKEN, or with --token. An admin makes one: redrive token create NAME "
        f"--role ROLE"
    )


def _invalid_file(error: Any) -> str:
    if len(error.problems) == 1:
        return str(error)
    listed = "\n".join(f"  {line}" for line in str(error).splitlines())
    return f"{error.file} has {several(len(error.problems), 'mistake')}\n{listed}"


_TEXTS: dict[type[RedriveError], Callable[[Any], str]] = {
    errors.QueueNotFound: _queue_not_found,
    errors.OperationNotFound: _operation_not_found,
    errors.OperationEnded: _operation_ended,
    errors.QueueExists: _queue_exists,
    errors.ItemActive: _item_active,
    errors.WrongStatus: _wrong_status,
    errors.StoreUnavailable: _store_unavailable,
    errors.Unauthorized: _unauthorized,
    errors.InvalidFile: _invalid_file,
}


def one_of_several(error: RedriveError) -> str:
    """An error as a cell of a table: its first line."""
    return text_of(error).partition("\n")[0]


def exit_for(failures: list[RedriveError], total: int) -> int:
    """What a command on several items exits with: the code of the error where all failed alike."""
    codes = {exits.exit_code(error.code) for error in failures}
    if not codes:
        return exits.WELL
    return codes.pop() if len(failures) == total and len(codes) == 1 else exits.FAILED
