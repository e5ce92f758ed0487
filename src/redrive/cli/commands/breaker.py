"""`redrive breaker list|open|close`: list, open and close circuit breakers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive.cli import selection
from redrive.cli.commands.shell_completion import complete_queue
from redrive.cli.common_options import StoreCommand, as_json, command_line
from redrive.cli.output import ago, print_json, print_line, print_note, table
from redrive.cli.store_target import open_target
from redrive.errors import NotFound
from redrive.model.breaker import FINGERPRINT, QUEUE, BreakerState, BreakerStatus, fingerprint_kind, rule_key
from redrive.model.classify import ErrorClass
from redrive.model.text import pluralize

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

_F = TypeVar("_F", bound=Callable[..., Any])
_COLUMNS = {"queue": "~", "breaker": "<", "state": "<", "opened": ">", "waiting": ">", "probe": ">", "why": "~"}
_FINGERPRINT_DIGITS = 16
_SHOWN_DIGITS = 8


@click.group()
def breaker() -> None:
    """Circuit breakers: list, open, close.

    A breaker opens after too many failures, as the setting `breakers` of its queue says. Then items that would fail in
    the same way wait, until a probe succeeds.

    \b
    redrive breaker list                               open breakers, why, and how many items wait
    redrive breaker open payments --for 10m            give no leases for ten minutes, then try one item
    redrive breaker close payments --class network     release its waiting items without a probe
    """


def _kind_options(function: _F) -> _F:
    classes = [each.value for each in ErrorClass]
    text = "For failures of this class: items that fail with it wait, all others pass."
    decorated: Any = click.option("--class", "error_class", type=click.Choice(classes), metavar="CLASS", help=text)(
        click.option(
            "--fingerprint",
            metavar="GROUP",
            help="For failures with this cause, as `redrive dead groups` shows it: "
            "its first digits, or all 16 if no dead letter has it.",
        )(function)
    )
    result: _F = decorated
    return result


_note_option = click.option("--note", metavar="TEXT", help="The reason, for the audit.")
_queue_argument = click.argument("queue", shell_complete=complete_queue)


@breaker.command("list", cls=StoreCommand)
@click.argument("queue", required=False, shell_complete=complete_queue)
def list_(queue: str | None) -> None:
    """List breakers that are not closed, of all queues or of one QUEUE.

    WAITING is the number of items that wait for a breaker, PROBE the time of its next probe.
    """
    with open_target() as broker:
        found = broker.list_breakers(queue)
    if as_json():
        print_json(found)
        return
    if not found:
        print_line("No circuit breaker is open." if queue is None else f"No circuit breaker of {queue} is open.")
        return
    table(_COLUMNS, map(_row, found), coloured="state", least=("opened", "queue"))
    print_note(f"\nClose one without waiting for its probe: {close_command(found[0])}")


def _row(each: BreakerStatus) -> tuple[object, ...]:
    probe = {BreakerState.OPEN: ago(each.next_probe_at), BreakerState.HALF_OPEN: "now"}.get(each.state, "")
    return (
        each.queue,
        short_kind(each.kind),
        each.state.value,
        ago(each.opened_at),
        f"{each.waiting:,}",
        probe,
        each.reason,
    )


def short_kind(kind: str) -> str:
    """Return the kind of a breaker for printing: a fingerprint is cut to the digits that groups are printed with."""
    return kind[: len(fingerprint_kind("")) + _SHOWN_DIGITS] if rule_key(kind) == FINGERPRINT else kind


def close_command(each: BreakerStatus) -> str:
    """Return the command that closes a breaker."""
    match rule_key(each.kind):
        case "queue":
            option = ""
        case "fingerprint":
            option = f" --fingerprint {short_kind(each.kind).removeprefix(fingerprint_kind(''))}"
        case error_class:
            option = f" --class {error_class}"
    return command_line(f"breaker close {each.queue}{option}")


@breaker.command("open", cls=StoreCommand)
@_queue_argument
@_kind_options
@click.option(
    "--for", "open_for", metavar="TIME", help="Time until the first probe. Default: the rule's open_for, or 30s."
)
@_note_option
def open_(queue: str, error_class: str | None, fingerprint: str | None, open_for: str | None, note: str | None) -> None:
    """Open a breaker: of the whole QUEUE, of a --class of errors, or of one --fingerprint.

    After the given time it lets a probe through, and closes if that succeeds. A breaker that is already open is not
    changed. To stop a queue until you resume it: `redrive queue pause`.
    """
    with open_target() as broker:
        kind = _kind(error_class, fingerprint, lambda typed: _group(broker, typed))
        was_open = kind in [each.kind for each in broker.list_breakers(queue) if each.state is not BreakerState.CLOSING]
        opened = broker.open_breaker(queue, kind, open_for=open_for, note=note)
    if as_json():
        print_json(opened)
        return
    waits = "nothing waits for it" if not opened.waiting else f"{pluralize(opened.waiting, 'item')} waiting"
    state = f"{opened.state.value.replace('_', '-')}{' already, and not changed' if was_open else ''}"
    print_line(f"breaker {short_kind(kind)} of {queue} is {state}: {waits}, next probe {ago(opened.next_probe_at)}")
    print_note(f"{'To open it for another time, close it first' if was_open else 'Close it'}: {close_command(opened)}")


@breaker.command("close", cls=StoreCommand)
@_queue_argument
@_kind_options
@_note_option
def close(queue: str, error_class: str | None, fingerprint: str | None, note: str | None) -> None:
    """Close a breaker without waiting for its probe, and release the items that wait for it."""
    with open_target() as broker:
        kind = _kind(error_class, fingerprint, lambda typed: _open_fingerprint(broker, queue, typed))
        released = broker.close_breaker(queue, kind, note=note)
        others = len(broker.list_breakers(queue))
    if as_json():
        print_json({"queue": queue, "kind": kind, "released": released})
        return
    rest = "" if kind == QUEUE else f", {pluralize(released, 'item')} released"
    print_line(f"breaker {short_kind(kind)} of {queue} is closed{rest}")
    if others:
        print_note(
            f"{pluralize(others, 'other breaker')} of {queue} not closed: {command_line(f'breaker list {queue}')}"
        )


def _kind(error_class: str | None, fingerprint: str | None, whole: Callable[[str], str]) -> str:
    if error_class is not None and fingerprint is not None:
        raise click.UsageError("--class and --fingerprint were both given; a breaker is of one kind: omit one")
    return error_class or (QUEUE if fingerprint is None else fingerprint_kind(whole(fingerprint)))


def _group(broker: Broker, typed: str) -> str:
    """Return the fingerprint of the group with this prefix. A complete one need not have any dead letters."""
    return typed if len(typed) == _FINGERPRINT_DIGITS else selection.fingerprint(broker, typed)


class _NotOpen(NotFound):
    def __init__(self, queue: str, fingerprint: str) -> None:
        super().__init__(
            f"no open breaker of queue '{queue}' is for a fingerprint with the first digits '{fingerprint}'\n"
            f"  {command_line(f'breaker list {queue}')} shows those that are open"
        )


def _open_fingerprint(broker: Broker, queue: str, typed: str) -> str:
    """Return the fingerprint of the one open breaker of a queue with this prefix."""
    prefix = fingerprint_kind("")
    kinds = [each.kind for each in broker.list_breakers(queue) if each.kind.startswith(prefix + typed)]
    if not kinds:
        raise _NotOpen(queue, typed)
    if len(kinds) > 1:
        raise selection.Ambiguous("fingerprint", typed, [kind.removeprefix(prefix) for kind in kinds])
    return kinds[0].removeprefix(prefix)
