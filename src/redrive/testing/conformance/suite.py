"""The base of every part of the suite: fixtures that a store binds, and what a store declares.

`StoreSuite` calls the store itself. `StorePairSuite` has two stores that know each other, one of them in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import pytest

from redrive import Broker
from redrive.connect import connect, connect_async
from redrive.contract import Call, Query
from redrive.contract.admin_calls import CreateQueue, ManualChange, ManualTarget
from redrive.contract.item_calls import Leased, LeaseItems, NewItem, Put, Settle
from redrive.contract.maintenance_calls import Receive
from redrive.contract.queries import GetItem, GetQueue, GetStats, ListMoves, ListOpenMoves
from redrive.model.death import DeadReason
from redrive.model.ids import ItemId
from redrive.model.item import Item, Lease, Settled
from redrive.model.judge import Dead, OutcomeKind
from redrive.model.queue import QueueSettings, QueueStats
from redrive.model.state_machine import Verb
from redrive.store import Commit, Store
from redrive.testing.fake_clock import FakeClock


class OpenBroker(Protocol):
    """Opens a broker on the store under test. Every call of one test meets the same data, where it is shared."""

    def __call__(self, namespace: str = "default", **options: Any) -> Broker:
        """Options are those of `redrive.connect.connect`."""
        ...


class Suite:
    """The fixtures of the suite. A store overrides `url`, or `connect` and `connect_async` where it has no URL."""

    supports_processes: ClassVar[bool] = True
    """Several brokers that are open at once see the same data."""
    is_durable: ClassVar[bool] = True
    """What was acknowledged is there after the broker was closed and opened again."""
    supports_transactions: ClassVar[bool] = False
    """A program can have transactions of its own on the store, for `put(transaction=…)`. Bind `own_connection`."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The time of all brokers of a test. It stands still."""
        return FakeClock()

    @pytest.fixture
    def url(self) -> str:
        """Where the data of this test is. Each test needs a place of its own."""
        raise NotImplementedError("bind the suite to a store: override the fixture `url`, or `connect`")

    @pytest.fixture
    def connect(self, url: str) -> Any:
        """Opens a broker: (namespace=…, clock=…, maintenance=…, …) → Broker."""
        return lambda **options: connect(url, **options)

    @pytest.fixture
    def connect_async(self, url: str) -> Any:
        """Opens an asynchronous broker: (namespace=…, clock=…, maintenance=…, …) → AsyncBroker."""
        return lambda **options: connect_async(url, **options)

    @pytest.fixture
    def own_connection(self) -> Any:
        """A connection of the program's own to the database, not in a transaction; `execute("BEGIN")` begins one."""
        raise NotImplementedError("a store with `supports_transactions` binds the fixture `own_connection`")

    @pytest.fixture
    def open_broker(self, connect: Any, clock: FakeClock) -> Iterator[OpenBroker]:
        """Opens brokers whose maintenance runs only in `step()`, and closes them after the test."""
        opened: list[Broker] = []

        def open_one(namespace: str = "default", **options: Any) -> Broker:
            opened.append(connect(namespace=namespace, **{"clock": clock, "maintenance": False, **options}))
            return opened[-1]

        yield open_one
        for broker in opened:
            broker.close()

    @pytest.fixture
    def broker(self, open_broker: OpenBroker) -> Broker:
        """The broker of tests that need one."""
        return open_broker()

    @pytest.fixture
    def store(self, broker: Broker) -> Store:
        """The store of that broker, for tests that call it directly. The broker does nothing by itself meanwhile."""
        return broker.core.store

    def require(self, capability: str) -> None:
        """Skip a test, visibly, on a store that does not declare what it needs."""
        if not getattr(self, capability):
            pytest.skip(f"{type(self).__name__} does not declare `{capability}`")


class StoreDriver:
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
        (result,) = self.do(ManualChange(verb, (ManualTarget(id),), "ada", **options))
        return result

    def bury(self, lease: Lease, to: str | None = None) -> Settled:
        """End a delivery by death, in place or by a move to another queue."""
        settled = self.do(
            Settle(lease.token, OutcomeKind.BURIED, Dead(DeadReason.BURIED, to), self.version(lease.queue))
        )
        assert isinstance(settled, Settled), settled
        return settled


def put(*payloads: bytes, queue: str = "jobs", **options: Any) -> Put:
    """Items with the same options, in one call."""
    return Put(queue, tuple(NewItem(payload, "application/octet-stream", **options) for payload in payloads))


class StoreSuite(Suite):
    """The fixture of tests that call the store itself."""

    @pytest.fixture
    def direct(self, store: Store, clock: FakeClock) -> StoreDriver:
        """The store under test."""
        return StoreDriver(store, clock)


class StorePair(NamedTuple):
    """Two stores that know each other. Items die in the first one."""

    source: Broker
    target: Broker

    @property
    def source_name(self) -> str:
        """What the second one calls the first."""
        return self.source.core.store.name

    @property
    def target_name(self) -> str:
        """What the first one calls the second."""
        return self.target.core.store.name

    def there(self, queue: str) -> str:
        """The address of a queue in the second store."""
        return f"{queue}@{self.target_name}"

    def create_queues(self, **settings: Any) -> None:
        """A dead queue in the second store, and a queue in the first whose dead go there."""
        self.target.create_queue("morgue")
        self.source.create_queue("jobs", dead_queue=self.there("morgue"), **settings)

    def receive(self) -> list[Any]:
        """Only the second step of every move."""
        moves = self.source.core.store.read(ListMoves())
        calls = [Receive(move.route.to.partition("@")[0], move, self.source_name) for move in moves]
        return self.target.core.store.commit(calls).results

    def left_open(self) -> int:
        """What the second store has received and the first may still have."""
        return len(self.target.core.store.read(ListOpenMoves(self.source_name)))


class StorePairSuite(Suite):
    """A store under test and one in memory, each once as the one that items leave."""

    @pytest.fixture(params=["to memory", "from memory"])
    def pair(self, request: pytest.FixtureRequest, open_broker: OpenBroker) -> StorePair:
        """Two stores that know each other."""
        here = open_broker(store_name="here", stores={"there": "memory://"})
        there = here.on_store("there")
        return StorePair(here, there) if request.param == "to memory" else StorePair(there, here)


def only(broker: Broker, **conditions: Any) -> Item:
    """The one item that is found."""
    (item,) = broker.find(**conditions).items
    return item
