"""Search for items that match a filter: scan the index that fits it, and check item by item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from redrive.model.filter import MAX_EXAMINED, Filter, Order, matches
from redrive.model.ids import ItemId
from redrive.model.search_terms import parse_query
from redrive.stores.rules.record import Record

if TYPE_CHECKING:
    from redrive.stores.rules.state import State


class FoundItems(NamedTuple):
    """A part of the matches of a filter."""

    found: list[tuple[int, Record]]
    """Items with their positions."""
    position: int | None
    """Position of the last examined item, to continue after. None if there is none."""
    exhausted: bool
    """True if there are no more matches."""


def select(
    state: State,
    where: Filter,
    order: Order,
    limit: int,
    after: int | None = None,
    *,
    up_to: int | None = None,
) -> FoundItems:
    """Return the next items that match, after a position and up to another one.

    It searches for one more match than the limit, so that the last page is known to be the last.
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
            return FoundItems(found, position, exhausted=False)
        if len(found) < limit:
            position = number
        if matched:
            found.append((number, item))
    return FoundItems(found, position, exhausted=True)


def named(
    state: State, ids: Iterable[ItemId], where: Filter, order: Order, after: int | None
) -> Iterator[tuple[int, Record]]:
    """Return items by current or former ids, each once, with their positions, in order."""
    items = {item.id: item for id in ids if (item := state.find(id)) is not None}
    found = [(item.death_number if where.is_for_dead_letters else item.number, item) for item in items.values()]
    down = order is Order.NEWEST
    found.sort(key=lambda each: each[0], reverse=down)
    return (each for each in found if after is None or (each[0] < after if down else each[0] > after))


def _condition(where: Filter) -> Callable[[Record], bool]:
    """Return a check of every condition except those that `State.walk` looks up."""
    words = None if where.words is None else parse_query(where.words)

    def meets(item: Record) -> bool:
        if item.has_unknown_status:
            return True
        if not matches(where, item.filter_subject):
            return False
        if words is None:
            return True
        return item.death is not None and words.matches(item.words)

    return meets
