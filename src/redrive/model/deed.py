"""A deed: what is to be done to items by hand, and by whom."""

from __future__ import annotations

from typing import Self

import msgspec

from redrive.clock import Instant
from redrive.model.by_hand import brings_back
from redrive.model.item import Event, HistoryEntry, Status
from redrive.model.operation import Operation
from redrive.model.transitions import Verb


class Deed(msgspec.Struct, frozen=True):
    """One verb, for one item or many. Each store adds how it is written down."""

    verb: Verb
    actor: str
    note: str | None = None
    to: str | None = None
    force: bool = False
    operation: str | None = None
    """The operation that it is part of."""
    undoes: str | None = None
    """The operation that it takes back (UNDO)."""

    @classmethod
    def of(cls, operation: Operation) -> Self:
        """What an operation does to each of its items."""
        return cls(
            operation.verb,
            operation.actor,
            operation.note,
            operation.to,
            operation=operation.id,
            undoes=operation.where.operation,
        )

    def history_entry(
        self, now: Instant, event: Event, queue: str, delivery: int, before: Status, *, to: str | None = None
    ) -> HistoryEntry:
        """What the history says of an item that was in that queue, and what it was there. `to` is in another store."""
        return HistoryEntry(
            now,
            event,
            queue,
            delivery,
            actor=self.actor,
            note=self.note,
            operation=self.operation,
            from_status=before,
            from_dead_letter=brings_back(self.verb, before),
            to=to,
        )
