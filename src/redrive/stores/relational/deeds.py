"""Deeds, and the traces they leave in the file."""

from __future__ import annotations

from redrive.model import deed
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.item import Event, HistoryEntry, Status
from redrive.stores.relational import feed, verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.places import Place


class Deed(deed.Deed, frozen=True):
    """One verb, for one item or many."""

    def entry(self, batch: Batch, event: Event, queue: str, delivery: int, before: Status) -> HistoryEntry:
        """A row of the history of an item that was in that queue, and what it was there."""
        return self.history_entry(batch.now, event, queue, delivery, before)

    def record(
        self, batch: Batch, place: Place, event: Event, queue: str, before: Status, *, to: str | None = None
    ) -> None:
        """Write it into an item's history. `to` is where it goes in another store."""
        verdicts.record(batch, place, self.history_entry(batch.now, event, queue, place.deliveries, before, to=to))

    def tell(self, batch: Batch, kind: FeedKind, queue: str, place: Place, source_id: ItemId | None = None) -> None:
        """Tell it in the feed of the queue where it happened."""
        feed.tell(
            batch,
            kind,
            queue,
            place.n,
            place.tail,
            source_id=source_id,
            actor=self.actor,
            operation=self.operation,
            from_status=place.status if kind is FeedKind.REMOVED else None,
        )
