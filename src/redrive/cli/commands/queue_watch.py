"""`redrive queue watch|logs`: live counts, and the feed of events."""

from __future__ import annotations

import sys
from time import sleep
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.commands.shell_completion import complete_queue
from redrive.cli.common_options import as_json, command
from redrive.cli.output import ID_DIGITS, coloured, escape_line, print_json, print_json_line, print_line, short
from redrive.cli.selection import item_id
from redrive.cli.store_target import open_target
from redrive.model.duration import SECOND, parse_duration
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.queue import QueueStats
from redrive.model.text import format_instant

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

COUNTED = ("pending", "active", "failed", "dead_letters", "completed", "archived")
_TOTALS = tuple(name for name in QueueStats.__struct_fields__ if name.endswith("_total"))


@command("watch")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queue)
@click.option("--every", default="1s", show_default=True, metavar="TIME", help="Interval between polls.")
@click.option("--times", type=click.IntRange(1), metavar="N", help="End after N polls; default: run until Ctrl-C.")
def watch(queues: tuple[str, ...], every: str, times: int | None) -> None:
    """Show live counts of these queues, or of all, until Ctrl-C.

    In a terminal it shows a live table. Elsewhere, and with -o json, it prints a line of JSON for each queue at the
    start, and another each time its counts change.
    """
    pause = parse_duration(every, "--every") / SECOND
    with open_target() as broker:
        for name in queues:
            broker.get_queue(name)
        if sys.stdout.isatty() and not as_json():
            _draw(broker, queues, pause, times)
        else:
            _write(broker, queues, pause, times)


def _write(broker: Broker, queues: tuple[str, ...], pause: float, times: int | None) -> None:
    before: dict[str, dict[str, Any]] = {}
    looks = 0
    while True:
        for stats in broker.list_stats(queues or None):
            counts = {name: getattr(stats, name) for name in (*COUNTED, "moving", *_TOTALS)}
            if before.get(stats.queue) != counts:
                before[stats.queue] = counts
                print_json_line(stats)
        looks += 1
        if looks == times:
            return
        sleep(pause)


def _draw(broker: Broker, queues: tuple[str, ...], pause: float, times: int | None) -> None:
    from rich.live import Live
    from rich.table import Table

    def drawing(now: tuple[QueueStats, ...], before: dict[str, QueueStats]) -> Table:
        drawn = Table(box=None, pad_edge=False)
        drawn.add_column("queue")
        for name in (*COUNTED, "put/s", "done/s"):
            drawn.add_column(name.replace("_letters", ""), justify="right")
        for stats in now:
            rates = [_rate(stats, before.get(stats.queue), total) for total in ("put_total", "completed_total")]
            drawn.add_row(stats.queue, *(f"{getattr(stats, name):,}" for name in COUNTED), *rates)
        return drawn

    before: dict[str, QueueStats] = {}
    looks = 0
    with Live(auto_refresh=False) as live:
        while True:
            now = broker.list_stats(queues or None)
            live.update(drawing(now, before), refresh=True)
            before = {stats.queue: stats for stats in now}
            looks += 1
            if looks == times:
                return
            sleep(pause)


def _rate(now: QueueStats, before: QueueStats | None, total: str) -> str:
    if before is None or now.at <= before.at:
        return ""
    return f"{(getattr(now, total) - getattr(before, total)) / (now.at - before.at) * SECOND:,.0f}"


@command("logs")
@click.argument("item", required=False)
@click.option("--queue", "-q", metavar="QUEUE", shell_complete=complete_queue, help="Only this queue.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(map(str, FeedKind))), metavar="KIND",
              help="Only events of this kind, such as dead or redriven; can be repeated.")  # fmt: skip
@click.option("--follow", "-f", is_flag=True, help="Then wait for new events and print them, until Ctrl-C.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of past events."
)
@click.option("--wait", metavar="TIME", help="With --follow: end after this time without an event.")
def logs(
    item: str | None, queue: str | None, kinds: tuple[str, ...], follow: bool, limit: int, wait: str | None
) -> None:
    """Show the events of all items, or of one ITEM under every id that it had, the oldest first.

    The setting `feed` of each queue selects the events that are kept: by default failures and manual changes.
    `redrive queue update QUEUE --feed all` also keeps successes.
    """
    if wait is not None and not follow:
        raise click.UsageError("--wait is for --follow; omit it, or give both")
    with open_target() as broker:
        if queue is not None:
            broker.get_queue(queue)
        asked: dict[str, Any] = {"queue": queue, "kinds": kinds or None, "id": item_id(broker, item) if item else None}
        page = broker.feed(limit=limit, **asked)
        if not follow:
            if as_json():
                print_json(page)
                return
            for entry in page.entries:
                _print(entry)
            if not page.entries:
                print_line(
                    "No events are kept. The setting `feed` selects the kept events: redrive queue update --help"
                )
            return
        for entry in page.entries:
            _print(entry)
        for entry in broker.follow(after=page.last, wait=wait, **asked):
            _print(entry)


def _print(entry: FeedEntry) -> None:
    if as_json():
        print_json_line(entry)
        return
    which = "" if entry.breaker is None else f" for {entry.breaker}"
    who = "" if entry.actor is None else f" by {entry.actor}"
    title = "" if entry.title is None else f": {entry.title}"
    rest = escape_line(f" in {entry.queue}{which}{who}{title}")
    print_line(f"{format_instant(entry.at)}  {short(entry.id):{ID_DIGITS}}  {coloured(entry.kind.value)}{rest}")
    sys.stdout.flush()
