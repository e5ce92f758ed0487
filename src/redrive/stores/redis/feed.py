"""The feed: entries in one sorted set, by number."""

from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import takewhile

import msgspec

from redrive.clock import Instant
from redrive.model.feed import FeedEntry
from redrive.model.filter import MAX_EXAMINED
from redrive.model.ids import ItemId
from redrive.store import FeedPage, ReadFeed, is_asked_for
from redrive.stores.redis.codec import encode
from redrive.stores.redis.keys import SHIFT, digits, long, short
from redrive.stores.redis.session import Session
from redrive.stores.rules.feed import Feed

_PAGE = 1000

_read_entry = msgspec.msgpack.Decoder(FeedEntry).decode


def write_feed_entry(entry: FeedEntry) -> bytes:
    """Number and instant in digits, because scripts write entries too; then the rest."""
    head = digits(short(entry.number)) + digits(entry.at)
    return head.encode() + encode(msgspec.structs.replace(entry, number=0, at=Instant(0)))


def read_feed_entry(raw: bytes) -> FeedEntry:
    """The same, read."""
    number, at = long(int(raw[:16])), Instant(int(raw[16:32]))
    return msgspec.structs.replace(_read_entry(raw[32:]), number=number, at=at)


class RedisFeed(Feed):
    """One sorted set."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._key = session.keys.of("feed")

    def add(self, entry: FeedEntry) -> None:
        self._session.write("ZADD", self._key, short(entry.number), write_feed_entry(entry))

    def forget(self, until: int, limit: int) -> int:
        (oldest,) = self._session.look(("ZRANGE", self._key, 0, max(0, limit - 1))) if limit else ((),)
        count = sum(1 for _ in takewhile(lambda raw: int(raw[16:32]) <= until, oldest))
        if count:
            self._session.write("ZREMRANGEBYRANK", self._key, 0, count - 1)
        return count

    def read(self, query: ReadFeed, ids: Set[ItemId] | None) -> FeedPage:
        backwards = query.before is not None and query.after is None
        after = 0 if query.after is None else query.after
        found: list[FeedEntry] = []
        last, more = after, False
        for looked, entry in enumerate(self._walk(after, query.before, backwards)):
            if looked == MAX_EXAMINED or len(found) == query.limit:
                more = True
                break
            last = max(last, entry.number)
            if is_asked_for(query, ids, entry):
                found.append(entry)
        return FeedPage(tuple(reversed(found) if backwards else found), last, more)

    def _walk(self, after: int, before: int | None, backwards: bool) -> Iterator[FeedEntry]:
        low = f"({short(after)}"
        high = "+inf" if before is None else f"({-(-before >> SHIFT)}"
        while True:
            command = (
                ("ZREVRANGEBYSCORE", self._key, high, low, "LIMIT", 0, _PAGE)
                if backwards
                else ("ZRANGEBYSCORE", self._key, low, high, "LIMIT", 0, _PAGE)
            )
            (raw,) = self._session.look(command)
            yield from map(read_feed_entry, raw)
            if len(raw) < _PAGE:
                return
            beyond = f"({int(raw[-1][:16])}"
            low, high = (low, beyond) if backwards else (beyond, high)
