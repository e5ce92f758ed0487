"""`redrive operation list|show|cancel|resume`: changes of many items."""

from __future__ import annotations

import click

from redrive.cli import bulk
from redrive.cli.connection import opened
from redrive.cli.ids import operation_id
from redrive.cli.options import StoreCommand, as_json
from redrive.cli.printing import ago, print_json, printable, say, short, table, with_short_ids
from redrive.model.operation import Operation
from redrive.model.shown import moment
from redrive.server.views import view_of

_COLUMNS = {"id": "<", "verb": "<", "status": "<", "changed": ">", "of": ">", "when": ">", "by": "~", "note": "~"}


@click.group()
def operation() -> None:
    """Changes of many items: redrives, archives, purges… They live in the store, and go on after a crash."""


@operation.command("list", cls=StoreCommand)
@click.option("--unfinished", is_flag=True, help="Only those that have not ended.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Most to print.")
def list_(unfinished: bool, limit: int) -> None:
    """Operations of the last 30 days, the newest first."""
    with opened() as broker:
        found = broker.operations(unfinished=unfinished, limit=limit)
    if as_json():
        print_json(found)
    elif not found:
        say(
            "There is no operation that has not ended." if unfinished else "There was no operation in the last 30 days."
        )
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
    """One operation: how far it got, what it left out and why, who started it."""
    with opened() as broker:
        found = broker.operation(operation_id(broker, id))
    bulk.print_operation(found, in_full=True)
    if not as_json():
        rate = f", at most {found.rate:,g} per second" if found.rate else ""
        note = f": {with_short_ids(found.note)}" if found.note else ""
        say(printable(f"  started {moment(found.created_at)} by {found.actor}{rate}{note}"))
        say(printable(f"  items: {with_short_ids(_where(found))}"))


def _where(found: Operation) -> str:
    chosen = view_of(found.where)
    if ids := chosen.get("ids"):
        chosen["ids"] = f"{len(ids)} ids"
    return ", ".join(f"{name} {value}" for name, value in chosen.items())


@operation.command("cancel", cls=StoreCommand)
@click.argument("id")
def cancel(id: str) -> None:
    """End an operation. What it has changed stays changed; `redrive undo` takes that back."""
    with opened() as broker:
        bulk.print_operation(broker.cancel_operation(operation_id(broker, id)))


@operation.command("resume", cls=StoreCommand)
@click.argument("id")
@click.option("--anyway", is_flag=True, help="Go on without waiting for its canaries any longer.")
@click.option("--wait", default=bulk.FOREVER, metavar="TIME", help="Return after this time at the latest.")
@click.option("--no-wait", is_flag=True, help="Let it go on where a worker or server has the store open, and return.")
def resume(id: str, anyway: bool, wait: str, no_wait: bool) -> None:
    """Go on with an operation, here and now, until it has ended."""
    bulk.check_wait(no_wait)
    with opened() as broker:
        resumed = broker.resume_operation(operation_id(broker, id), anyway=anyway)
        bulk.go_on(broker, resumed, wait=wait, no_wait=no_wait)
