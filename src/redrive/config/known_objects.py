"""The objects of an external queue that the store knows: those with an item, and those whose item was removed.

The key of an object is its idempotency key. It stays known after its item is gone, regardless of the outcome. So an
object whose item an operator removed is put again with a key that also names the removed item, and is registered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from hashlib import blake2b
from typing import Unpack

import msgspec

from redrive.broker.broker import Broker
from redrive.broker.flow import run_query
from redrive.broker.flows import external_polls
from redrive.clock import Instant
from redrive.contract.base import FEED_RETENTION, RETENTION_ACTOR
from redrive.contract.item_calls import NewItem
from redrive.contract.queries import FeedPage, ReadFeed
from redrive.errors import Forbidden
from redrive.model.duration import DAY
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.ids import ItemId
from redrive.model.item import Item, Status
from redrive.model.limits import MAX_BATCH, is_remote
from redrive.model.options import Conditions
from redrive.model.queue import WITH_ITEM, QueueStats
from redrive.telemetry import events

KEY_HEADER = "external-key"
"""The header of an item with the name of its object."""
VERSION_HEADER = "external-version"
"""The header with the version of the object, if the queue has a `version` key."""
_MOVES = (FeedKind.DEAD, FeedKind.MOVED, FeedKind.REDRIVEN, FeedKind.UNDONE)
"""The changes that may give an item another id."""
_REMOVALS = (FeedKind.DROPPED, FeedKind.REMOVED)
_log = events.logger("redrive.external")


def object_key(name: str, version: str | None) -> str:
    """Return the key of an object: its name, with its version if it has one."""
    return name if version is None else msgspec.json.encode([name, version]).decode()


def digest(key: str) -> str:
    """Return a short name for a key."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class KnownObjects:
    """The objects of one queue. If the process may not read the store, only idempotency keys prevent duplicates."""

    def __init__(self, broker: Broker, queue: str) -> None:
        self._broker = broker
        self._queue = queue
        self._after = 0
        """The last entry of the feed that was read."""
        self._first_ids: dict[ItemId, tuple[ItemId, Instant]] = {}
        """The id that an item was put under, and the time of its last move, by each id that it got since."""
        self._removed: dict[ItemId, Instant] = {}
        self._is_told = False
        """True if the log already reports that this process may not read the store."""

    def with_items(self) -> set[str]:
        """Return the keys of objects whose item exists and is not completed: it waits, runs, is dead or archived."""
        try:
            return set(filter(None, map(_key_of, self._items())))
        except Forbidden as refusal:
            self._may_not_look(refusal)
            return set()

    def removed(self) -> Set[ItemId]:
        """Return the items that an operator dropped or removed before they were completed, by their first id."""
        try:
            for entry in self._new_entries():
                self._take_in(entry)
        except Forbidden as refusal:
            self._may_not_look(refusal)
            return frozenset()
        over = self._broker.core.clock.now() - FEED_RETENTION
        self._removed = {id: at for id, at in self._removed.items() if at > over}
        self._first_ids = {id: first for id, first in self._first_ids.items() if first[1] > over}
        return self._removed.keys()

    def put_again(self) -> dict[str, str]:
        """Return the removed item of each object that was put again, by the digest of the object's key."""
        return self._broker.run_flow(external_polls.put_again(self._queue))

    def put_after(self, item: NewItem, removed: str) -> NewItem:
        """Return the new item of an object whose last item was removed."""
        key = f"{digest(item.idempotency_key or '')}#{removed}"
        return msgspec.structs.replace(item, idempotency_key=key)

    def remember(self, item: NewItem, removed: ItemId) -> None:
        """Register that an object is put again because this item of it was removed, for as long as its key is kept."""
        timeout = self._broker.get_queue(self._queue).settings.idempotency_timeout
        key, time = digest(item.idempotency_key or ""), DAY if timeout == WITH_ITEM else timeout
        self._broker.run_flow(external_polls.remember_put_again(self._queue, key, removed, time))

    def _may_not_look(self, refusal: Forbidden) -> None:
        if not self._is_told:
            _log.warning("external_keys_only", queue=self._queue, error=str(refusal))
        self._is_told = True

    def _items(self) -> Iterator[Item]:
        stats = self._broker.stats(self._queue)
        for status in _statuses(stats):
            yield from self._found(queue=self._queue, status=status, dropped=False)
        for dead_queue in self._broker.get_queue(self._queue).settings.dead_queues():
            if not is_remote(dead_queue):
                yield from self._found(queue=dead_queue, status=Status.DEAD, origin_queue=self._queue)
                yield from self._found(
                    queue=dead_queue, status=Status.ARCHIVED, origin_queue=self._queue, dropped=False
                )

    def _found(self, **conditions: Unpack[Conditions]) -> Iterator[Item]:
        cursor = None
        while True:
            page = self._broker.find(limit=MAX_BATCH, cursor=cursor, redacted=False, **conditions)
            yield from page.items
            cursor = page.cursor
            if cursor is None:
                return

    def _new_entries(self) -> Iterator[FeedEntry]:
        while True:
            query = ReadFeed(after=self._after, limit=MAX_BATCH, kinds=(*_MOVES, *_REMOVALS, FeedKind.RESTORED))
            page: FeedPage = self._broker.run_flow(run_query(query))
            yield from page.entries
            self._after = page.last
            if not page.more:
                return

    def _take_in(self, entry: FeedEntry) -> None:
        if entry.id is None:
            return
        before = entry.source_id or entry.id
        if entry.queue != self._queue and before not in self._first_ids:
            return  # it was never in this queue
        first = self._first_ids[before][0] if before in self._first_ids else before
        if entry.kind in _MOVES:
            self._first_ids[entry.id] = (first, entry.at)
        elif entry.kind is FeedKind.RESTORED:
            self._removed.pop(first, None)
        elif entry.actor != RETENTION_ACTOR and entry.from_status is not Status.COMPLETED:
            self._removed[first] = entry.at


def _statuses(stats: QueueStats) -> Iterator[Status]:
    """Yield the statuses that at least one item has, except completed."""
    if stats.dead_letters:
        yield Status.DEAD
    for status in (Status.PENDING, Status.FAILED, Status.ACTIVE, Status.ARCHIVED, Status.MOVING):
        if getattr(stats, status.value):
            yield status


def _key_of(item: Item) -> str | None:
    headers: Mapping[str, str] = item.headers
    name = headers.get(KEY_HEADER)
    return None if name is None else object_key(name, headers.get(VERSION_HEADER))
