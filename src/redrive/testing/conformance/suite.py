"""The base of every part of the suite: the fixtures that a store binds, and the capabilities that it declares.

`StoreSuite` calls the store directly. `StorePairSuite` has two connected stores, one of them in memory.
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
    """A function that opens a broker on the store under test. Brokers of one test share the data, if the store can."""

    def __call__(self, namespace: str = "default", **options: Any) -> Broker:
        """Open a broker, with the options of `redrive.connect.connect`."""
        ...


class Suite:
    """The fixtures of the suite. A store overrides `url`, or `connect` and `connect_async` if it has no URL."""

    supports_processes: ClassVar[bool] = True
    """True if several open brokers share the same data."""
    is_durable: ClassVar[bool] = True
    """True if committed changes are kept when the broker is closed and opened again."""
    supports_transactions: ClassVar[bool] = False
    """True if a program can have its own transactions on the store, for `put(transaction=…)`. Bind `own_connection`."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        """Return the clock of all brokers of a test, which only the test moves."""
        return FakeClock()

    @pytest.fixture
    def url(self) -> str:
        """Return the URL of the data of this test. Each test needs a separate place."""
        raise NotImplementedError("bind the suite to a store: override the fixture `url`, or `connect`")

    @pytest.fixture
    def connect(self, url: str) -> Any:
        """Return a function that opens a broker: (namespace=…, clock=…, maintenance=…, …) → Broker."""
        return lambda **options: connect(url, **options)

    @pytest.fixture
    def connect_async(self, url: str) -> Any:
        """Return a function that opens an async broker: (namespace=…, clock=…, maintenance=…, …) → AsyncBroker."""
        return lambda **options: connect_async(url, **options)

    @pytest.fixture
    def own_connection(self) -> Any:
        """Return a connection of the program to the database, outside a transaction; `execute("BEGIN")` starts one."""
        raise NotImplementedError("a store with `supports_transactions` binds the fixture `own_connection`")

    @pytest.fixture
    def open_broker(self, connect: Any, clock: FakeClock) -> Iterator[OpenBroker]:
        """Yield a function that opens brokers without automatic maintenance; close them after the test."""
        opened: list[Broker] = []

        def open_one(namespace: str = "default", **options: Any) -> Broker:
            opened.append(connect(namespace=namespace, **{"clock": clock, "maintenance": False, **options}))
            return opened[-1]

        yield open_one
        for broker in opened:
            broker.close()

    @pytest.fixture
    def broker(self, open_broker: OpenBroker) -> Broker:
        """Return the broker of tests that need only one."""
        return open_broker()

    @pytest.fixture
    def store(self, broker: Broker) -> Store:
        """Return the store of `broker`, for tests that call it directly. The broker makes no other calls."""
        return broker.core.store

    def require(self, capability: str) -> None:
        """Skip the test, visibly, if the store does not declare this capability."""
        if not getattr(self, capability):
            pytest.skip(f"{type(self).__name__} does not declare `{capability}`")


class StoreDriver:
    """A store that tests call directly, with short methods for frequent calls."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock

    def commit(self, *calls: Call) -> Commit:
        """Commit all calls in one transaction."""
        return self.store.commit(calls)

    def do(self, call: Call) -> Any:
        """Commit one call, and return its result."""
        (result,) = self.commit(call).results
        return result

    def read(self, query: Query) -> Any:
        """Return the answer to a query."""
        return self.store.read(query)

    def queue(self, name: str = "jobs", **settings: Any) -> None:
        """Create a queue."""
        created = self.do(CreateQueue(name, QueueSettings(**settings)))
        assert not isinstance(created, Exception), created

    def version(self, queue: str = "jobs") -> int:
        """Return the version of the settings of a queue, which verdicts name. Its numbers depend on the store."""
        version: int = self.read(GetQueue(queue)).version
        return version

    def stats(self, queue: str = "jobs") -> QueueStats:
        """Return the counts of a queue."""
        stats: QueueStats = self.read(GetStats(queue))
        return stats

    def put(self, *payloads: bytes, queue: str = "jobs", **options: Any) -> list[ItemId]:
        """Put items with the same options, and return their ids."""
        return [receipt.id for receipt in self.do(put(*payloads, queue=queue, **options))]

    def lease(self, queue: str = "jobs", limit: int = 1, **options: Any) -> Sequence[Lease]:
        """Lease up to `limit` items."""
        leased: Leased = self.do(LeaseItems(queue, limit, **options))
        return leased.leases

    def take(self, queue: str = "jobs") -> Lease:
        """Lease the next item."""
        (lease,) = self.lease(queue)
        return lease

    def get(self, id: ItemId) -> Item:
        """Return an item by any id that it had."""
        item: Item = self.read(GetItem(id))
        return item

    def change(self, verb: Verb, id: ItemId, **options: Any) -> Any:
        """Change one item manually."""
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
    """Return the call that puts items with the same options."""
    return Put(queue, tuple(NewItem(payload, "application/octet-stream", **options) for payload in payloads))


class StoreSuite(Suite):
    """The fixture of tests that call the store directly."""

    @pytest.fixture
    def direct(self, store: Store, clock: FakeClock) -> StoreDriver:
        """Return the driver of the store under test."""
        return StoreDriver(store, clock)


class StorePair(NamedTuple):
    """Two stores that are connected to each other. Items die in the first one."""

    source: Broker
    target: Broker

    @property
    def source_name(self) -> str:
        """The name of the first store in the second one."""
        return self.source.core.store.name

    @property
    def target_name(self) -> str:
        """The name of the second store in the first one."""
        return self.target.core.store.name

    def there(self, queue: str) -> str:
        """Return the address of a queue in the second store."""
        return f"{queue}@{self.target_name}"

    def create_queues(self, **settings: Any) -> None:
        """Create a dead queue in the second store, and a queue in the first one that moves dead items there."""
        self.target.create_queue("morgue")
        self.source.create_queue("jobs", dead_queue=self.there("morgue"), **settings)

    def receive(self) -> list[Any]:
        """Execute only the second step of every move."""
        moves = self.source.core.store.read(ListMoves())
        calls = [Receive(move.route.to.partition("@")[0], move, self.source_name) for move in moves]
        return self.target.core.store.commit(calls).results

    def left_open(self) -> int:
        """Return the number of moves that the second store has received and the first may not have finished."""
        return len(self.target.core.store.read(ListOpenMoves(self.source_name)))


class StorePairSuite(Suite):
    """The store under test and one in memory, each once as the source and once as the target."""

    @pytest.fixture(params=["to memory", "from memory"])
    def pair(self, request: pytest.FixtureRequest, open_broker: OpenBroker) -> StorePair:
        """Return two stores that are connected to each other."""
        here = open_broker(store_name="here", stores={"there": "memory://"})
        there = here.on_store("there")
        return StorePair(here, there) if request.param == "to memory" else StorePair(there, here)


def only(broker: Broker, **conditions: Any) -> Item:
    """Return the only item that is found."""
    (item,) = broker.find(**conditions).items
    return item
