"""Calls that a transaction leaves to a second one, which nothing runs beside: each call is answered for what it did.

Such a call completes a dead letter and puts items: its keys cannot be locked under the lock that is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.acceptance.places import places
from tests.servers.postgres import Server
from tests.servers.proxy import Proxy

from redrive import Broker, Lease, connect
from redrive.contract import Call
from redrive.contract.item_calls import Complete, NewItem, Put
from redrive.errors import Closed, LeaseLost, OutcomeUnknown
from redrive.model.item import Settled
from redrive.model.payload import JSON
from redrive.stores.postgres import PostgresStore, low_water_marks
from redrive.testing.fake_clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def proxy(postgres: Server) -> Iterator[Proxy]:
    proxy = Proxy(postgres.port)
    yield proxy
    proxy.close()


@pytest.fixture
def broker(postgres: Server, postgres_url: str, proxy: Proxy, clock: FakeClock) -> Iterator[Broker]:
    """Behind the proxy."""
    url = postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")
    with connect(url, clock=clock, maintenance=False) as broker:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        broker.create_queue("next")
        yield broker


def leased_letter(broker: Broker) -> Lease:
    broker.put("jobs", 1)
    broker.fail(broker.lease("jobs")[0], "boom", final=True)
    return broker.lease("morgue")[0]


def calls(lease: Lease) -> list[Call]:
    """One that is done by the first transaction, and one that is left."""
    put = Put("next", (NewItem(b"2", JSON, idempotency_key="k"),))
    return [Put("next", (NewItem(b"1", JSON, is_plain=True),)), Complete(lease.token, puts=(put,))]


def between(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Do something when the first transaction is committed, and the second one not begun."""
    commit_rest = PostgresStore._commit_rest

    def wrapped(self: PostgresStore, *values: Any) -> Any:
        monkeypatch.setattr(PostgresStore, "_commit_rest", commit_rest)
        meanwhile()
        return commit_rest(self, *values)

    monkeypatch.setattr(PostgresStore, "_commit_rest", wrapped)


def payloads(url: str) -> list[bytes]:
    return sorted(item.payload for item in places(url) if item.queue == "next")


@pytest.mark.parametrize("forward", [True, False])
def test_unknown_outcome_is_that_of_the_left_call_alone(
    broker: Broker, proxy: Proxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch, forward: bool
) -> None:
    lease = leased_letter(broker)
    between(monkeypatch, lambda: proxy.cut_at("COMMIT", forward=forward))
    put, completed = broker.core.store.commit(calls(lease)).results
    assert proxy.cuts == 1
    assert len(put) == 1
    assert isinstance(completed, OutcomeUnknown)
    assert payloads(postgres_url) == ([b"1", b"2"] if forward else [b"1"])
    if forward:
        with pytest.raises(LeaseLost):
            broker.complete(lease)
    else:
        broker.complete(lease)


def test_left_call_that_is_lost_before_its_commit_is_done_again(
    broker: Broker, proxy: Proxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = leased_letter(broker)
    between(monkeypatch, lambda: proxy.cut_at("SELECT pg_advisory_xact_lock"))
    _, completed = broker.core.store.commit(calls(lease)).results
    assert proxy.cuts == 1
    assert isinstance(completed, Settled)
    assert payloads(postgres_url) == [b"1", b"2"]


def test_unexpected_error_of_the_left_call_is_not_that_of_the_others(
    broker: Broker, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = broker.core.store

    def fail(work: object) -> None:
        raise MemoryError

    lease = leased_letter(broker)
    between(monkeypatch, lambda: monkeypatch.setattr(store._engine, "transact", fail))
    put, completed = broker.core.committer.commit(calls(lease))
    assert len(put) == 1
    assert isinstance(completed, OutcomeUnknown)
    assert payloads(postgres_url) == [b"1"]


def test_store_that_is_closed_in_between_refuses_only_the_left_call(
    broker: Broker, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lease = broker.core.store, leased_letter(broker)
    between(monkeypatch, store.close)
    put, completed = store.commit(calls(lease)).results
    assert len(put) == 1
    assert isinstance(completed, Closed)
    assert payloads(postgres_url) == [b"1"]


def test_left_call_that_had_to_wait_puts_nothing_below_a_mark(
    broker: Broker, clock: FakeClock, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks pass the instant of a transaction that has ended: the second one has its own."""
    monkeypatch.setattr(low_water_marks, "MOVE_EVERY_SECONDS", 0.0)
    lease = leased_letter(broker)
    with connect(postgres_url, clock=clock, maintenance=False) as other:

        def work() -> None:
            clock.advance("10s")
            for taken in other.lease("next", 10):
                other.complete(taken)
            other.put("next", "later")
            for _ in range(3):
                other.run_maintenance()
            other.complete(other.lease("next")[0])
            other.run_maintenance()

        between(monkeypatch, work)
        broker.core.store.commit(calls(lease))
        assert [taken.value for taken in other.lease("next")] == [2]
