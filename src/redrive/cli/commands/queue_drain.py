"""`redrive queue drain|prune`: drop waiting items, and remove completed and archived ones permanently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from redrive.cli import error_output
from redrive.cli.bulk_change import confirm, confirm_options, progress_bar
from redrive.cli.commands.shell_completion import complete_queue
from redrive.cli.common_options import as_json, command, command_line
from redrive.cli.output import print_json, print_line, print_note
from redrive.cli.store_target import open_target
from redrive.model.duration import parse_duration
from redrive.model.item import Status
from redrive.model.text import format_counts, format_instant, pluralize, to_rfc3339

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

OVER = (Status.COMPLETED, Status.ARCHIVED)
"""The statuses that `prune` removes by default."""


@command("drain")
@click.argument("queue", shell_complete=complete_queue)
@click.option("--all", "everything", is_flag=True, help="Also drop failed items, which wait for their next retry.")
@confirm_options(final=False)
def drain(queue: str, everything: bool, dry_run: bool, yes: int | str | None) -> None:
    """Drop all waiting items of a queue: the pending ones. They can be restored for keep_dropped of the queue.

    Leased, dead and completed items are not dropped. In a dead queue, the waiting items are its dead letters.
    """
    statuses = [Status.PENDING, Status.FAILED] if everything else [Status.PENDING]
    with open_target() as broker:
        stats = broker.stats(queue)
        if letters := stats.dead_letters - stats.dead - stats.moving:
            look = command_line(f"dead list -q {queue}")
            print_note(f"{pluralize(letters, 'item')} in {queue} are dead letters: {look} shows them")
        _clear(broker, f"empty {queue} and drop", queue, statuses, "0s", dry_run, yes, final=False)


@command("prune")
@click.argument("queue", required=False, shell_complete=complete_queue)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([Status.COMPLETED.value, Status.ARCHIVED.value, Status.DEAD.value]),
    help="Remove items in this status; can be repeated. Default: completed and archived.",
)
@click.option("--older-than", default="0s", show_default=True, metavar="TIME",
              help="Only items that were completed, or died, at least this long ago.")  # fmt: skip
@confirm_options(final=True)
def prune(queue: str | None, statuses: tuple[str, ...], older_than: str, dry_run: bool, yes: int | None) -> None:
    """Remove completed and archived items, also dropped ones, of one QUEUE or of all. This cannot be undone.

    Retention does the same automatically in queues with keep_completed, keep_archived, keep_dropped or keep_dead; this
    command does it now.

    \b
    redrive queue prune orders --older-than 7d
    redrive queue prune --status dead --older-than 90d --dry-run
    """
    parse_duration(older_than, "--older-than")
    with open_target() as broker:
        _clear(broker, "remove", queue, statuses or OVER, older_than, dry_run, yes, final=True)


def _clear(
    broker: Broker,
    what: str,
    queue: str | None,
    statuses: Sequence[str],
    older_than: str,
    dry_run: bool,
    yes: int | str | None,
    *,
    final: bool,
) -> None:
    """Count the items, ask for confirmation, and drop or remove them. Items leased since then are skipped."""
    found = broker.clear_queue(queue, statuses, final=final, older_than=older_than, dry_run=True)
    counts, total, word = found.matched, found.total, "removed" if final else "dropped"
    told = format_counts({status: count for status, count in counts.items() if count})
    if dry_run or not total:
        if as_json():
            print_json({"dry_run": dry_run, "matched": total, "by_status": counts, word: 0, "skipped": {}})
        else:
            print_line(
                f"{pluralize(total, 'item')} would be {word}: {told}" if total else f"There is nothing to be {word}."
            )
        click.get_current_context().exit(error_output.OK if dry_run else error_output.NOTHING)
    confirm(what, total, yes, final=final)
    with progress_bar(what, total) as shown:
        done = broker.clear_queue(queue, statuses, final=final, older_than=older_than, progress=shown.at)
    until = done.undo_until
    if as_json():
        more = {} if final else {"undo_until": None if until is None else to_rfc3339(until)}
        count = {word: done.cleared, "skipped": done.skipped, **more}
        print_json({"dry_run": False, "matched": total, "by_status": counts, **count})
    else:
        print_line(f"{pluralize(done.cleared, 'item')} {word}: {told}")
        if done.skipped:
            print_line(f"  skipped: {format_counts(done.skipped)}")
        if until is not None:
            restore = command_line(f"dead restore -q {queue} --where dropped=true")
            print_note(f"  until {format_instant(until)}, this restores all dropped items: {restore}")
    click.get_current_context().exit(error_output.exit_of_change(done.cleared, sum(done.skipped.values())))
