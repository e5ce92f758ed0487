"""The feed: entries in the order of their numbers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Set
from itertools import takewhile

from redrive.model.feed import FeedEntry
from redrive.model.filter import MAX_EXAMINED
from redrive.model.ids import ItemId
from redrive.store import FeedPage, ReadFeed, is_asked_for


class Feed:
    """What happened in a namespace."""

    def __init__(self) -> None:
        self._entries: list[FeedEntry] = []

    def add(self, entry: FeedEntry) -> None:
        """Write down what happened; its number is larger than every other."""
        self._entries.append(entry)

    def forget(self, until: int, limit: int) -> int:
        """Remove at most so many entries of that instant or earlier. Returns how many."""
        count = sum(1 for _ in takewhile(lambda entry: entry.at <= until, self._entries[:limit]))
        del self._entries[:count]
        return count

    def read(self, query: ReadFeed, ids: Set[ItemId] | None) -> FeedPage:
        """Some of it. `ids` are all those of the item that is asked for."""
        after = 0 if query.after is None else query.after
        start = bisect_right(self._entries, after, key=lambda entry: entry.number)
        end = len(self._entries)
        if query.before is not None:
            end = bisect_left(self._entries, query.before, key=lambda entry: entry.number)
        between = self._entries[start:end]
        backwards = query.before is not None and query.after is None
        if backwards:
            between.reverse()
        found: list[FeedEntry] = []
        looked = 0
        for entry in between[:MAX_EXAMINED]:
            if len(found) == query.limit:
                break
            looked += 1
            if is_asked_for(query, ids, entry):
                found.append(entry)
        last = max((entry.number for entry in between[:looked]), default=after)
        return FeedPage(tuple(reversed(found) if backwards else found), last, looked < len(between))
