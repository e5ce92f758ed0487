"""Hearing another process at once: by the connection on which its notices come in, not by asking again and again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from tests.acceptance.children import Say, run
from tests.until import until

from redrive import Broker, connect
from redrive.broker import notifier
from redrive.model.duration import HOUR
from redrive.stores import notifications
from redrive.testing import FakeClock
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS


@pytest.fixture(params=["postgres", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(autouse=True)
def _nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hears something was rung for: nobody asks by himself."""
    monkeypatch.setattr(notifier, "POLL_INTERVAL", HOUR)
    monkeypatch.setattr(notifications, "POLL_EVERY", HOUR)
    monkeypatch.setattr(notifications, "RETRY_SECONDS", 0.0)


@pytest.fixture
def opened(url: str) -> Iterator[Callable[[], Broker]]:
    """Opens brokers that share nothing but the server."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(connect(url, maintenance=False))


@pytest.fixture
def broker(opened: Callable[[], Broker]) -> Broker:
    broker = opened()
    broker.create_queue("jobs")
    return broker


class Bell:
    """What a store rings."""

    def __init__(self, broker: Broker) -> None:
        self._store = broker.core.store
        self._rung = threading.Event()
        self.count = 0
        self._store.subscribe(self._ring)
        until(lambda: self._store.poll_changes() is not None)

    def _ring(self) -> None:
        self.count += 1
        self._rung.set()

    def wait(self) -> Any:
        """What there is to tell when it has rung."""
        assert self._rung.wait(PATIENCE_SECONDS), "it did not ring"
        self._rung.clear()
        return self._store.poll_changes()


def cut_the_listener(url: str) -> None:
    """On the server, once there is one: those that were closed or cut before may take a moment to go."""
    if url.startswith("postgresql"):
        with psycopg.connect(url.partition("?")[0], autocommit=True) as admin:
            listeners = "FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            until(lambda: admin.execute(f"SELECT count(*) {listeners}").fetchone() == (1,))
            assert admin.execute(f"SELECT pg_terminate_backend(pid) {listeners}").fetchall() == [(True,)]
        return
    with contextlib.closing(redis.Redis.from_url(urlsplit(url)._replace(query="").geturl())) as client:
        until(lambda: len(client.client_list(_type="pubsub")) == 1)
        assert client.client_kill_filter(_type="pubsub") == 1


def test_it_rings_for_what_another_process_puts(broker: Broker, opened: Callable[[], Broker]) -> None:
    bell, other = Bell(opened()), opened()
    for number in range(3):
        other.put("jobs", number)
        assert bell.wait() == {"jobs"}
        assert bell.count == number + 1


def test_it_rings_once_until_somebody_asks(broker: Broker, opened: Callable[[], Broker]) -> None:
    bell, witness, other = Bell(opened()), Bell(opened()), opened()
    for number in range(3):
        other.put("jobs", number)
        assert witness.wait() == {"jobs"}
    until(lambda: bell.count > 0)  # its thread may come later than that of the witness
    assert (bell.count, witness.count) == (1, 3)
    assert bell.wait() == {"jobs"}
    other.put("jobs", 3)
    bell.wait()


def test_it_does_not_ring_for_what_the_process_itself_puts(broker: Broker, opened: Callable[[], Broker]) -> None:
    listener = opened()
    bell, other = Bell(listener), opened()
    listener.put("jobs", 1)
    other.create_queue("mails")
    other.put("mails", 1)
    heard: set[str] = set()
    while "mails" not in heard:
        heard |= set(bell.wait())
    assert heard == {"mails"}


def test_it_rings_again_after_its_connection_was_lost(broker: Broker, opened: Callable[[], Broker], url: str) -> None:
    bell, other = Bell(opened()), opened()
    for number in range(3):
        cut_the_listener(url)
        while bell.wait() is not None:  # a server says goodbye before it goes
            pass
        until(lambda: bell._store.poll_changes() is not None)
        other.put("jobs", number)
        while bell.wait() != {"jobs"}:  # it may ring once more for the old connection
            pass


def test_waiting_lease_is_woken_by_another_process(broker: Broker, url: str) -> None:
    waiting = Background(lambda: broker.lease("jobs", wait="1h"))
    until(lambda: _listens(broker))
    program = "import sys, redrive\nwith redrive.connect(sys.argv[1]) as broker: broker.put('jobs', 7)"
    subprocess.run([sys.executable, "-c", program, url], check=True, timeout=PATIENCE_SECONDS)
    assert [lease.value for lease in waiting.result()] == [7]


def test_waiting_lease_is_woken_after_the_listener_was_lost_while_it_waited(
    broker: Broker, opened: Callable[[], Broker], url: str
) -> None:
    waiting = Background(lambda: broker.lease("jobs", wait="1h"))
    until(lambda: _listens(broker))
    subscriber = _notifications(broker)._subscriber
    cut_the_listener(url)
    until(lambda: _listens(broker) and _notifications(broker)._subscriber is not subscriber)
    opened().put("jobs", 7)
    assert [lease.value for lease in waiting.result()] == [7]


def test_forked_child_is_woken_too_and_the_parent_goes_on(
    broker: Broker, opened: Callable[[], Broker], url: str
) -> None:
    first = Background(lambda: broker.lease("jobs", wait="1h"))
    until(lambda: _listens(broker))
    opened().put("jobs", 1)
    assert [lease.value for lease in first.result()] == [1]

    def work(say: Say) -> None:
        waiting = Background(lambda: broker.lease("jobs", wait="1h"))
        until(lambda: _listens(broker))
        say(b"waits")
        with connect(url, maintenance=False) as other:
            other.put("jobs", 2)
        say(str([lease.value for lease in waiting.result()]).encode())

    assert run(work).said == b"waits[2]"
    second = Background(lambda: broker.lease("jobs", wait="1h"))
    until(lambda: _listens(broker))
    opened().put("jobs", 3)
    assert [lease.value for lease in second.result()] == [3]


def test_closed_store_leaves_no_thread(url: str) -> None:
    with connect(url, maintenance=False) as broker:
        Bell(broker)
        assert "redrive-subscriber" in {thread.name for thread in threading.enumerate()}
    assert "redrive-subscriber" not in {thread.name for thread in threading.enumerate()}


def _notifications(broker: Broker) -> Any:
    return broker.core.store._notifications  # type: ignore[attr-defined]


def _listens(broker: Broker) -> bool:
    """Somebody waits, and the thread that watches for him has nothing to do but to wait for the bell."""
    core = broker.core
    return _notifications(broker)._subscriber is not None and bool(core.notify._waiters.get("jobs"))


def test_waiters_poll_by_the_clock_of_the_store(postgres_url: str) -> None:
    clock = FakeClock()
    with connect(postgres_url, clock=clock, maintenance=False) as broker:
        listener = vars(broker.core.store)["_notifications"]
        while listener.received() is None:  # it connects, and polls
            pass
        clock.advance("1h")
        assert listener.received() is None
