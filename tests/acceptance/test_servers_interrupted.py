"""Whatever is raised from outside in a call to PostgreSQL or Redis, and wherever: it comes out as itself, nothing is
done twice or reported wrongly, and the next call gets its own answer."""

from __future__ import annotations

import gc
import itertools
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from tests.acceptance.interrupted import DRIVERS, RAISED, STORES, Outcome, at_every_line
from tests.acceptance.places import places
from tests.sizes import THOROUGH

from redrive import Broker, connect
from redrive.contract.admin_calls import SetPaused
from redrive.contract.item_calls import Complete, LeaseItems, NewItem, Put
from redrive.contract.queries import GetItem, GetQueue, GetStats
from redrive.errors import StoreFailed
from redrive.model.item import Lease, Receipt
from redrive.store import Store

Report = Callable[[str, object], None]
FOLDERS = {"ours": (STORES,), "drivers": DRIVERS}
FEWER = {"postgres": {"ours": 9, "drivers": 41}, "redis": {"ours": 3, "drivers": 3}}
"""Every n-th line, unless there is time. Odd, so that everything is raised that can be."""


def step(where: str, url: str) -> int:
    return 1 if THOROUGH else FEWER["redis" if url.startswith("redis") else "postgres"][where]


@pytest.fixture(autouse=True)
def hush(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is raised while something is destroyed cannot be given to anybody, and nothing is wrong."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    yield
    gc.collect()


@pytest.fixture(params=["postgres_url", "redis_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with connect(url, maintenance=False) as broker:
        broker.create_queue("jobs", keep_completed="1h")
        broker.create_queue("others", keep_completed="1h")
        yield broker


@pytest.fixture
def store(broker: Broker) -> Store:
    return broker.core.store


def put(store: Store, value: int) -> Receipt:
    item = NewItem(str(value).encode(), "application/json", is_plain=True)
    receipt: Receipt = store.commit([Put("jobs", (item,))]).results[0][0]
    return receipt


def check_own_answers(store: Store, number: int) -> None:
    """The next calls, of each kind, get the answers to what they asked."""
    receipt = put(store, -number)
    assert store.read(GetItem(receipt.id)).payload == str(-number).encode()
    assert store.read(GetStats("others")).queue == "others"


def check_raised(outcome: Outcome) -> None:
    assert outcome.error is None or outcome.error is outcome.raised, f"{outcome.place}: {outcome.error!r}"


@pytest.mark.parametrize("where", FOLDERS)
def test_put(where: str, store: Store, url: str, record_property: Report) -> None:
    acknowledged, interrupted = [], []
    for outcome in at_every_line(lambda number: put(store, number), FOLDERS[where], step=step(where, url)):
        check_raised(outcome)
        number = int(str(outcome.raised).rpartition(" ")[2])
        (acknowledged if outcome.error is None else interrupted).append(number)
        check_own_answers(store, number)
    assert len(interrupted) > 20
    there = Counter(int(standing.payload) for standing in places(url))
    both = [number for number in interrupted if there[number]]
    record_property("figures", f"{len(interrupted)} interrupted, {len(both)} of them there, {len(acknowledged)} not")
    print(f"{len(interrupted)} interrupted, {len(both)} of them there, {len(acknowledged)} acknowledged")
    assert max(there.values()) == 1
    assert both
    assert len(both) < len(interrupted)
    assert all(there[number] for number in (*acknowledged, *(-number for number in (*acknowledged, *interrupted))))


@pytest.mark.parametrize("where", FOLDERS)
def test_lease(where: str, store: Store, url: str) -> None:
    """Leases that were given and never arrived are nobody's, and run out."""
    count = 0
    for outcome in at_every_line(
        lambda _: store.commit([LeaseItems("jobs", 1)]), FOLDERS[where], step=step(where, url)
    ):
        check_raised(outcome)
        check_own_answers(store, count := count + 1)
    assert Counter(standing.deliveries for standing in places(url)).keys() <= {0, 1}


@pytest.mark.parametrize("where", FOLDERS)
def test_complete(where: str, store: Store, url: str) -> None:
    lease = leased(store, 0)
    count = 0
    for outcome in at_every_line(
        lambda _: store.commit([Complete(lease.token)]),  # noqa: B023
        FOLDERS[where],
        step=step(where, url),
    ):
        check_raised(outcome)
        check_own_answers(store, count := count + 1)
        status = store.read(GetItem(lease.id)).status
        assert status == "completed" or (status == "active" and outcome.error is not None)
        if status == "completed":
            lease = leased(store, count)
    there = Counter(int(standing.payload) for standing in places(url) if int(standing.payload) >= 0)
    assert set(there.values()) == {1}


def leased(store: Store, value: int) -> Lease:
    """A lease of a new item, in a queue in which there is nothing else."""
    item = NewItem(str(value).encode(), "application/json", is_plain=True)
    (lease,) = store.commit([Put("others", (item,)), LeaseItems("others", 1)]).results[1].leases
    assert lease.payload == item.payload
    return lease


def test_change_of_a_queue(store: Store, url: str) -> None:
    """On Redis it is read, worked out and written in turn."""
    paused, count = False, 0
    for outcome in at_every_line(
        lambda _: store.commit([SetPaused("others", not paused, "me")]),  # noqa: B023
        (STORES,),
        step=step("ours", url),
    ):
        now = store.read(GetQueue("others")).paused
        if isinstance(outcome.error, StoreFailed):  # by the rules of Redis, where signals do not strike
            assert url.startswith("redis")
            assert outcome.error.__cause__ is outcome.raised
            assert now is paused
        else:
            check_raised(outcome)
        assert outcome.error is not None or now is not paused
        paused = now
        check_own_answers(store, count := count + 1)
    places(url)


@pytest.mark.parametrize("after", [False, True])
def test_socket_of_redis(after: bool, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler runs within a call of the system, before or after it did what it was asked to do."""
    left = itertools.count(0, -1)
    raised: BaseException = TimeoutError()

    def call(work: Callable[..., int | None], *args: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return work(*args)  # the one that listens: no handler runs there
        now = next(left) == 1
        if now and not after:
            raise raised
        done = work(*args)
        if now:
            raise raised
        return done

    class Socket(socket.socket):
        def sendall(self, *args: Any) -> None:
            call(super().sendall, *args)

        def recv_into(self, *args: Any) -> int:  # type: ignore[override]
            found: int = call(super().recv_into, *args)
            return found

    connect_ = redis.connection.Connection._connect

    def connected(self: redis.connection.Connection) -> socket.socket:
        made = connect_(self)
        timeout = made.gettimeout()
        ours = Socket(fileno=made.detach())
        ours.settimeout(timeout)
        return ours

    monkeypatch.setattr(redis.connection.Connection, "_connect", connected)
    with connect(redis_url, maintenance=False) as broker:
        broker.create_queue("jobs")
        broker.create_queue("others")
        store = broker.core.store
        put(store, 0)
        interrupted = []
        for number in range(1, 40):
            at = (number + 3) // 4  # each call with each of the exceptions
            raised = RAISED[number % len(RAISED)]("raised")
            left = itertools.count(at, -1)
            problem = None
            try:
                put(store, number)
            except BaseException as error:
                problem = error
                interrupted.append(number)
            assert problem in (None, raised)
            left = itertools.count(0, -1)
            check_own_answers(store, number)
    assert len(interrupted) >= 8  # a send and an answer
    there = Counter(int(standing.payload) for standing in places(redis_url))
    assert max(there.values()) == 1
    assert all(there[number] for number in range(1, 40) if number not in interrupted)
    assert {bool(there[number]) for number in interrupted} == ({True} if after else {False, True})
