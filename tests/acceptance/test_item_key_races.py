"""Idempotency keys that end with their items, while many put, complete, fail and drop: a key never has two items."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.sizes import THOROUGH

from redrive import Broker, Lease, connect
from redrive.testing.fake_clock import PATIENCE_SECONDS

PUTS = 3_000 if THOROUGH else 150
"""Of each of the two that put."""
KEYS = ("a", "b", "c")


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/redrive.db"
    if request.param in ("postgres", "redis"):
        url = request.getfixturevalue(f"{request.param}_url")
    with ExitStack() as stack:
        one = stack.enter_context(connect(url, maintenance=False))
        two = one if request.param == "memory" else stack.enter_context(connect(url, maintenance=False))
        one.create_queue("jobs", idempotency_timeout="item", retry={"attempts": 3}, max_attempts=0)
        yield one, two


class Race:
    """Two that put under a few keys, and two that work, each pair on brokers of their own."""

    def __init__(self, brokers: tuple[Broker, Broker]) -> None:
        self.brokers = brokers
        self.made: Counter[str] = Counter()
        self.duplicates = 0
        self._lock = threading.Lock()
        self._held: dict[str, str] = {}
        """The item of each key that somebody works on."""
        self._finished = threading.Event()
        self._failed: list[BaseException] = []

    def run(self) -> None:
        putting = [self._start(self._put, broker) for broker in self.brokers]
        working = [self._start(self._work, broker) for broker in self.brokers]
        for thread in putting:
            thread.join(PATIENCE_SECONDS * 10)
        self._finished.set()
        for thread in working:
            thread.join(PATIENCE_SECONDS)
        if self._failed:
            raise self._failed[0]

    def _start(self, work: Callable[[Broker], None], broker: Broker) -> threading.Thread:
        def guarded() -> None:
            try:
                work(broker)
            except BaseException as error:
                self._failed.append(error)
                self._finished.set()

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def _put(self, broker: Broker) -> None:
        for number in range(PUTS):
            if self._failed:
                return
            key = KEYS[number % len(KEYS)]
            if number % 4:
                receipt = broker.put("jobs", key, idempotency_key=key)
            else:
                receipt = broker.put_failed("jobs", key, "outside", idempotency_key=key)
            with self._lock:
                self.made[key] += not receipt.duplicate
                self.duplicates += receipt.duplicate

    def _work(self, broker: Broker) -> None:
        while not self._finished.is_set():
            for number, lease in enumerate(broker.lease("jobs", 2)):
                self._hold(lease)
                if (number + lease.deliveries) % 3 == 0:
                    self._let_go(lease)
                    broker.fail(lease, "boom")
                else:
                    self._let_go(lease)  # once it is completed, another item of the key may be leased
                    broker.complete(lease)
            for letter in broker.find(queue="jobs", limit=3).items:
                (broker.drop if letter.counters.redrives else broker.redrive)([letter.id])  # the other may be faster

    def _hold(self, lease: Lease) -> None:
        with self._lock:
            other = self._held.setdefault(lease.value, lease.id)
        assert other == lease.id, f"items {other} and {lease.id} have one key"

    def _let_go(self, lease: Lease) -> None:
        with self._lock:
            del self._held[lease.value]


@pytest.mark.timeout(600)
def test_key_never_has_two_items(
    brokers: tuple[Broker, Broker], record_property: Callable[[str, object], None]
) -> None:
    race = Race(brokers)
    race.run()
    broker = brokers[0]
    left = broker.find(status="any", limit=100).items
    assert max(Counter(item.value for item in left).values(), default=1) == 1
    stats = broker.stats("jobs")
    assert stats.put_total == race.made.total()
    assert race.made.total() >= len(KEYS)
    assert race.duplicates > 0
    assert [item and item.id for item in broker.find_by_key("jobs", KEYS)] == [
        next((item.id for item in left if item.value == key), None) for key in KEYS
    ]
    record_property("figures", f"{race.made.total()} items, {race.duplicates} duplicates")
