"""The outcomes of a delivery, in the terms of the contract, the state machine, the history and the feed.

A call of the contract names the `OutcomeKind`. This table has the verb of the state machine, the row in the history,
and the entry in the feed if the item did not die. A death is always `FeedKind.DEAD`, with a `DeadReason`. A completion
is not in this table: it is not judged, and the history has no row for it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.model.feed import FeedKind
from redrive.model.item import HistoryEvent
from redrive.model.judge import OutcomeKind
from redrive.model.state_machine import Verb


class DeliveryEnd(msgspec.Struct, frozen=True, gc=False):
    """The names of one outcome in the state machine, the history and the feed."""

    verb: Verb
    event: HistoryEvent
    feed_kind: FeedKind | None = None
    """None: the item dies of it, or stays dead."""


DELIVERY_ENDS: Mapping[OutcomeKind, DeliveryEnd] = {
    OutcomeKind.FAILED: DeliveryEnd(Verb.FAIL, HistoryEvent.FAILED, FeedKind.FAILED),
    OutcomeKind.EXTRA_FAILED: DeliveryEnd(Verb.FAIL, HistoryEvent.FAILED, FeedKind.FAILED),
    OutcomeKind.LOST: DeliveryEnd(Verb.LOSE, HistoryEvent.LOST, FeedKind.LOST),
    OutcomeKind.RELEASED: DeliveryEnd(Verb.RELEASE, HistoryEvent.RELEASED, FeedKind.RELEASED),
    OutcomeKind.RETURNED: DeliveryEnd(Verb.RELEASE, HistoryEvent.RETURNED, FeedKind.RETURNED),
    OutcomeKind.EXPIRED: DeliveryEnd(Verb.EXPIRE, HistoryEvent.EXPIRED),
    OutcomeKind.BURIED: DeliveryEnd(Verb.BURY, HistoryEvent.BURIED),
}
FEED_KIND_BY_EVENT = {end.event: end.feed_kind for end in DELIVERY_ENDS.values() if end.feed_kind is not None}
"""The feed entry for each row of the history after which an item does not die, or stays dead."""
DEADLY_EVENTS = frozenset(end.event for kind, end in DELIVERY_ENDS.items() if kind is not OutcomeKind.RETURNED)
"""The rows of the history that may record a death."""
