"""Canaries: the first few items that an operation redrives. Their outcomes decide whether the rest follows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from redrive.broker.flow import Flow, commit_call, read_items, run_query
from redrive.contract.admin_calls import SetOperation
from redrive.contract.queries import FeedPage, ReadFeed
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.item import HistoryEvent, Item, Status
from redrive.model.operation import Operation, OperationStatus

ACTOR = "canary"
"""The actor in the audit when an operation continues or stops after its canaries."""
_MAX_TITLES = 3
_DROPPED = "removed after it died"


class CanaryCount(msgspec.Struct, frozen=True):
    """The outcomes of canaries so far."""

    total: int
    needed: int
    """Number of canaries that must complete."""
    good: int
    deaths: Counter[str]
    """Number of canaries that died again, by title of the cause."""

    @property
    def ended(self) -> int:
        """Number of canaries that have ended."""
        return self.good + self.deaths.total()

    @property
    def has_passed(self) -> bool:
        """True if enough canaries have completed."""
        return self.good >= self.needed

    @property
    def has_failed(self) -> bool:
        """True if too many died for the rest to reach `needed`."""
        return self.deaths.total() > self.total - self.needed

    @property
    def problem(self) -> str:
        """A text with the number of canaries that died again, and the most common causes."""
        titles = "; ".join(f"{count} × {title}" for title, count in self.deaths.most_common(_MAX_TITLES))
        more = "; …" if len(self.deaths) > _MAX_TITLES else ""
        return f"{self.deaths.total()} of {self.total} canaries died again ({titles}{more})"


def count_canaries(ids: Sequence[ItemId], success_ratio: float, after: int = 0) -> Flow[CanaryCount]:
    """Read the outcomes of canaries. `after` is a position of the feed before they were redriven."""
    good = 0
    deaths: Counter[str] = Counter()
    for id, item in zip(ids, (yield from read_items(ids)), strict=True):
        outcome = (yield from _last_words(after, id)) if item is None else _outcome(item)
        good += outcome == ""
        deaths.update([outcome] if outcome else [])
    return CanaryCount(len(ids), math.ceil(success_ratio * len(ids) - 1e-9), good, deaths)


def watch(operation: Operation) -> Flow[Operation]:
    """Read the outcomes of the canaries; continue or stop the operation once they are decisive."""
    canaries = yield from count_canaries(operation.canary_ids, operation.canary_success_ratio, operation.mark)
    if canaries.has_failed:
        problem = f"{canaries.problem}; the rest was not touched. Fix the cause, then start another operation"
        return (yield from _set(operation, OperationStatus.STOPPED, problem))
    if canaries.has_passed:
        return (yield from _set(operation, OperationStatus.RUNNING, None))
    return operation


def died_again(item: Item) -> bool:
    """Return whether a redriven item is dead again: dead, archived, undone, or not redriven since its last death."""
    if item.status in (Status.DEAD, Status.ARCHIVED):
        return True
    if item.history and item.history[-1].event is HistoryEvent.UNDONE:
        return True
    return item.death is not None and item.death.counters.redrives == item.counters.redrives


def _outcome(item: Item) -> str | None:
    """Return the title of a canary's death, an empty text if it completed, or None while it has not ended."""
    if item.status is Status.COMPLETED:
        return ""
    if not died_again(item):
        return None
    return item.death.cause.group_title if item.death else _DROPPED


def _last_words(after: int, id: ItemId) -> Flow[str]:
    """Return the outcome of a deleted item: completed, unless the feed has its death (some queues drop dead items)."""
    while True:
        page: FeedPage = yield from run_query(ReadFeed(after=after, id=id, kinds=(FeedKind.DEAD,)))
        if page.entries:
            return page.entries[-1].title or _DROPPED
        if not page.more:
            return ""
        after = page.last


def _set(operation: Operation, status: OperationStatus, problem: str | None) -> Flow[Operation]:
    call = SetOperation(operation.id, ACTOR, status, problem, steps=operation.steps)
    changed: Operation = yield from commit_call(call)
    return changed
