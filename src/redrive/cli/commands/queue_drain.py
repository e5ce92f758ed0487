"""`redrive queue drain|prune`: drop what waits, and remove what has ended for good."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from redrive.broker.flows import clearance
from redrive.cli import error_output
from redrive.cli.bulk_change import confirm, confirm_options, progress_bar
from redrive.cli.commands.shell_completion import complete_queue
from redrive.cli.common_options import as_json, command, command_line
from redrive.cli.output import now, print_json, print_line, print_note
from redrive.cli.store_target import open_target
from redrive.errors import RedriveError
from redrive.model.duration import parse_duration
from redrive.model.item import Item, Settled, Status
from redrive.model.text import format_counts, format_instant, pluralize, to_rfc3339

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

AT_ONCE = 1_000
OVER = (Status.COMPLETED, Status.ARCHIVED)
"""What is over unless somebody says otherwise."""


@command("drain")
@click.argument("queue", shell_complete=complete_queue)
@click.option("--all", "everything", is_flag=True, help="Also the failed ones, which wait for their next try.")
@confirm_options(final=False)
def drain(queue: str, everything: bool, dry_run: bool, yes: int | str | None) -> None:
    """Drop everything that waits in a queue: its pending items. They can be restored for keep_dropped of the queue.

    What a worker has, what is dead, and what is completed stays. In a dead queue, dead letters are what waits.
    """
    statuses = [Status.PENDING, Status.FAILED] if everything else [Status.PENDING]
    with open_target() as broker:
        stats = broker.stats(queue)
        if letters := stats.dead_letters - stats.dead - stats.moving:
            look = command_line(f"dead list -q {queue}")
            print_note(f"{pluralize(letters, 'item')} in {queue} are dead letters: {look} shows them")
        counts = {status.value: broker.count(queue=queue, status=status.value) for status in statuses}
        _remove(broker, f"empty {queue} and drop", {"queue": queue}, counts, None, dry_run, yes, final=False)


@command("prune")
@click.argument("queue", required=False, shell_complete=complete_queue)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([Status.COMPLETED.value, Status.ARCHIVED.value, Status.DEAD.value]),
    help="What to remove; may be given more than once. Not given: completed and archived.",
)
@click.option("--older-than", default="0s", show_default=True, metavar="TIME",
              help="Only what was completed, or died, so long ago.")  # fmt: skip
@confirm_options(final=True)
def prune(queue: str | None, statuses: tuple[str, ...], older_than: str, dry_run: bool, yes: int | None) -> None:
    """Remove what is over: completed and archived items, dropped ones too, of one QUEUE or all. This is final.

    It is what retention does by itself where a queue has keep_completed, keep_archived, keep_dropped or keep_dead; this
    does it now.

    \b
    redrive queue prune orders --older-than 7d
    redrive queue prune --status dead --older-than 90d --dry-run
    """
    parse_duration(older_than, "--older-than")
    where = {} if queue is None else {"queue": queue}
    with open_target() as broker:
        counts = {status: _count(broker, status, where, older_than) for status in statuses or tuple(map(str, OVER))}
        _remove(broker, "remove", where, counts, older_than, dry_run, yes, final=True)


def _count(broker: Broker, status: str, where: dict[str, Any], older_than: str) -> int:
    if status != Status.COMPLETED or not parse_duration(older_than):
        return broker.count(status=status, **where, **_died_before(status, older_than))
    return sum(len(page) for page in _pages(broker, status, where, older_than))


def _died_before(status: str, older_than: str | None) -> dict[str, Any]:
    """The condition on the time. Completed items are looked at one by one: a filter goes by when they were put."""
    timed = older_than is not None and status in (Status.DEAD, Status.ARCHIVED) and parse_duration(older_than)
    return {"until": older_than} if timed else {}


def _pages(broker: Broker, status: str, where: dict[str, Any], older_than: str | None) -> Any:
    """Items that are meant, a page at a time."""
    conditions = {"status": status, **where, **_died_before(status, older_than)}
    before = None if older_than is None else now() - parse_duration(older_than)
    cursor = None
    while True:
        page = broker.find(order="oldest", limit=AT_ONCE, cursor=cursor, redacted=False, **conditions)
        yield [item for item in page.items if before is None or _is_over(item, before)]
        cursor = page.cursor
        if cursor is None:
            return


def _is_over(item: Item, before: int) -> bool:
    return item.status is not Status.COMPLETED or (item.ended_at or item.put_at) <= before


def _remove(
    broker: Broker,
    what: str,
    where: dict[str, Any],
    counts: dict[str, int],
    older_than: str | None,
    dry_run: bool,
    yes: int | str | None,
    *,
    final: bool,
) -> None:
    """Count, ask back, and drop or remove page by page. What a worker took meanwhile stays, and is counted."""
    total, word = sum(counts.values()), "removed" if final else "dropped"
    told = format_counts({status: count for status, count in counts.items() if count})
    if dry_run or not total:
        if as_json():
            print_json({"dry_run": dry_run, "matched": total, "by_status": counts, word: 0, "skipped": {}})
        else:
            print_line(f"{pluralize(total, 'item')} would be {word}: {told}" if total else f"Nothing is to be {word}.")
        click.get_current_context().exit(error_output.OK if dry_run else error_output.NOTHING)
    confirm(what, total, yes, final=final)
    changed: list[Settled] = []
    skipped = Counter[str]()
    with progress_bar(what, total) as shown:
        for status in counts:
            for page in _pages(broker, status, where, older_than):
                flow = clearance.clear_items(
                    broker.core, [item.id for item in page], None, is_archived=status == Status.ARCHIVED, final=final
                )
                results = broker.run_flow(flow)
                skipped += Counter(error.code for error in results if isinstance(error, RedriveError))
                changed += [result for result in results if isinstance(result, Settled)]
                shown.at(len(changed))
    until = max((each.undo_until for each in changed if each.undo_until is not None), default=None)
    if as_json():
        more = {} if final else {"undo_until": None if until is None else to_rfc3339(until)}
        count = {word: len(changed), "skipped": skipped, **more}
        print_json({"dry_run": False, "matched": total, "by_status": counts, **count})
    else:
        print_line(f"{pluralize(len(changed), 'item')} {word}: {told}")
        if skipped:
            print_line(f"  left out: {format_counts(skipped)}")
        if until is not None:
            restore = command_line(f"dead restore -q {where['queue']} --where dropped=true")
            print_note(f"  until {format_instant(until)}, all that was dropped there comes back by: {restore}")
    click.get_current_context().exit(error_output.exit_of_change(len(changed), skipped.total()))
