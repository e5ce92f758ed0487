"""A worker that announces itself: at once, every ten seconds, and no more when it has gone."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.until import until

from redrive import Broker, connect
from redrive.broker.flows import registrations
from redrive.contract.queries import ListRegistrations
from redrive.errors import StoreUnavailable
from redrive.testing.fake_clock import FakeClock
from redrive.worker.heartbeat import EVERY, WorkerRegistration


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with connect("memory://", clock=clock, maintenance=False) as broker:
        yield broker


@pytest.fixture
def presence(broker: Broker) -> Iterator[WorkerRegistration]:
    presence = WorkerRegistration(broker, "w1", ["jobs"], ["send"], 4, running=lambda: 3)
    yield presence
    presence.close()


def times(broker: Broker) -> int:
    """How often it has said that it is there."""
    found = broker.core.read(ListRegistrations("worker"))
    return found[0].version if found else 0


def test_it_says_who_it_is(broker: Broker, clock: FakeClock, presence: WorkerRegistration) -> None:
    presence.announce()
    (info,) = broker.workers()
    assert (info.name, info.pid, info.queues, info.handlers) == ("w1", os.getpid(), ("jobs",), ("send",))
    assert (info.concurrency, info.running, info.started_at, info.seen_at) == (4, 3, clock.now(), clock.now())
    assert info.versions["python"] == platform.python_version()
    assert info.versions["redrive"]
    assert str(info).startswith(f"w1: pid {os.getpid()} on {info.host} since 2026-01-01")


def test_it_says_so_at_once_and_every_ten_seconds(
    broker: Broker, clock: FakeClock, presence: WorkerRegistration
) -> None:
    presence.start()
    for count in range(1, 4):
        until(lambda count=count: times(broker) == count)
        clock.until_waiting()
        clock.advance("9.999999s")
        assert times(broker) == count
        clock.advance(0.000001)
    assert 2 * EVERY < registrations.TIMEOUT


def test_it_is_gone_at_once_when_it_is_closed(broker: Broker, presence: WorkerRegistration) -> None:
    presence.start()
    until(lambda: times(broker) == 1)
    presence.close()
    assert broker.workers() == ()
    assert "redrive-presence" not in {thread.name for thread in threading.enumerate()}


def test_store_that_does_not_answer_is_asked_again(
    broker: Broker, clock: FakeClock, presence: WorkerRegistration, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = broker.core.store
    commit, failing = store.commit, [True]

    def commit_later(*arguments: Any) -> Any:
        if failing:
            failing.clear()
            raise StoreUnavailable("memory", "away")
        return commit(*arguments)

    monkeypatch.setattr(store, "commit", commit_later)
    presence.start()
    until(lambda: not failing)
    clock.until_waiting()
    assert broker.workers() == ()
    clock.advance("10s")
    until(lambda: times(broker) == 1)


def test_broker_that_was_closed_ends_it(broker: Broker, clock: FakeClock, presence: WorkerRegistration) -> None:
    presence.start()
    until(lambda: times(broker) == 1)
    broker.close()
    clock.advance("10s")
    until(lambda: not presence._thread.is_alive())
