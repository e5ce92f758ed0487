"""`redrive dead groups|list|show|search`: inspect dead letters."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from redrive.broker.flows.breaker_control import list_group_breakers
from redrive.broker.flows.registrations import SHOWN, disclose
from redrive.cli import item_output
from redrive.cli.commands.shell_completion import complete_queue
from redrive.cli.common_options import as_json, command, command_line
from redrive.cli.output import ago, print_json, print_line, print_note, short, table, to_json_value
from redrive.cli.selection import condition_options, conditions, item_id
from redrive.cli.store_target import open_target
from redrive.model.item import Item, Status
from redrive.model.text import format_counts, format_instant, pluralize

if TYPE_CHECKING:
    from redrive.model.breaker import BreakerStatus
    from redrive.model.group import Group

GROUP_DIGITS = 8
_GROUPS = {"group": "<", "count": ">", "class": "<", "last": ">", "queues": "~", "cause": "~"}
_MARKED_GROUPS = {"group": "<", "count": ">", "class": "<", "breaker": "<", "last": ">", "queues": "~", "cause": "~"}
_LEAST = ("class", "last", "queues")
page_options = (
    click.option(
        "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of items."
    ),
    click.option("--cursor", help="Continue after the page that printed this cursor."),
    click.option("--oldest", is_flag=True, help="List the oldest first; default: the newest."),
)


@command("groups")
@click.option("--queue", "-q", metavar="QUEUE", shell_complete=complete_queue, help="Only this queue.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of groups.")
def groups(queue: str | None, limit: int) -> None:
    """Show dead letters grouped by cause: the same error in the same place is one group. The largest is first.

    BREAKER is the state of a circuit breaker for the cause of a group: items that fail in that way wait.
    """
    with open_target() as broker:
        found = broker.groups(queue, limit=limit)
        stats = broker.list_stats() if queue is None else (broker.stats(queue),)
        dead = {each.queue: each.dead_letters for each in stats if each.dead_letters}
        breakers = broker.run_flow(list_group_breakers(broker.core, found))
    if as_json():
        marked = [{**to_json_value(each), "breakers": breakers.get(each.fingerprint, ())} for each in found]
        print_json({"dead": sum(dead.values()), "queues": dead, "groups": marked})
        return
    if not dead:
        print_line("There are no dead letters." if queue is None else f"There are no dead letters in {queue}.")
        return
    by_count = dict(sorted(dead.items(), key=lambda pair: -pair[1]))
    print_line(f"{pluralize(sum(dead.values()), 'dead letter')}: {format_counts(by_count)}")
    print_line()
    _print_groups(found, breakers)
    top = found[0]
    fingerprint = top.fingerprint[:GROUP_DIGITS]
    print_note(
        f"\n{top.advice}\n"
        f"  show one:   {command_line(f'dead show {short(top.sample)}')}\n"
        f"  dry run:    {command_line(f'dead redrive --group {fingerprint} --dry-run')}\n"
        f"  redrive it: {command_line(f'dead redrive --group {fingerprint} --canary 5')}"
    )


def _print_groups(groups: Sequence[Group], breakers: Mapping[str, Sequence[BreakerStatus]]) -> None:
    """Print a line for each group, with the state of its breaker if any of them has one."""
    if not breakers:
        table(_GROUPS, map(_row, groups), least=_LEAST)
        return
    rows = []
    for group in groups:
        row, open_ones = _row(group), breakers.get(group.fingerprint)
        rows.append((*row[:3], open_ones[0].state if open_ones else "", *row[3:]))
    table(_MARKED_GROUPS, rows, coloured="breaker", least=_LEAST)
    print_note("")
    for status in dict.fromkeys(each for open_ones in breakers.values() for each in open_ones):
        print_note(f"{status}")


def _row(group: Group) -> tuple[object, ...]:
    queues = ", ".join(group.queues)
    return (
        group.fingerprint[:GROUP_DIGITS],
        f"{group.count:,}",
        group.error_class.value,
        ago(group.last_at),
        queues,
        group.title,
    )


def _with_page_options(function: Any) -> Any:
    for option in reversed(page_options):
        function = option(function)
    return function


@command("list")
@condition_options()
@click.option("--archived", is_flag=True, help="List archived items instead of dead letters.")
@_with_page_options
def list_(archived: bool, limit: int, cursor: str | None, oldest: bool) -> None:
    """List dead letters that meet all given conditions, the newest first."""
    with open_target() as broker:
        where = conditions(broker, status=Status.ARCHIVED) if archived else conditions(broker)
        where.setdefault("status", Status.DEAD)
        page = broker.find(order="oldest" if oldest else "newest", limit=limit, cursor=cursor, **where)
        item_output.print_page(page, "Nothing matches.", letters=True)


@command("search")
@click.argument("words", nargs=-1, required=True)
@condition_options("words")
@_with_page_options
def search(words: tuple[str, ...], limit: int, cursor: str | None, oldest: bool) -> None:
    """Find dead letters with all these WORDS in their error or payload; wor* is a prefix.

    \b
    redrive dead search payment gateway
    redrive dead search 'refus*' --since 1h
    """
    with open_target() as broker:
        where = conditions(broker, words=" ".join(words))
        page = broker.find(order="oldest" if oldest else "newest", limit=limit, cursor=cursor, **where)
        item_output.print_page(page, "No dead letter has all of these words.", letters=True)


@command("show")
@click.argument("id")
@click.option("--secrets", is_flag=True, help="Also show values that look like secrets.")
def show(id: str, secrets: bool) -> None:
    """Show one item: why it died, the end of the traceback, its payload and history, and the commands to type next.

    Any item can be shown, dead or not. The first digits of the ID are enough. Values that look like secrets are shown
    as [redacted]. The audit records who uses --secrets.
    """
    with open_target() as broker:
        item = broker.get(item_id(broker, id), redacted=not secrets)
        if secrets:
            broker.run_flow(disclose(broker.core, SHOWN, item.queue, f"item {item.id}"))
        letter = item.status is Status.DEAD or bool(broker.count(ids=[item.id]))
    item_output.print_item(item)
    for line in _next_steps(item, letter):
        print_note(line)


def _next_steps(item: Item, letter: bool) -> list[str]:
    id, edit = short(item.id), '{"key": "new value"}'
    if letter:
        group = item.death.cause.fingerprint[:GROUP_DIGITS] if item.death else ""
        return [
            "\nNext steps:",
            f"  redrive it:           {command_line(f'dead redrive {id}')}",
            f"  edit the payload:     {command_line(f'dead redrive {id} --edit {shlex.quote(edit)}')}",
            f"  archive it:           {command_line(f'dead archive {id}')}",
            *([f"  list its group:       {command_line(f'dead list --group {group}')}"] if group else []),
        ]
    match item.status:
        case Status.ARCHIVED if (dropped := item.dropped) is not None:
            who = f"{dropped.actor} dropped it at {format_instant(dropped.at)}"
            return [f"\n{who}. Restore it: {command_line(f'undo {id}')}"]
        case Status.ARCHIVED:
            return [f"\nRestore it from the archive: {command_line(f'dead restore {id}')}"]
        case Status.ACTIVE:
            return [f"\nA worker has it. Revoke its lease and retry it: {command_line(f'queue retry {id} --force')}"]
        case Status.FAILED:
            return [f"\nIt will be retried {ago(item.ready_at)}. Retry it now: {command_line(f'queue retry {id}')}"]
        case Status.PENDING if item.death is not None:
            return [f"\nIt was redriven and waits for a worker. Undo that: {command_line(f'undo {id}')}"]
        case _:
            return []
