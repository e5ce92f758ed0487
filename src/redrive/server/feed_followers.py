"""Long polls of the feed of a namespace: one reader for all of them.

If each of them read the feed after every commit, a few hundred would leave the store no time for other work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from redrive.broker.async_broker import AsyncBroker
from redrive.broker.core import Core
from redrive.broker.flow import run_query
from redrive.broker.flows.inspection import query, wait_beyond
from redrive.contract.queries import FeedPage, GetItem, ReadFeed
from redrive.errors import ItemNotFound, RedriveError
from redrive.model.feed import FeedEntry
from redrive.model.ids import ItemId
from redrive.model.item import Item

PAUSE_SECONDS = 0.05
"""Minimum seconds between two reads. All commits in between are read together."""

_Key = tuple[str | None, str | None, str | None, str | None]
"""A queue, a kind, an operation and an item; None matches any."""
_following: dict[Core, _Followers] = {}
"""The followers of each namespace with pending long polls."""


async def wait_for_feed(
    broker: AsyncBroker, unbound: AsyncBroker, after: int, seconds: float, **wanted: Any
) -> FeedPage:
    """Wait for the next matching entries after a number; return an empty page after `seconds`.

    All callers of a namespace wait together by `unbound`; each reads by its own broker.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    asked = query(after=after, **wanted)
    while True:
        ids = await _ids(broker, asked.id)
        with _listening(unbound, asked, ids) as told:
            page = await broker.feed(after=asked.after, **wanted)  # also entries from before it was registered
            if page.entries or (not page.more and loop.time() >= end):
                return page
            if not page.more and await _ids(broker, asked.id) == ids:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(end):
                        await told
        asked = msgspec.structs.replace(asked, after=page.last)


async def _ids(broker: AsyncBroker, id: ItemId | None) -> Collection[str]:
    """Return the ids under which future entries may name an item."""
    if id is None:
        return ()
    try:
        item: Item = await broker.run_flow(run_query(GetItem(id)))
    except ItemNotFound:
        return {id}
    return {id, item.id}


@contextlib.contextmanager
def _listening(broker: AsyncBroker, asked: ReadFeed, ids: Collection[str]) -> Iterator[asyncio.Future[None]]:
    """Yield a future that is done as soon as a requested entry may exist."""
    followers = _following.get(broker.core)
    if followers is None:
        followers = _following[broker.core] = _Followers(broker)
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    keys = _keys_of(asked, ids)
    followers.add(told, keys, asked.after or 0)
    try:
        yield told
    finally:
        followers.remove(told, keys)
        if followers.is_empty:
            followers.close()
            del _following[broker.core]


class _Followers:
    """All pending long polls of one namespace, by what they wait for."""

    def __init__(self, broker: AsyncBroker) -> None:
        self._broker = broker
        self._waiting: dict[_Key, set[asyncio.Future[None]]] = {}
        self._reader: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def add(self, told: asyncio.Future[None], keys: Iterable[_Key], after: int) -> None:
        for key in keys:
            self._waiting.setdefault(key, set()).add(told)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.ensure_future(self._read(after))

    def remove(self, told: asyncio.Future[None], keys: Iterable[_Key]) -> None:
        for key in keys:
            waiting = self._waiting[key]
            waiting.discard(told)
            if not waiting:
                del self._waiting[key]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self, number: int) -> None:
        time = asyncio.get_running_loop().time
        try:
            while True:
                began = time()
                page = await self._broker.run_flow(wait_beyond(self._broker.core, number))
                number = page.last
                self._tell(self._waiting.keys() & _keys_in(page.entries))
                await asyncio.sleep(max(0.0, began + PAUSE_SECONDS - time()))
        except RedriveError:  # each waiting request reads again itself, and gets the same error
            self._tell(tuple(self._waiting))

    def _tell(self, keys: Iterable[_Key]) -> None:
        for key in keys:
            for told in self._waiting[key]:
                if not told.done():
                    told.set_result(None)


def _keys_of(asked: ReadFeed, ids: Collection[str]) -> set[_Key]:
    """Return the keys of a long poll. One for an item matches all entries of that item, which are few."""
    if asked.id is not None:
        return {(None, None, None, id) for id in ids}
    return {(asked.queue, kind, asked.operation, None) for kind in asked.kinds or (None,)}


def _keys_in(entries: Iterable[FeedEntry]) -> set[_Key]:
    """Return the keys of all long polls that match one of these entries."""
    keys: set[_Key] = set()
    for entry in entries:
        for queue in (entry.queue, None):
            for kind in (entry.kind, None):
                keys.add((queue, kind, None, None))
                if entry.operation is not None:
                    keys.add((queue, kind, entry.operation, None))
        keys.update((None, None, None, id) for id in (entry.id, entry.source_id) if id is not None)
    return keys
