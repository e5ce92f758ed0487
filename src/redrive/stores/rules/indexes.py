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
    """Names in the order of their keys. Adding costs O(log n), removing O(1), whatever else is in it.

    A removed name leaves its entry in the heap, where it is passed over later. When such entries outnumber the live
    ones, the heap is built anew.
    """

    def __init__(self) -> None:
        self._keys: dict[Name, Key] = {}
        self._heap: list[tuple[Key, Name]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def all_keys(self) -> Iterator[Key]:
        """The keys, in no order."""
        return iter(self._keys.values())

    def add(self, name: Name, key: Key) -> None:
        """Put a name in its place; the place it had before is forgotten."""
        self._keys[name] = key
        heapq.heappush(self._heap, (key, name))
        if len(self._heap) > 2 * len(self._keys) + _SPARE_ENTRIES:
            self._heap = [(key, name) for name, key in self._keys.items()]
            heapq.heapify(self._heap)

    def discard(self, name: Name) -> None:
        """Take a name out, if it is there."""
        self._keys.pop(name, None)

    def first(self) -> Name | None:
        """The name with the smallest key."""
        while self._heap:
            key, name = self._heap[0]
            if self._keys.get(name) == key:
                return name
            heapq.heappop(self._heap)
        return None

    def first_key(self) -> Key | None:
        """The smallest key."""
        name = self.first()
        return None if name is None else self._keys[name]

    def first_at(self) -> Instant | None:
        """The smallest instant, where keys begin with one."""
        key = self.first_key()
        return None if key is None else Instant(key[0])

    def until(self, instant: int, limit: int) -> list[Name]:
        """At most `limit` names whose key begins with this instant or an earlier one, in order. They stay."""
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
    """Items by number. Numbers are drawn in order, so that most of them are added at the end."""

    def __init__(self) -> None:
        self._items: dict[int, Record] = {}
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int, item: Record) -> None:
        """Put an item in its place."""
        insort(self._numbers, number)
        self._items[number] = item

    def discard(self, number: int, item: Record) -> None:
        """Take the item of that number out, if it is there."""
        if self._items.pop(number, None) is not None:
            del self._numbers[bisect_left(self._numbers, number)]

    def oldest(self, after: int | None = None) -> Iterator[tuple[int, Record]]:
        """Beyond a number, upwards. What changes meanwhile is not noticed."""
        start = 0 if after is None else bisect_right(self._numbers, after)
        return ((number, self._items[number]) for number in self._numbers[start:])

    def newest(self, before: int | None = None) -> Iterator[tuple[int, Record]]:
        """Beyond a number, downwards."""
        end = None if before is None else bisect_left(self._numbers, before)
        return ((number, self._items[number]) for number in reversed(self._numbers[:end]))
