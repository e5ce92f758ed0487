"""What `redrive.testing` gives to the tests of others."""

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from redrive import Broker, Lease
from redrive.clock import Instant
from redrive.errors import InvalidDuration
from redrive.testing import Drained, FakeClock, drain, memory_broker
from redrive.testing.conformance import StoreConformance, Suite


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with memory_broker(clock) as opened:
        yield opened


def test_clock_stands_still_until_it_is_moved(clock: FakeClock) -> None:
    before = clock.now()
    assert clock.now() == before
    assert clock.advance("1m30s") == before + 90_000_000
    assert clock.advance(timedelta(milliseconds=5)) == clock.now() == before + 90_005_000


def test_clock_starts_where_it_is_told() -> None:
    assert FakeClock(datetime(1970, 1, 1, 0, 0, 1, 7, tzinfo=UTC)).now() == 1_000_007


def test_clock_does_not_go_back(clock: FakeClock) -> None:
    with pytest.raises(InvalidDuration):
        clock.advance(-1)


def test_wait_returns_when_the_instant_has_come_and_leaves_the_event_alone(clock: FakeClock) -> None:
    event = threading.Event()
    until = Instant(clock.now() + 10_000_000)
    waiter = threading.Thread(target=clock.wait, args=(event, until), daemon=True)
    waiter.start()
    clock.until_waiting()
    clock.advance("9s")
    assert waiter.is_alive()
    clock.advance("1s")
    waiter.join(120)
    assert not waiter.is_alive()
    assert not event.is_set()


def test_wait_returns_when_the_event_is_set(clock: FakeClock) -> None:
    event = threading.Event()
    waiter = threading.Thread(target=clock.wait, args=(event, None), daemon=True)
    waiter.start()
    clock.until_waiting()
    event.set()
    waiter.join(120)
    assert not waiter.is_alive()


def test_wait_for_an_instant_that_has_come_returns_at_once(clock: FakeClock) -> None:
    clock.wait(threading.Event(), clock.now())


def test_drain_completes_what_returns_and_fails_what_raises(broker: Broker) -> None:
    broker.create_queue("jobs", retry={"attempts": 2})
    broker.put_many("jobs", range(6))

    def handler(lease: Lease) -> None:
        if lease.value % 3 == 0:
            raise ValueError("no")

    assert drain(broker, "jobs", handler) == Drained(completed=4, retried=2, dead=2)
    assert broker.stats("jobs").dead == 2


def test_drain_leaves_what_waits_for_later(broker: Broker, clock: FakeClock) -> None:
    broker.create_queue("jobs", retry={"attempts": 2, "cooldown": "1m"})
    broker.put("jobs", 1)

    def handler(lease: Lease) -> None:
        raise ValueError("no")

    assert drain(broker, "jobs", handler) == Drained(retried=1)
    clock.advance("1m")
    assert drain(broker, "jobs", handler) == Drained(dead=1)


def test_drain_counts_deaths_into_a_dead_queue(broker: Broker) -> None:
    broker.create_queue("morgue")
    broker.create_queue("jobs", dead_queue="morgue")
    broker.put("jobs", 0)
    assert drain(broker, "jobs", lambda lease: 1 / lease.value) == Drained(dead=1)


def test_drain_of_a_queue_without_end_is_stopped(broker: Broker) -> None:
    broker.create_queue("jobs")
    broker.put("jobs", 1)
    with pytest.raises(AssertionError, match="after 20 deliveries"):
        drain(broker, "jobs", lambda lease: broker.put("jobs", 1), limit=20)


def test_no_part_of_the_suite_hides_a_test_of_another() -> None:
    parts = [part for part in StoreConformance.__mro__[1:] if issubclass(part, Suite)]
    names = Counter(name for part in parts for name in vars(part) if name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) > 300


def test_suite_asks_for_a_store() -> None:
    url = vars(Suite)["url"]
    function = getattr(url, "_get_wrapped_function", lambda: url.__wrapped__)()
    with pytest.raises(NotImplementedError, match="override the fixture `url`"):
        function(Suite())
