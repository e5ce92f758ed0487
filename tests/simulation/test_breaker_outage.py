"""A dependency that is down for an hour, and an API that answers 429: what it costs items, on every store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sizes import THOROUGH

from redrive import Broker, connect
from redrive.model.breaker import LONGEST_OPEN_FOR
from redrive.model.duration import HOUR, SECOND
from redrive.model.item import Lease
from redrive.testing import FakeClock

ITEMS = 10_000 if THOROUGH else 400
RETRY_DELAY = 30
PER_SECOND = 50
"""What all workers together can do."""
Place = Callable[[str], str]


class Down(ConnectionError):
    """The dependency does not answer."""


def open_brokers(url: str, clock: FakeClock, count: int) -> list[Broker]:
    count = 1 if url.startswith("memory") else count
    return [connect(url, clock=clock, maintenance=False, durability="relaxed") for _ in range(count)]


def maintain(broker: Broker) -> None:
    while broker.run_maintenance().full:
        pass


@pytest.mark.timeout(3600 if THOROUGH else 300)
@pytest.mark.parametrize("kind", ["network", "queue"])
def test_outage_of_an_hour_costs_no_item_its_attempts(place: Place, kind: str, tmp_path: Path, slower: int) -> None:
    clock, items = FakeClock(), ITEMS // (1 if THOROUGH else slower)
    brokers = open_brokers(place(str(tmp_path)), clock, 4 if THOROUGH else 2)
    probes, failures = 2, 20
    brokers[0].create_queue(
        "calls",
        retry={"attempts": 4, "base": f"{RETRY_DELAY}s"},
        breakers={kind: {"failures": failures, "probes": probes}},
    )
    for start in range(0, items, 1_000):
        brokers[0].put_many("calls", range(start, min(items, start + 1_000)))
    began, calls = clock.now(), Counter[str]()
    back_at, latest = began + HOUR, began + HOUR + 2 * LONGEST_OPEN_FOR + RETRY_DELAY * SECOND
    while brokers[0].stats("calls").completed_total < items:
        assert clock.now() <= latest + (30 + items // PER_SECOND) * SECOND, brokers[0].list_breakers()
        is_up = clock.now() >= back_at
        known = {each.kind for each in brokers[0].list_breakers()}
        leases = [(broker, lease) for broker in brokers for lease in broker.lease("calls", PER_SECOND // len(brokers))]
        probed = [lease for _, lease in leases if lease.failures or kind == "queue"] if known else []
        assert len(probed) <= probes
        for broker, lease in leases:
            calls["answered" if is_up else "refused"] += 1
            broker.complete(lease) if is_up else broker.fail(lease, Down("no answer"))
        for broker in brokers:
            maintain(broker)
        clock.advance("1s" if leases else "30s")
    stats = brokers[0].stats("calls")
    assert (stats.dead_total, stats.put_total) == (0, items)
    # Each item fails once if it never failed before (a class), or until the breaker opens (the queue); then probes.
    first = items if kind == "network" else failures + PER_SECOND
    assert calls["refused"] <= first + PER_SECOND + probes * 20
    assert calls["answered"] == items
    for broker in brokers:
        broker.close()


def test_other_kinds_keep_their_throughput(place: Place, tmp_path: Path) -> None:
    clock = FakeClock()
    (broker,) = open_brokers(place(str(tmp_path)), clock, 1)
    broker.create_queue(
        "calls", retry={"attempts": 9, "base": "1s"}, breakers={"network": {"failures": 5, "open_for": "10s"}}
    )
    done = []
    for second in range(60):
        broker.put_many("calls", [{"bad": number == 0} for number in range(10)])
        leases = broker.lease("calls", 12)
        for lease in leases:
            broker.fail(lease, Down("no answer")) if lease.value["bad"] else broker.complete(lease)
        done.append(sum(not lease.value["bad"] for lease in leases))
        maintain(broker)
        clock.advance("1s")
        if second == 10:
            assert broker.list_breakers()
    assert sum(done[10:]) >= 0.95 * 9 * 50
    broker.close()


class Throttled:
    """An API that allows ten calls a second, and answers 429 to more."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._calls: Counter[int] = Counter()
        self.allowed = self.refused = 0

    def call(self) -> None:
        now = self._clock.now()
        second = now // SECOND
        if self._calls[second] == 10:
            self.refused += 1
            error: Any = OSError("429 Too Many Requests")
            error.status_code = 429
            error.headers = {"Retry-After": str(((second + 1) * SECOND - now) / SECOND)}
            raise error
        self._calls[second] += 1
        self.allowed += 1


@pytest.mark.timeout(3600 if THOROUGH else 300)
@pytest.mark.parametrize("concurrency", [1, 8])
def test_429_stops_the_peer_and_not_the_item(place: Place, concurrency: int, tmp_path: Path, slower: int) -> None:
    clock, items = FakeClock(), ITEMS // (1 if THOROUGH else slower)
    (broker,) = open_brokers(place(str(tmp_path)), clock, 1)
    broker.create_queue("calls", retry={"attempts": 2}, retry_after="gate")
    for start in range(0, items, 1_000):
        broker.put_many("calls", range(start, min(items, start + 1_000)))
    api, closings = Throttled(clock), 0
    while broker.stats("calls").completed_total < items:
        leases = broker.lease("calls", concurrency)
        refused = api.refused
        for lease in leases:
            _call(broker, api, lease)
        clock.advance(0.01)
        if api.refused > refused:
            closings += 1
            assert api.refused - refused <= concurrency
            assert broker.lease("calls", concurrency) == []  # nothing is leased in between
            clock.advance((SECOND - clock.now() % SECOND) / SECOND)
    assert api.allowed == items
    assert api.refused <= closings * concurrency
    if concurrency == 1:
        assert api.allowed + api.refused <= 1.1 * items
    stats = broker.stats("calls")
    assert (stats.dead_total, stats.failed_total) == (0, 0)
    broker.close()


def _call(broker: Broker, api: Throttled, lease: Lease) -> None:
    try:
        api.call()
    except OSError as error:
        broker.fail(lease, error)
    else:
        broker.complete(lease)
