"""Ordered indexes: names by key, and items by a number, scanned from any position in either direction."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

from redrive.clock import Instant
from redrive.stores.rules.record import Record

Name = TypeVar("Name", bound=str)
Key = tuple[int, ...]

_SPARE_ENTRIES = 64


class Index(Generic[Name]):
    """Names in the order of their keys. Adding costs O(log n), removing O(1), regardless of the other entries.

    A removed name leaves its entry in the heap, where it is skipped later. When such entries outnumber the live ones,
    the heap is rebuilt.
    """

    def __init__(self) -> None:
        self._keys: dict[Name, Key] = {}
        self._heap: list[tuple[Key, Name]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def all_keys(self) -> Iterator[Key]:
        """Return the keys, in no order."""
        return iter(self._keys.values())

    def add(self, name: Name, key: Key) -> None:
        """Insert a name at its position, or move it there."""
        self._keys[name] = key
        heapq.heappush(self._heap, (key, name))
        if len(self._heap) > 2 * len(self._keys) + _SPARE_ENTRIES:
            self._heap = [(key, name) for name, key in self._keys.items()]
            heapq.heapify(self._heap)

    def discard(self, name: Name) -> None:
        """Remove a name, if present."""
        self._keys.pop(name, None)

    def first(self) -> Name | None:
        """Return the name with the smallest key."""
        while self._heap:
            key, name = self._heap[0]
            if self._keys.get(name) == key:
                return name
            heapq.heappop(self._heap)
        return None

    def first_key(self) -> Key | None:
        """Return the smallest key."""
        name = self.first()
        return None if name is None else self._keys[name]

    def first_at(self) -> Instant | None:
        """Return the smallest instant, if keys start with one."""
        key = self.first_key()
        return None if key is None else Instant(key[0])

    def until(self, instant: int, limit: int) -> list[Name]:
        """Return at most `limit` names whose key starts with this instant or an earlier one, in order, without removing
        them."""
        found: dict[Name, Key] = {}
        while len(found) < limit:
            name = self.first()
            if name is None or self._keys[name][0] > instant:
                break
            found[name] = self._keys[name]
            heapq.heappop(self._heap)
        for name, key in found.items():
            heapq.heappush(self._heap, (key, name))
        return list(found)


class NumberIndex:
    """Items by number. Numbers are allocated in ascending order, so most items are added at the end."""

    def __init__(self) -> None:
        self._items: dict[int, Record] = {}
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int, item: Record) -> None:
        """Insert an item at its position."""
        insort(self._numbers, number)
        self._items[number] = item

    def discard(self, number: int, item: Record) -> None:
        """Remove the item of that number, if present."""
        if self._items.pop(number, None) is not None:
            del self._numbers[bisect_left(self._numbers, number)]

    def oldest(self, after: int | None = None) -> Iterator[tuple[int, Record]]:
        """Return items after a number, ascending. Concurrent changes are not noticed."""
        start = 0 if after is None else bisect_right(self._numbers, after)
        return ((number, self._items[number]) for number in self._numbers[start:])

    def newest(self, before: int | None = None) -> Iterator[tuple[int, Record]]:
        """Return items before a number, descending."""
        end = None if before is None else bisect_left(self._numbers, before)
        return ((number, self._items[number]) for number in reversed(self._numbers[:end]))
