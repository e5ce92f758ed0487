"""Results that are kept for a time of their own, whatever becomes of the items."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.clock import Instant
from redrive.model.ids import ItemId
from redrive.model.item import Result
from redrive.stores.rules.index import Index


class ResultTable:
    """Results by every id that an item had."""

    def __init__(self) -> None:
        self._known: dict[ItemId, tuple[Result, Instant]] = {}
        self._until: Index[ItemId] = Index()

    def get(self, id: ItemId, now: Instant) -> Result | None:
        """The result, until its time is over."""
        result, until = self._known.get(id, (None, now))
        return result if until > now else None

    def keep(self, ids: Iterable[ItemId], result: Result, until: Instant) -> None:
        """Keep it under these ids."""
        for id in ids:
            self._known[id] = (result, until)
            self._until.add(id, (until,))

    def forget(self, now: Instant, limit: int) -> int:
        """Remove at most so many whose time is over. Returns how many."""
        over = self._until.until(now, limit)
        for id in over:
            self._until.discard(id)
            del self._known[id]
        return len(over)
