"""The feed: a record of events, written in the transaction of the change, if the queue keeps that kind."""

from __future__ import annotations

from redrive.model.death import DeadReason
from redrive.model.failure import Failure
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.ids import ItemId
from redrive.stores.rules.record import Record
from redrive.stores.rules.state import State


def append_event(
    state: State,
    kind: FeedKind,
    queue: str,
    item: Record,
    *,
    source_id: ItemId | None = None,
    title: str | None = None,
    reason: DeadReason | None = None,
    actor: str | None = None,
    operation: str | None = None,
    failure: Failure | None = None,
) -> None:
    """Record an event of an item in a queue, if that queue keeps this kind."""
    if not _keeps(state, queue, kind):
        return
    before = {FeedKind.REMOVED: item.status, FeedKind.DROPPED: item.archived_from}.get(kind)
    error = (None, None) if failure is None else (failure.error_class, failure.fingerprint)
    details = (item.id, source_id, title, reason, actor, operation, before, *error)
    state.feed.add(FeedEntry(state.draw_number(), state.now, kind, queue, *details))


def append_queue_event(
    state: State, kind: FeedKind, queue: str, *, title: str | None, actor: str | None, breaker: str | None
) -> None:
    """Record an event of a queue, not of an item, if that queue keeps this kind."""
    if _keeps(state, queue, kind):
        number = state.draw_number()
        state.feed.add(FeedEntry(number, state.now, kind, queue, title=title, actor=actor, breaker=breaker))


def _keeps(state: State, queue: str, kind: FeedKind) -> bool:
    return kind in state.queues[queue].value.settings.feed
