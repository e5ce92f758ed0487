"""Finding: walking the shelf on which what is looked for stands, and asking of each item whether it matches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from redrive.model.filter import MAX_EXAMINED, Filter, Order, make_cursor, matches, parse_cursor
from redrive.model.item import Status
from redrive.model.words import parse_query
from redrive.store import Counted, CountItems, FindItems, Page
from redrive.stores.rules.record import Record
from redrive.stores.rules.state import State


class Selected(NamedTuple):
    """Some of what a filter means."""

    found: list[tuple[int, Record]]
    """Items with their positions."""
    position: int | None
    """How far was looked. None where nothing was."""
    exhausted: bool
    """There is nothing more."""


def find_items(state: State, query: FindItems) -> Page:
    """One page."""
    after = parse_cursor(query.where, query.order, query.cursor)
    selected = select(state, query.where, query.order, query.limit, after)
    items = tuple(item.to_item() for _, item in selected.found)
    if selected.exhausted or selected.position is None:
        return Page(items, None)
    return Page(items, make_cursor(query.where, query.order, selected.position))


def count_items(state: State, query: CountItems) -> Counted:
    """Where only the queue and the cause are asked for, all of them at once."""
    where = query.where
    after = parse_cursor(where, Order.NEWEST, query.cursor)
    if where.counted_at_once and after is None:
        queues = tuple(state.queues) if where.queue is None else (state.queue(where.queue).name,)
        return Counted(state.groups.count(queues, where.fingerprint), None)
    selected = select(state, where, Order.NEWEST, MAX_EXAMINED, after)
    if selected.exhausted or selected.position is None:
        return Counted(len(selected.found), None)
    return Counted(len(selected.found), make_cursor(where, Order.NEWEST, selected.position))


def select(
    state: State,
    where: Filter,
    order: Order,
    limit: int,
    after: int | None = None,
    *,
    up_to: int | None = None,
) -> Selected:
    """The next items that match, after a position and up to another one.

    It looks on for one match more than it takes, so that the last page is known to be the last.
    """
    if where.queue is not None:
        state.queue(where.queue)
    meets = _condition(where)
    found: list[tuple[int, Record]] = []
    position = after
    for looked, (number, item) in enumerate(state.walk(where, order, after)):
        if up_to is not None and number > up_to:
            break
        matched = meets(item)
        if looked == MAX_EXAMINED or (matched and len(found) == limit):
            return Selected(found, position, exhausted=False)
        if len(found) < limit:
            position = number
        if matched:
            found.append((number, item))
    return Selected(found, position, exhausted=True)


def _condition(where: Filter) -> Callable[[Record], bool]:
    """Whether an item meets every condition but those that `State.walk` looks up."""
    words = None if where.words is None else parse_query(where.words)

    def meets(item: Record) -> bool:
        if not matches(where, item.facts):
            return False
        if words is None:
            return True
        return (item.is_dead_letter or item.status is Status.ARCHIVED) and words.matches(item.words)

    return meets
