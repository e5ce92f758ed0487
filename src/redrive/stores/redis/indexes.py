"""The indexes of the rules in sorted sets: read a window at a time, and merged with the changes of this transaction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from heapq import merge

from redrive.clock import Instant
from redrive.model.filter import Order
from redrive.model.ids import ItemId
from redrive.stores.redis.keys import RANKS, body_of, digits, long, short
from redrive.stores.redis.unit_of_work import PAGE, Session
from redrive.stores.rules.indexes import Index, Key, NumberIndex
from redrive.stores.rules.record import Record

_WINDOW = 100


class SortedIndex(Index[ItemId]):
    """Items by key. While this transaction has the lock, nothing else changes its sorted sets."""

    def __init__(self, session: Session, *keys: str) -> None:
        self._session = session
        self._names = keys
        self._changed: dict[ItemId, Key | None] = {}
        """The key of each item that this transaction added; None if it removed the item. By the first id of the item,
        which a move does not change."""
        self._window: list[tuple[Key, Record]] = []
        self._offsets = [0] * len(keys)
        self._exhausted = False

    @abstractmethod
    def _member(self, item: Record) -> str:
        """Return the member of an item in its current state."""

    @abstractmethod
    def _location(self, item: Record, key: Key) -> tuple[str, int]:
        """Return the sorted set and the score of a key."""

    @abstractmethod
    def _key(self, at: int, member: str, score: int) -> Key:
        """Return the key of a member in the sorted set number `at`."""

    def __len__(self) -> int:
        assert not self._changed, "counted only before anything was changed"
        count: int = sum(self._session.fetch(*(("ZCARD", key) for key in self._names)))
        return count

    def add(self, name: ItemId, key: Key) -> None:
        item = self._item(name)
        sorted_set, score = self._location(item, key)
        self._session.write("ZADD", sorted_set, score, self._member(item))
        self._changed[item.ids[0]] = key

    def discard(self, name: ItemId) -> None:
        item = self._item(name)
        if self._changed.get(item.ids[0], ()) is not None:
            for key in self._keys_of(item):
                self._session.write("ZREM", key, self._member(item))
            self._changed[item.ids[0]] = None

    def first(self) -> ItemId | None:
        return next((id for _, id in self._ordered()), None)

    def first_key(self) -> Key | None:
        return next((key for key, _ in self._ordered()), None)

    def first_at(self) -> Instant | None:
        key = self.first_key()
        return None if key is None else Instant(key[0])

    def until(self, instant: int, limit: int) -> list[ItemId]:
        found: list[ItemId] = []
        for key, id in self._ordered():
            if len(found) == limit or key[0] > instant:
                break
            found.append(id)
        return found

    def _keys_of(self, item: Record) -> tuple[str, ...]:
        return self._names

    def _ordered(self) -> Iterator[tuple[Key, ItemId]]:
        """Return the current keys and items, in order."""
        added = sorted((key, self._item(id).id) for id, key in self._changed.items() if key is not None)
        return merge(added, self._stored())

    def _stored(self) -> Iterator[tuple[Key, ItemId]]:
        at = 0
        while True:
            while at < len(self._window):
                key, item = self._window[at]
                if item.ids[0] not in self._changed:
                    yield key, item.id
                at += 1
            if self._exhausted:
                return
            self._read_window()

    def _read_window(self) -> None:
        """Read the next window. Of several sorted sets, all of the first comes before the second."""
        found = self._session.ranges(
            *(
                (key, "up", "-inf", "+inf", offset, _WINDOW)
                for key, offset in zip(self._names, self._offsets, strict=True)
            )
        )
        for at, members in enumerate(found):
            self._offsets[at] += len(members)
            for member, score in members:
                item = self._session.item_at(member)
                if item is not None:
                    self._window.append((self._key(at, member, score), item))
            if len(members) == _WINDOW:
                return
        self._exhausted = True

    def _item(self, name: ItemId) -> Record:
        item = self._session.record(name)
        assert item is not None
        return item


class InstantIndex(SortedIndex):
    """One sorted set: bodies by an instant."""

    def _member(self, item: Record) -> str:
        return digits(body_of(item.ids[0]))

    def _location(self, item: Record, key: Key) -> tuple[str, int]:
        return self._names[0], key[0]

    def _key(self, at: int, member: str, score: int) -> Key:
        return score, int(member)


class TailIndex(InstantIndex):
    """One sorted set: seq and body by an instant, so that items of one instant are in the order of their seq."""

    def _member(self, item: Record) -> str:
        return digits(short(item.seq)) + digits(body_of(item.ids[0]))

    def _key(self, at: int, member: str, score: int) -> Key:
        return score, long(int(member[:16]))


class Ready(TailIndex):
    """A sorted set for each priority, highest first: seq and body by ready_at."""

    def _location(self, item: Record, key: Key) -> tuple[str, int]:
        return self._names[self._set_of(item)], key[1]

    def _key(self, at: int, member: str, score: int) -> Key:
        return at - len(RANKS) + 1, score, long(int(member[:16]))

    def _keys_of(self, item: Record) -> tuple[str, ...]:
        return (self._names[self._set_of(item)],)

    def _set_of(self, item: Record) -> int:
        return len(RANKS) - 1 - item.priority


class NamesByInstant(Index[str]):
    """Names, and not items, by an instant."""

    def __init__(self, session: Session, key: str) -> None:
        self._session = session
        self._key = key
        self._changed: dict[str, Key | None] = {}

    def add(self, name: str, key: Key) -> None:
        self._session.write("ZADD", self._key, key[0], name)
        self._changed[name] = key

    def discard(self, name: str) -> None:
        self._session.write("ZREM", self._key, name)
        self._changed[name] = None

    def until(self, instant: int, limit: int) -> list[str]:
        (found,) = self._session.fetch(("ZRANGEBYSCORE", self._key, "-inf", instant, "LIMIT", 0, limit))
        added = [name for name, key in self._changed.items() if key is not None and key[0] <= instant]
        return [*(name for name in map(bytes.decode, found) if name not in self._changed), *added][:limit]


class DeadLetterIndexes(NumberIndex):
    """A sorted set for each queue: bodies by number."""

    def __init__(self, session: Session, kind: str) -> None:
        self._session = session
        self._kind = kind

    def add(self, number: int, item: Record) -> None:
        self._session.write("ZADD", self._key(item.queue), short(number), digits(body_of(item.ids[0])))

    def discard(self, number: int, item: Record) -> None:
        self._session.write("ZREM", self._key(item.queue), digits(body_of(item.ids[0])))

    def walk(
        self, queues: tuple[str, ...], order: Order, after: int | None, *, words: bool
    ) -> Iterator[tuple[int, Record]]:
        """Return the items of some queues after a number, without the changes of this transaction."""
        return walk(self._session, [self._key(queue) for queue in queues], order, after, words=words)

    def _key(self, queue: str) -> str:
        return self._session.keys.of(self._kind, queue)


def walk(
    session: Session, keys: list[str], order: Order, after: int | None, *, words: bool
) -> Iterator[tuple[int, Record]]:
    """Return the items of some sorted sets, merged by number."""
    down = order is Order.NEWEST
    pages = [_pages(session, key, down, after, words) for key in keys]
    return merge(*pages, key=lambda each: -each[0] if down else each[0])


def _pages(session: Session, key: str, down: bool, after: int | None, words: bool) -> Iterator[tuple[int, Record]]:
    last = None if after is None else short(after)
    while True:
        low, high = ("-inf", "+inf") if last is None else ("-inf", f"({last}") if down else (f"({last}", "+inf")
        (found,) = session.ranges((key, "down" if down else "up", low, high, 0, PAGE), words=words)
        for member, score in found:
            item = session.item_at(member)
            if item is not None:
                yield long(score), item
        if len(found) < PAGE:
            return
        last = found[-1][1]
