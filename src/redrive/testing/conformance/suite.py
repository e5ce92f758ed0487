"""What every part of the suite stands on: the fixtures that a store binds, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import pytest

from redrive import Broker
from redrive.connect import connect, connect_async
from redrive.store import Store
from redrive.testing.clock import FakeClock


class OpenBroker(Protocol):
    """Opens a broker on the store under test. Every call of one test meets the same data, where it is shared."""

    def __call__(self, namespace: str = "default", **options: Any) -> Broker:
        """Options are those of `redrive.connect.connect`."""
        ...


class Suite:
    """The fixtures of the suite. A store overrides `url`, or `connect` and `connect_async` where it has no URL."""

    shared: ClassVar[bool] = True
    """Several brokers that are open at once see the same data."""
    durable: ClassVar[bool] = True
    """What was acknowledged is there after the broker was closed and opened again."""
    transactions: ClassVar[bool] = False
    """A program can have transactions of its own on the store, for `put(within=…)`. Bind `own_connection`."""

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
        """Opens a broker: (namespace=…, clock=…, lifecycle=…, …) → Broker."""
        return lambda **options: connect(url, **options)

    @pytest.fixture
    def connect_async(self, url: str) -> Any:
        """Opens an asynchronous broker: (namespace=…, clock=…, lifecycle=…, …) → AsyncBroker."""
        return lambda **options: connect_async(url, **options)

    @pytest.fixture
    def own_connection(self) -> Any:
        """A connection of the program's own to the database, not in a transaction; `execute("BEGIN")` begins one."""
        raise NotImplementedError("a store with `transactions` binds the fixture `own_connection`")

    @pytest.fixture
    def open_broker(self, connect: Any, clock: FakeClock) -> Iterator[OpenBroker]:
        """Opens brokers whose lifecycle runs only in `step()`, and closes them after the test."""
        opened: list[Broker] = []

        def open_one(namespace: str = "default", **options: Any) -> Broker:
            opened.append(connect(namespace=namespace, **{"clock": clock, "lifecycle": False, **options}))
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
        return broker._core.store

    def require(self, capability: str) -> None:
        """Skip a test, visibly, on a store that does not declare what it needs."""
        if not getattr(self, capability):
            pytest.skip(f"{type(self).__name__} does not declare `{capability}`")
