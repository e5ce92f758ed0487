"""A worker whose queue's gate closes: what it leased ahead goes back uncounted, and nothing of it begins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.until import until

from redrive import App, Broker, connect
from redrive.testing.fake_clock import PATIENCE_SECONDS
from redrive.worker import dispatcher
from redrive.worker.prefetch import PrefetchController
from redrive.worker.worker import Worker

ITEMS = 30


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def broker(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(PrefetchController, "prefetch_count", lambda self, lease_timeout: ITEMS)
    monkeypatch.setattr(dispatcher, "STALE_PREFETCH_SECONDS", 3600.0)  # not because its jobs take long
    with connect(url, maintenance=False, durability="relaxed") as broker:
        yield broker


def standing(broker: Broker) -> tuple[int, int, set[int]]:
    """How many items are pending and active, and the attempts that were counted."""
    stats = broker.stats("jobs")
    items = broker.find(queue="jobs", status="any", limit=2 * ITEMS).items
    return stats.pending, stats.active, {item.counters.attempts for item in items}


def test_other_items_of_the_worker_go_back_when_a_breaker_opens(broker: Broker, url: str) -> None:
    """The breaker is opened by another process: the worker learns of it when its failure is judged again."""
    app, calls = App(), 0
    jobs = app.queue("jobs", retry={"attempts": 5, "base": "1h"})
    others = app.queue("others")
    done = threading.Event()

    @jobs.task
    def call(number: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            until(lambda: broker.stats("jobs").active == ITEMS)
            with connect(url, maintenance=False) as operator:
                operator.open_breaker("jobs", open_for="1h")
            raise ConnectionError("down")
        until(lambda: broker.stats("jobs").active == 1)  # it began when the first one ended; all others went back

    @others.task
    def finish() -> None:
        done.set()

    with app.override_broker(broker):
        for number in range(ITEMS):
            call.put(number)
        with Worker(app, broker=broker, concurrency=1):
            until(lambda: broker.stats("jobs").active == 0 and broker.stats("jobs").failed == 1)
            finish.put()
            assert done.wait(PATIENCE_SECONDS)  # the worker goes on with its other queues
    assert calls <= 2
    assert standing(broker) == (ITEMS - calls, 0, {0, 1})


def test_nothing_is_leased_ahead_where_a_retry_after_closes_the_gate(broker: Broker) -> None:
    app, active = App(), []
    jobs = app.queue("jobs", retry={"attempts": 2}, retry_after="gate")

    @jobs.task
    def call(number: int) -> None:
        active.append(broker.stats("jobs").active)
        error: Any = OSError("429 Too Many Requests")
        error.status_code, error.headers = 429, {"Retry-After": "3600"}
        raise error

    with app.override_broker(broker):
        for number in range(ITEMS):
            call.put(number)
        with Worker(app, broker=broker, concurrency=1):
            until(lambda: broker.get_queue("jobs").gates and broker.stats("jobs").active == 0)
            broker.put("jobs", "so that it asks again")
            until(lambda: broker.stats("jobs").pending == ITEMS + 1)
    assert active == [1]
    assert standing(broker) == (ITEMS + 1, 0, {0})
