"""How a delivery ended, in the words of every part of the system.

A call of the contract names the `OutcomeKind`. This table has the verb of the state machine, the row in the history,
and the entry in the feed if the item did not die. A death is `FeedKind.DEAD` in any case; its `DeadReason` says why. A
completion is not in this table: nothing is judged, and the history has no row.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.model.feed import FeedKind
from redrive.model.item import HistoryEvent
from redrive.model.judge import OutcomeKind
from redrive.model.state_machine import Verb


class DeliveryEnd(msgspec.Struct, frozen=True, gc=False):
    """What one outcome is called elsewhere."""

    verb: Verb
    event: HistoryEvent
    feed_kind: FeedKind | None = None
    """None: the item dies of it, or is as dead as before."""


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
"""The feed entry for each row of the history after which an item lives on, or is as dead as before."""
DEADLY_EVENTS = frozenset(end.event for kind, end in DELIVERY_ENDS.items() if kind is not OutcomeKind.RETURNED)
"""Rows of the history of which an item may have died."""
