"""`redrive queue create|list|show|update|delete|pause|resume`: manage queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from redrive.broker.flows import external_polls
from redrive.cli import item_output
from redrive.cli.bulk_change import confirm, confirm_options
from redrive.cli.commands.breaker import close_command
from redrive.cli.commands.shell_completion import complete_queue
from redrive.cli.common_options import as_json, command, command_line, was_given
from redrive.cli.output import (
    ago,
    changed_settings,
    escape_line,
    fields,
    now,
    print_json,
    print_line,
    print_note,
    setting_text,
    table,
    to_json_value,
)
from redrive.cli.setting_options import given_settings, setting_options
from redrive.cli.store_target import open_target
from redrive.model.gate import RETRY_AFTER_GATE
from redrive.model.item import Status
from redrive.model.text import format_instant, pluralize

if TYPE_CHECKING:
    from redrive.clock import Instant
    from redrive.model.breaker import BreakerStatus
    from redrive.model.poll_info import PollInfo
    from redrive.model.queue import Queue, QueueStats

queue_argument = click.argument("queue", shell_complete=complete_queue)
_COUNTS = {"queue": "~", "pending": ">", "active": ">", "failed": ">", "dead": ">", "completed": ">", "archived": ">",
           "oldest": ">", "state": "<"}  # fmt: skip
_LEAST = ("archived", "completed", "oldest", "state", "active", "failed")


@command("create")
@queue_argument
@setting_options
def create(queue: str) -> None:
    """Create a queue. If it exists with the same settings, that is no error.

    \b
    redrive queue create emails
    redrive queue create orders --attempts 5 --backoff 10s --cap 10m --dead-queue orders-dead
    """
    settings = given_settings()
    with open_target(create=True) as broker:
        made = broker.create_queue(queue, **settings)
        if as_json():
            print_json(made)
            return
        changed = changed_settings(made.settings)
        said = f" with {_settings_text(changed)}" if changed else ""
        print_line(f"queue {made.name} is there{said}")
        push = command_line(f'queue push {made.name} \'{{"hello": "world"}}\'')
        print_note(f"Put something into it: {push}")


@command("list")
@click.argument("queue", required=False, shell_complete=complete_queue)
@click.option(
    "--status",
    type=click.Choice([*map(str, Status), "any"]),
    help="Only items in this status. Default: any except archived.",
)
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of items.")
@click.option("--cursor", help="Continue after the page that printed this cursor.")
@click.option("--oldest", is_flag=True, help="List the oldest first; default: the newest.")
def list_(queue: str | None, status: str | None, limit: int, cursor: str | None, oldest: bool) -> None:
    """List all queues with the number of items in each status, or the items of one QUEUE.

    DEAD counts dead letters: items that died and still exist, including those that came from another queue.
    """
    if queue is None:
        for option in ("status", "limit", "cursor", "oldest"):
            if was_given(option):
                raise click.UsageError(f"--{option} is for the items of one queue: redrive queue list QUEUE --{option}")
    with open_target() as broker:
        if queue is None:
            queues = broker.list_queues()
            listings = broker.run_flow(external_polls.external_queues())
            breakers = broker.list_breakers() if any(each.breakers for each in queues) else ()
            _print_queues(queues, broker.list_stats(), listings, breakers)
            return
        order = "oldest" if oldest else "newest"
        page = broker.find(queue=queue, status=status or "any", order=order, limit=limit, cursor=cursor)
        item_output.print_page(page, f"queue {queue} is empty" if status is None else f"nothing in {queue} is {status}")


def _print_queues(
    queues: Sequence[Queue],
    stats: Sequence[QueueStats],
    listings: Mapping[str, PollInfo],
    breakers: Sequence[BreakerStatus],
) -> None:
    """Print the queues whose counts are known: the others are new, or this token may not read them."""
    by_name = {queue.name: queue for queue in queues}
    pairs = [(by_name[each.queue], each) for each in stats if each.queue in by_name]
    if as_json():
        print_json([_summary(queue, counted, listings.get(queue.name), breakers) for queue, counted in pairs])
        return
    if not pairs:
        print_line(f"There is no queue yet. Create one: {command_line('queue create NAME')}")
        return
    table(_COUNTS, [_row(queue, counted, listings.get(queue.name)) for queue, counted in pairs], least=_LEAST)
    for name, listing in listings.items():
        if listing.has_failed:
            print_note(f"\nThe last listing of {name} failed: {command_line(f'queue show {name}')} shows why")
    if breakers:
        print_note(f"\n{pluralize(len(breakers), 'breaker')} not closed: {command_line('breaker list')} shows why")
    dead = sum(each.dead_letters for each in stats)
    if dead:
        print_note(f"\n{pluralize(dead, 'dead letter')}: {command_line('dead groups')} shows the causes")


def _row(queue: Queue, stats: QueueStats, listing: PollInfo | None) -> tuple[Any, ...]:
    states = {
        "paused": queue.paused,
        "breaker": bool(queue.breakers),
        "retry-after": _retry_after(queue) is not None,
        "dead-queue": queue.is_dead_queue,
        "external": listing is not None,
        "list-error": listing is not None and listing.has_failed,
    }
    state = " ".join(name for name, holds in states.items() if holds)
    waits = "" if stats.oldest_ready_at is None else ago(stats.oldest_ready_at, stats.at).removesuffix(" ago")
    counts = (stats.pending, stats.active, stats.failed, stats.dead_letters, stats.completed, stats.archived)
    return (queue.name, *(f"{count:,}" for count in counts), waits, state)


def _summary(
    queue: Queue, stats: QueueStats, listing: PollInfo | None, breakers: Sequence[BreakerStatus]
) -> dict[str, Any]:
    return {
        "name": queue.name,
        "paused": queue.paused,
        "gates": queue.gates,
        "is_dead_queue": queue.is_dead_queue,
        "stats": _with_breakers(stats, breakers),
        "external": listing,
    }


def _with_breakers(stats: QueueStats, breakers: Sequence[BreakerStatus]) -> dict[str, Any]:
    return {**to_json_value(stats), "breakers": [each for each in breakers if each.queue == stats.queue]}


@command("show")
@queue_argument
def show(queue: str) -> None:
    """Show one queue: its settings, its counts, how long the oldest item has waited, and its workers.

    For each circuit breaker that is not closed: since when, why, how many items wait, and the time of the next probe.
    For an external queue: when and how often it was listed, and the last error of a listing.
    """
    with open_target() as broker:
        found, stats = broker.get_queue(queue), broker.stats(queue)
        workers = [worker for worker in broker.workers() if queue in worker.queues]
        listing = broker.run_flow(external_polls.external_queue(queue))
        breakers = broker.list_breakers(queue) if found.breakers else ()
    if as_json():
        told = {"stats": _with_breakers(stats, breakers), "workers": workers, "external": listing}
        print_json({**to_json_value(found), **told})
        return
    states = [*(["paused"] if found.paused else ()), *(["a dead queue"] if found.is_dead_queue else ())]
    print_line(f"{found.name}: {', '.join([*states, f'created {format_instant(found.created_at)}'])}")
    print_line(f"{stats}")
    _print_gates(found, breakers)
    settings = changed_settings(found.settings)
    print_line("settings:" if settings else "settings: all defaults (docs/reference/settings.md)")
    fields((name, setting_text(value)) for name, value in settings.items())
    print_line("workers:" if workers else "workers: none alive")
    for worker in workers:
        print_line(escape_line(f"  {worker}"))
    if listing is not None:
        _print_listing(listing)
    if stats.dead_letters:
        print_note(f"Causes of its dead letters: {command_line(f'dead groups -q {queue}')}")


def _print_gates(queue: Queue, breakers: Sequence[BreakerStatus]) -> None:
    """Print what stops leases in addition to a pause."""
    if (until := _retry_after(queue)) is not None:
        print_line(f"gives no leases until {_when(until)}: requested by a Retry-After")
    for each in breakers:
        print_line(escape_line(str(each)))
    if breakers:
        print_note(f"Close it: {close_command(breakers[0])}")


def _retry_after(queue: Queue) -> Instant | None:
    """Return the time until which a Retry-After closes the queue; None without one."""
    until = next((gate.until for gate in queue.gates if gate.name == RETRY_AFTER_GATE), None)
    return until if until is not None and until > now() else None


def _print_listing(listing: PollInfo) -> None:
    print_line(f"external: {listing}")
    by = f" by {listing.poller}" if listing.poller else ""
    fields(
        [
            ("last listed", f"{_when(listing.polled_at)}{by}" if listing.polled_at else None),
            ("last error", f"{_when(listing.error_at)}: {listing.error}" if listing.error_at else None),
        ]
    )


def _when(at: Instant | None) -> str:
    return "" if at is None else f"{format_instant(at)} ({ago(at)})"


@command("update")
@queue_argument
@setting_options
def update(queue: str) -> None:
    """Change the settings of a queue. They apply in every process without a restart, from the next failure on.

    \b
    redrive queue update orders --attempts 10
    redrive queue update orders --dead-queue unset
    """
    with open_target() as broker:
        changes = given_settings(broker.get_queue(queue).settings)
        if not changes:
            raise click.UsageError("There is no setting to change; redrive queue update --help lists all settings")
        changed = broker.update_queue(queue, **changes)
    if as_json():
        print_json(changed)
        return
    settings = changed_settings(changed.settings)
    print_line(f"queue {changed.name} has {_settings_text(settings) if settings else 'its default settings'}")


@command("delete")
@queue_argument
@confirm_options(final=True)
def delete(queue: str, dry_run: bool, yes: int | None) -> None:
    """Remove a queue and all its items, in any status. This cannot be undone."""
    with open_target() as broker:
        broker.get_queue(queue)
        count = broker.count(queue=queue, status="any", archived=True)
        if not dry_run:
            if count or yes is not None:
                confirm(f"delete queue {queue} and", count, yes, final=True)
            broker.delete_queue(queue, confirm=count)
    if as_json():
        print_json({"queue": queue, "dry_run": dry_run, "items": count})
    elif dry_run:
        print_line(f"queue {queue} and {pluralize(count, 'item')} would be removed")
    else:
        print_line(f"queue {queue} is gone, and {pluralize(count, 'item')} with it")


@command("pause")
@queue_argument
def pause(queue: str) -> None:
    """Stop giving items to workers. Puts continue, and running items are finished."""
    with open_target() as broker:
        paused = broker.pause_queue(queue)
    print_json(paused) if as_json() else print_line(
        f"queue {queue} is paused; {command_line(f'queue resume {queue}')} resumes it"
    )


@command("resume")
@queue_argument
def resume(queue: str) -> None:
    """Give items to workers again."""
    with open_target() as broker:
        resumed = broker.resume_queue(queue)
    print_json(resumed) if as_json() else print_line(f"queue {queue} gives items to workers again")


def _settings_text(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {setting_text(value)}" for name, value in settings.items())
