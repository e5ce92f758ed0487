"""`redrive queue retry|reschedule|fail|done|drop`: manual changes of single items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import bulk_change, error_output
from redrive.cli.bulk_change import confirm, confirm_options
from redrive.cli.common_options import as_json, command, command_line
from redrive.cli.output import print_json, print_line, short, to_json_value
from redrive.cli.selection import any_given, condition_options, conditions, item_ids, parse_instant
from redrive.cli.store_target import finish_moves, open_target
from redrive.errors import RedriveError
from redrive.model.declaration import texts_of
from redrive.model.item import HistoryEntry, Settled, Status
from redrive.model.options import ItemOptions
from redrive.model.text import format_instant

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

AT_ONCE = 1_000
"""The number of items in one call."""
NO_DELAY = "0"
TEXTS = texts_of(ItemOptions)
ids_argument = click.argument("ids", nargs=-1, required=True, metavar="ID...")
force_option = click.option("--force", is_flag=True, help="Also if a worker has the item: its lease is revoked.")


def change(
    broker: Broker,
    typed: Sequence[str],
    verb: str,
    act: Callable[[list[str]], list[Any]],
    *,
    yes: int | str | None = None,
    past: Mapping[str, HistoryEntry] | None = None,
) -> None:
    """Change the items that were typed, print each outcome, and exit with the code of the failures.

    No confirmation is asked for, but a number given with `yes` must be correct. `past`: the drops that are undone.
    """
    told = past or {}
    whole = item_ids(broker, typed)
    if yes is not None:
        confirm(verb, len(whole), yes, final=False)
    results: list[Settled | RedriveError] = []
    for start in range(0, len(whole), AT_ONCE):
        results += act(whole[start : start + AT_ONCE])
    if any(isinstance(result, Settled) and result.status is Status.MOVING for result in results):
        finish_moves(broker)
    refused = [result for result in results if isinstance(result, RedriveError)]
    if len(whole) == 1 and refused:
        raise refused[0]
    if as_json():
        print_json([_result(id, result, told.get(id)) for id, result in zip(whole, results, strict=True)])
    else:
        for id, result in zip(whole, results, strict=True):
            said = _text(verb, result, told.get(id))
            print_line(f"{short(id)}  {said}", style="red" if isinstance(result, RedriveError) else None)
    if refused:
        click.get_current_context().exit(error_output.exit_for(refused, len(whole)))


def _result(id: str, result: Settled | RedriveError, past: HistoryEntry | None) -> dict[str, Any]:
    if isinstance(result, RedriveError):
        return {"typed_id": id, "error": {"code": result.code, "message": error_output.error_text(result)}}
    undone = {} if past is None else {"undone": to_json_value(past)}
    return {"typed_id": id, **to_json_value(result), **undone}


def _text(verb: str, result: Settled | RedriveError, past: HistoryEntry | None) -> str:
    if isinstance(result, RedriveError):
        return error_output.one_of_several(result)
    if result.status is None:
        return "completed, and not kept" if verb == "done" else "removed permanently"
    now = "" if result.source_id is None else f", its id is {short(result.id)} now"
    due = "" if result.status is not Status.FAILED else ", to be retried"
    if verb == "reschedule" and result.ready_at is not None:
        due = f", may be leased from {format_instant(result.ready_at)}"
    if result.undo_until is not None:
        return f"dropped; until {format_instant(result.undo_until)}: {command_line(f'undo {short(result.id)}')}"
    if past is not None:
        due += f"; {past.actor} dropped it at {format_instant(past.at)}"
    return f"{verb}: {result.status.value} in {result.queue}{now}{due}"


@command("retry")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@condition_options()
@click.option("--all-dead", is_flag=True, help="All dead letters; with -q, of that queue.")
@click.option("--status", type=click.Choice([Status.DEAD.value, Status.FAILED.value]),
              help="All items in this status; failed ones wait for their next retry.")  # fmt: skip
@force_option
@bulk_change.operation_options
@confirm_options(final=False)
def retry(
    ids: tuple[str, ...], all_dead: bool, status: str | None, force: bool, yes: int | str | None, **options: Any
) -> None:
    """Retry dead or failed items in their current queue, with their counters at 0.

    Name them by ID, or select many with options. An item that is neither dead nor failed is an error.

    \b
    redrive queue retry 7f3a90c1
    redrive queue retry --all-dead -q emails
    redrive queue retry --status failed --where error_class=network
    """
    many = all_dead or status is not None or any_given()
    if bool(ids) == many:
        raise click.UsageError("Give ids, or choose items with --all-dead, --status or conditions: one of the two")
    if all_dead and status == Status.FAILED:
        raise click.UsageError("--all-dead and --status failed contradict each other; omit one")
    at_once = ids and bulk_change.is_plain(options["dry_run"], options) and not options["note"]
    if force and not at_once:
        raise click.UsageError(
            "--force is for items named by ID, and goes with no option of an operation, such as --rate or --dry-run"
        )
    with open_target() as broker:
        if at_once:
            change(broker, ids, "retry", lambda some: broker.retry(some, force=force), yes=yes)
            return
        own = {} if status is None else {"status": status}
        chosen = {"ids": item_ids(broker, ids), "status": "any"} if ids else conditions(broker, **own)
        where = {"status": Status.DEAD, **chosen}
        bulk_change.run(broker, "retry", where, named=bool(ids), yes=yes, **options)


@command("fail")
@ids_argument
@click.option(
    "--error", "-e", default="failed manually", show_default=True, metavar="TEXT", help="The error to record."
)
@force_option
def fail(ids: tuple[str, ...], error: str, force: bool) -> None:
    """Record a failure of items that no worker has: they are retried or dead, as the settings of their queue say."""
    with open_target() as broker:
        change(broker, ids, "fail", lambda some: broker.fail_items(some, error, force=force))


@command("done")
@ids_argument
@force_option
def done(ids: tuple[str, ...], force: bool) -> None:
    """Mark items as completed without a worker."""
    with open_target() as broker:
        change(broker, ids, "done", lambda some: broker.complete_items(some, force=force))


@command("reschedule")
@ids_argument
@click.option("--delay", default=NO_DELAY, metavar="TIME", help=TEXTS["delay"])
@click.option("--at", metavar="INSTANT", callback=parse_instant, help=TEXTS["enqueue_at"])
@click.option("--note", metavar="TEXT", help=bulk_change.TEXTS["note"])
def reschedule(ids: tuple[str, ...], delay: str, at: datetime | None, note: str | None) -> None:
    """Change the time from which waiting items may be leased: now, unless --delay or --at is given.

    For pending, scheduled and failed items. Failed ones are retried at that time; their counters are kept.

    \b
    redrive queue reschedule 7f3a90c1 --note 'the gateway is back'
    redrive queue reschedule 7f3a90c1 --at 2026-07-01T03:00
    """
    if at is not None and delay != NO_DELAY:
        raise click.UsageError("--delay and --at were given; omit one")
    with open_target() as broker:
        change(broker, ids, "reschedule", lambda some: broker.reschedule(some, delay=delay, enqueue_at=at, note=note))


@command("drop")
@ids_argument
@force_option
def drop(ids: tuple[str, ...], force: bool) -> None:
    """Drop items of any status that are not wanted: they go to the archive, and the audit records them.

    `redrive undo` restores them, until they are removed after keep_dropped of their queue. To remove them permanently
    now: redrive dead purge. To drop all waiting items of a queue: redrive queue drain.
    """
    with open_target() as broker:
        change(broker, ids, "drop", lambda some: broker.drop(some, force=force))
