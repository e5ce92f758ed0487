"""Deeds, and the traces they leave."""

from __future__ import annotations

from redrive.model import deed
from redrive.model.by_hand import status_at_rest
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.item import Event, HistoryEntry
from redrive.stores.rules.record import Record
from redrive.stores.rules.state import State


class Deed(deed.Deed, frozen=True):
    """One verb, for one item or many."""

    def entry(self, state: State, event: Event, item: Record, *, to: str | None = None) -> HistoryEntry:
        """A row of the item's history, while it still is what it was. `to` is where it goes in another store."""
        before = status_at_rest(item.status)
        return self.history_entry(state.now, event, item.queue, item.counters.deliveries, before, to=to)

    def tell(self, state: State, kind: FeedKind, queue: str, item: Record, source_id: ItemId | None = None) -> None:
        """Tell it in the feed of the queue where it happened."""
        state.tell(kind, queue, item, source_id=source_id, actor=self.actor, operation=self.operation)
