"""`redrive operation list|show|pause|resume|rate|cancel`, and `redrive undo`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from redrive.broker.flows.operations import REVERSE
from redrive.cli import bulk_change, error_output, selection
from redrive.cli.bulk_change import confirm, confirm_options
from redrive.cli.commands.queue_items import AT_ONCE, change
from redrive.cli.common_options import StoreCommand, as_json, command, command_line
from redrive.cli.output import ago, escape_line, print_json, print_line, short, table, with_short_ids
from redrive.cli.selection import operation_id
from redrive.cli.store_target import open_target
from redrive.errors import AccessError, InvalidInput, ItemNotFound, NotFound, OperationNotFound
from redrive.model.item import HistoryEntry
from redrive.model.operation import Operation
from redrive.model.text import format_instant
from redrive.wire.json_views import view_of

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

_COLUMNS = {"id": "<", "verb": "<", "status": "<", "changed": ">", "of": ">", "when": ">", "by": "~", "note": "~"}


@click.group()
def operation() -> None:
    """Bulk operations on items: redrives, archives, purges… They are stored, and continue after a crash."""


@operation.command("list", cls=StoreCommand)
@click.option("--unfinished", is_flag=True, help="Only operations that have not ended.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number to print.")
def list_(unfinished: bool, limit: int) -> None:
    """List the operations of the last 30 days, the newest first."""
    with open_target() as broker:
        found = broker.list_operations(unfinished=unfinished, limit=limit)
    if as_json():
        print_json(found)
    elif not found:
        print_line("There is no unfinished operation." if unfinished else "There was no operation in the last 30 days.")
    else:
        table(_COLUMNS, map(_row, found), coloured="status", least=("by", "of", "when", "note"))


def _row(each: Operation) -> tuple[object, ...]:
    of = "" if each.expected is None else f"{each.expected:,}"
    note = with_short_ids(each.problem or each.note or "")
    return (
        short(each.id),
        each.verb,
        each.status.value,
        f"{each.changed:,}",
        of,
        ago(each.created_at),
        each.actor,
        note,
    )


@operation.command("show", cls=StoreCommand)
@click.argument("id")
def show(id: str) -> None:
    """Show one operation: its progress, the items that it skipped and why, and who started it."""
    with open_target() as broker:
        found = broker.get_operation(operation_id(broker, id))
    bulk_change.print_operation(found, in_full=True)
    if not as_json():
        rate = f", at most {found.rate:,g} per second" if found.rate else ""
        note = f": {with_short_ids(found.note)}" if found.note else ""
        print_line(escape_line(f"  started {format_instant(found.created_at)} by {found.actor}{rate}{note}"))
        print_line(escape_line(f"  items: {with_short_ids(_where(found))}"))


def _where(found: Operation) -> str:
    chosen = view_of(found.where)
    if ids := chosen.get("ids"):
        chosen["ids"] = f"{len(ids)} ids"
    return ", ".join(f"{name} {value}" for name, value in chosen.items())


@operation.command("pause", cls=StoreCommand)
@click.argument("id")
def pause(id: str) -> None:
    """Pause an operation until `redrive operation resume`."""
    with open_target() as broker:
        bulk_change.print_operation(broker.pause_operation(operation_id(broker, id)))


@operation.command("rate", cls=StoreCommand)
@click.argument("id")
@click.argument("rate", metavar="N/s", callback=bulk_change.parse_rate)
def rate(id: str, rate: float) -> None:
    """Limit the rate of an operation from now on, as in 50/s, 3000/m or 100/h."""
    with open_target() as broker:
        bulk_change.print_operation(broker.set_operation_rate(operation_id(broker, id), rate))


@operation.command("cancel", cls=StoreCommand)
@click.argument("id")
def cancel(id: str) -> None:
    """Cancel an operation. Items that it has changed stay changed; `redrive undo` undoes that."""
    with open_target() as broker:
        bulk_change.print_operation(broker.cancel_operation(operation_id(broker, id)))


@operation.command("resume", cls=StoreCommand)
@click.argument("id")
@click.option("--skip-canaries", is_flag=True, help="Continue without waiting for its canaries.")
@click.option(
    "--wait", default=bulk_change.FOREVER, metavar="TIME", help="Wait at most this time for the operation to end."
)
@click.option("--no-wait", is_flag=True, help="Return immediately; a worker or server on this store continues it.")
def resume(id: str, skip_canaries: bool, wait: str, no_wait: bool) -> None:
    """Resume an operation, and execute it in this process until it has ended."""
    bulk_change.check_wait(no_wait)
    with open_target() as broker:
        resumed = broker.resume_operation(operation_id(broker, id), skip_canaries=skip_canaries)
        bulk_change.continue_operation(broker, resumed, wait=wait, no_wait=no_wait)


class NothingToUndo(NotFound):
    """An id that neither an operation nor an item has."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(
            f"neither an operation nor an item has the id '{id}'\n"
            f"  {command_line('operation list')} shows all operations"
        )


@command("undo", short_help="Undo a drop, a redrive, or a whole operation.")
@click.argument("typed", metavar="ID", nargs=-1, required=True)
@confirm_options(final=False)
def undo(typed: tuple[str, ...], dry_run: bool, yes: int | str | None) -> None:
    """Undo an operation, or the drop or the redrive of single items.

    For an operation you confirm the number of items, as when it was started.

    A dropped item returns to its earlier status, and the output says who dropped it and when. After a redrive or retry,
    an item that was not leased since is dead again. A restore undoes an archive, an archive a restore. A purge is
    final.

    \b
    redrive undo 3c51d2aa       the operation that `redrive operation list` shows
    redrive undo 7f3a90c1       the drop or the redrive of an item
    """
    with open_target() as broker:
        operation = _operation(broker, typed[0]) if len(typed) == 1 else None
        if operation is not None:
            _undo_operation(broker, operation, dry_run, yes)
            return
        try:
            whole = selection.item_ids(broker, typed)
        except ItemNotFound as error:
            raise NothingToUndo(error.id) from None
        if dry_run:
            bulk_change.print_plan(broker.plan_operation("undo", ids=whole, status="any"))
        else:
            change(broker, whole, "undo", broker.undo, yes=yes, past=_drops(broker, whole))


def _drops(broker: Broker, ids: Sequence[str]) -> dict[str, HistoryEntry]:
    """Return who dropped each of the dropped items, and when; empty for a token that may not read items."""
    found: dict[str, HistoryEntry] = {}
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        try:
            items = broker.get_many(some)
        except AccessError:
            return {}
        found |= {id: item.dropped for id, item in zip(some, items, strict=True) if item and item.dropped}
    return found


def _operation(broker: Broker, typed: str) -> Operation | None:
    """Return the operation with that id. None if no operation has it: then it is the id of an item."""
    try:
        return broker.get_operation(selection.operation_id(broker, typed))
    except OperationNotFound:
        return None


def _undo_operation(broker: Broker, done: Operation, dry_run: bool, yes: int | str | None) -> None:
    id = short(done.id)
    if not done.ended:
        raise InvalidInput(
            f"operation {id} is {done.status}; cancel it first: {command_line(f'operation cancel {id}')}"
        )
    if done.verb not in REVERSE:
        raise InvalidInput(f"{done.verb} cannot be undone; {', '.join(sorted(REVERSE))} can")
    verb, status = REVERSE[done.verb]
    where: dict[str, Any] = {"operation": done.id, "status": status}
    if dry_run:
        bulk_change.print_plan(broker.plan_operation(verb, **where))
        return
    count = broker.count(**where)
    if not count:
        nothing = "Nothing is left to undo; nothing was done."
        print_json({"matched": 0, "operation": None}) if as_json() else print_line(nothing)
        click.get_current_context().exit(error_output.NOTHING)
    confirm("undo the change of", count, yes, final=False)
    bulk_change.continue_operation(broker, broker.undo_operation(done.id))
