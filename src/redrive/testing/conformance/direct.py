"""Tests that call the store itself: what the public face cannot say, such as batches of several kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from redrive.model.ids import ItemId
from redrive.model.item import Item, Lease, Settled
from redrive.model.judge import Dead, Ending
from redrive.model.queue import QueueSettings, QueueStats
from redrive.model.reason import DeadReason
from redrive.model.transitions import Verb
from redrive.store import (
    Call,
    Change,
    Commit,
    CreateQueue,
    GetItem,
    GetQueue,
    GetStats,
    Leased,
    LeaseItems,
    NewItem,
    Put,
    Query,
    Settle,
    Store,
    Target,
)
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.suite import Suite


class Direct:
    """A store that is called directly, with short words for what the tests say most."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock

    def commit(self, *calls: Call) -> Commit:
        """All calls in one transaction."""
        return self.store.commit(calls)

    def do(self, call: Call) -> Any:
        """One call; its result."""
        (result,) = self.commit(call).results
        return result

    def read(self, query: Query) -> Any:
        """The answer to a query."""
        return self.store.read(query)

    def queue(self, name: str = "jobs", **settings: Any) -> None:
        """Create a queue."""
        created = self.do(CreateQueue(name, QueueSettings(**settings)))
        assert not isinstance(created, Exception), created

    def version(self, queue: str = "jobs") -> int:
        """The version of a queue's settings, which verdicts name. Stores number them as they like."""
        version: int = self.read(GetQueue(queue)).version
        return version

    def stats(self, queue: str = "jobs") -> QueueStats:
        """The counts of a queue."""
        stats: QueueStats = self.read(GetStats(queue))
        return stats

    def put(self, *payloads: bytes, queue: str = "jobs", **options: Any) -> list[ItemId]:
        """Put items with the same options."""
        return [receipt.id for receipt in self.do(put(*payloads, queue=queue, **options))]

    def lease(self, queue: str = "jobs", limit: int = 1, **options: Any) -> Sequence[Lease]:
        """Lease items."""
        leased: Leased = self.do(LeaseItems(queue, limit, **options))
        return leased.leases

    def take(self, queue: str = "jobs") -> Lease:
        """Lease the one item that comes next."""
        (lease,) = self.lease(queue)
        return lease

    def get(self, id: ItemId) -> Item:
        """An item by any id it had."""
        item: Item = self.read(GetItem(id))
        return item

    def change(self, verb: Verb, id: ItemId, **options: Any) -> Any:
        """Change one item by hand."""
        (result,) = self.do(Change(verb, (Target(id),), "ada", **options))
        return result

    def bury(self, lease: Lease, to: str | None = None) -> Settled:
        """End a delivery by death, in place or by a move to another queue."""
        settled = self.do(Settle(lease.token, Ending.BURIED, Dead(DeadReason.BURIED, to), self.version(lease.queue)))
        assert isinstance(settled, Settled), settled
        return settled


def put(*payloads: bytes, queue: str = "jobs", **options: Any) -> Put:
    """Items with the same options, in one call."""
    return Put(queue, tuple(NewItem(payload, "application/octet-stream", **options) for payload in payloads))


class DirectSuite(Suite):
    """The fixture of tests that call the store itself."""

    @pytest.fixture
    def direct(self, store: Store, clock: FakeClock) -> Direct:
        """The store under test."""
        return Direct(store, clock)
