"""A shelf: items in the order of a number that each has, to be walked from any place in either direction."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from redrive.stores.rules.record import Record


class Shelf:
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
