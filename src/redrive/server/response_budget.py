"""Size limits of responses to our own client: a page, or leases, have at most the payload bytes of one response.

The contract allows it: a short page with a cursor is not the last one, and a lease may grant fewer items than asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from redrive.broker.core import Core
from redrive.clock import Instant
from redrive.contract import Call, Query
from redrive.contract.item_calls import LeaseByIds, Leased
from redrive.contract.queries import FindItems, GetItems, GetItemsByKey, GetLeases, ListWorkerLeases, Page
from redrive.model.ids import Token
from redrive.model.item import Item, Lease

STEP = 64
"""Items that are read with one query: bounds the memory before their sizes are known."""


def read(core: Core, query: Query, most: int) -> Any:
    """Return the answer of the store, with payloads of up to `most` bytes, or one item. Blocks."""
    if query.__class__ is FindItems:
        return _page(core, query, most)
    if query.__class__ is GetItems:
        return _items(core, query.ids, GetItems, most)
    if query.__class__ is GetLeases:
        return _items(core, query.tokens, GetLeases, most)
    if query.__class__ is GetItemsByKey:
        return _items(core, query.keys, partial(GetItemsByKey, query.queue), most)
    if query.__class__ is ListWorkerLeases:
        return _held(core, query, most)
    return core.read(query)


def _page(core: Core, query: FindItems, most: int) -> Page:
    items: list[Item] = []
    cursor = query.cursor
    size = 0
    while True:
        step = msgspec.structs.replace(query, limit=min(STEP, query.limit - len(items)), cursor=cursor)
        page: Page = core.read(step)
        fits = _count_fitting([size_of(item) for item in page.items], most - size)
        if fits < len(page.items):
            if not items or fits:
                page = core.read(msgspec.structs.replace(step, limit=max(fits, 1)))
                return Page((*items, *page.items), page.cursor)
            return Page(tuple(items), cursor)
        items += page.items
        size += sum(map(size_of, page.items))
        cursor = page.cursor
        if cursor is None or len(items) >= query.limit or len(page.items) < step.limit:
            return Page(tuple(items), cursor)


def _items(core: Core, asked: Sequence[Any], query_of: Callable[[Any], Query], most: int) -> tuple[Any, ...]:
    """Return the items or leases of ids, keys or tokens, reading `STEP` of them with one query."""
    found: list[Item | Lease | None] = []
    size = 0
    while len(found) < len(asked):
        some: tuple[Item | Lease | None, ...] = core.read(query_of(asked[len(found) : len(found) + STEP]))
        sizes = [0 if item is None else size_of(item) for item in some]
        fits = _count_fitting(sizes, most - size) or (0 if found else 1)
        found += some[:fits]
        size += sum(sizes[:fits])
        if fits < len(some):
            break
    return tuple(found)


def _held(core: Core, query: ListWorkerLeases, most: int) -> tuple[Lease, ...]:
    limit = min(STEP, query.limit)
    while True:
        leases: tuple[Lease, ...] = core.read(msgspec.structs.replace(query, limit=limit))
        fits = _count_fitting([len(lease.payload) for lease in leases], most)
        if fits < len(leases):
            return leases[: max(fits, 1)]
        if len(leases) < limit or limit == query.limit:
            return leases
        limit = min(2 * limit, query.limit)


def truncate_results(
    calls: Sequence[Call], results: Sequence[Any], most: int, now: Instant
) -> tuple[list[Any], list[Token]]:
    """Return the results of a commit with leases of up to `most` bytes, or one, and the tokens of leases to release.

    If no lease of a call remains, it may be repeated immediately. The result of a lease by ids covers the first ids
    only.
    """
    shown: list[Any] = []
    given_back: list[Token] = []
    size = 0
    for call, result in zip(calls, results, strict=True):
        by_id = call.__class__ is LeaseByIds and result.__class__ is tuple
        if by_id or (result.__class__ is Leased and result.leases):
            members: Sequence[Any] = result if by_id else result.leases
            sizes = [len(each.payload) if each.__class__ is Lease else 0 for each in members]
            kept = _count_fitting(sizes, most - size) or (0 if size else 1)
            size += sum(sizes[:kept])
            if kept < len(sizes):
                given_back += [each.token for each in members[kept:] if each.__class__ is Lease]
                again = None if kept else now
                leases = members[:kept]
                result = leases if by_id else msgspec.structs.replace(result, leases=leases, next_at=again)
        shown.append(result)
    return shown, given_back


def _count_fitting(sizes: Sequence[int], room: int) -> int:
    """Return how many of the first sizes fit."""
    for count, size in enumerate(sizes):
        room -= size
        if room < 0:
            return count
    return len(sizes)


def size_of(item: Item | Lease) -> int:
    """Return the bytes of its payload and its result."""
    result = item.result if isinstance(item, Item) else None
    return len(item.payload) + (0 if result is None else len(result.payload))
