"""A server that is killed, connections that break anywhere: nothing acknowledged is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.children import Say, run
from tests.acceptance.load import Load
from tests.acceptance.places import places
from tests.servers.http import HttpServer
from tests.servers.mounted import Mounts
from tests.servers.proxy import HttpProxy
from tests.servers.reserved_port import ReservedPort
from tests.until import until

from redrive import Broker, connect, connect_async
from redrive.client import change_watcher
from redrive.client import remote_store as client
from redrive.errors import LeaseLost, OutcomeUnknown, StoreUnavailable
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS

Report = Callable[[str, object], None]
SHORT_SECONDS = 0.5
BOUND_SECONDS = 25.0
"""Much for a busy machine, and less than a call would wait by itself."""
ITEMS_BETWEEN = 30
PRODUCERS = 8
KILLS = 3


@pytest.fixture(scope="module")
def mounts() -> Iterator[Mounts]:
    mounts = Mounts()
    yield mounts
    mounts.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def url(mounts: Mounts, path: Path) -> Iterator[str]:
    url = mounts.mount(lambda namespace: connect_async(f"sqlite:///{path}", namespace=namespace))
    yield url
    mounts.unmount(url)


@pytest.fixture
def proxy(mounts: Mounts) -> Iterator[HttpProxy]:
    proxy = HttpProxy(mounts.port)
    yield proxy
    proxy.close()


@pytest.fixture
def far_url(url: str, mounts: Mounts, proxy: HttpProxy) -> str:
    return url.replace(f":{mounts.port}/", f":{proxy.port}/")


@pytest.fixture
def commits(url: str) -> str:
    """How a request begins that commits."""
    return f"POST /{url.rpartition('/')[2]}/v1/store.commit"


@pytest.fixture
def far(far_url: str) -> Iterator[Broker]:
    with connect(far_url) as broker:
        broker.create_queue("jobs", keep_completed="1h")
        broker.put("jobs", 0)
        yield broker


def values(path: Path) -> list[int]:
    return sorted(int(standing.payload) for standing in places(path))


def some_work(load: Load) -> None:
    enough = load.outcomes["complete ok"] + ITEMS_BETWEEN
    load.wait_until(lambda: load.outcomes["complete ok"] >= enough)


def some_calls(load: Load, count: int) -> None:
    done = sum(load.outcomes.values())
    load.wait_until(lambda: sum(load.outcomes.values()) >= done + count)


def unknown(load: Load) -> int:
    return sum(count for outcome, count in load.outcomes.items() if outcome.endswith("unknown"))


# One call


@pytest.mark.parametrize("forward", [False, True], ids=["before", "after"])
def test_commit_that_is_cut_off_is_done_once_and_its_outcome_is_known(
    forward: bool, far: Broker, proxy: HttpProxy, commits: str, path: Path
) -> None:
    proxy.cut_at(commits, forward=forward)
    put = far.put("jobs", 1)
    proxy.cut_at(commits, forward=forward)
    first, second = far.lease("jobs", 10)
    assert second.id == put.id
    proxy.cut_at(commits, forward=forward)
    far.complete(first)
    with pytest.raises(LeaseLost):
        far.complete(first)
    proxy.cut_at(commits, forward=forward)
    far.bury(second)
    proxy.cut_at(commits, forward=forward)
    far.create_queue("mails")
    assert proxy.cuts == 5
    assert values(path) == [0, 1]
    assert (far.stats("jobs").completed_total, far.stats("jobs").dead) == (1, 1)


@pytest.mark.parametrize("forward", [False, True], ids=["before", "after"])
def test_query_whose_connection_is_lost_is_asked_again(forward: bool, far: Broker, proxy: HttpProxy) -> None:
    proxy.cut_at("POST", forward=forward)
    assert far.stats("jobs").pending == 1
    assert proxy.cuts == 1


def test_half_of_a_request_is_none(url: str, mounts: Mounts, path: Path) -> None:
    with connect(url) as broker:
        broker.create_queue("jobs")
        body = _body_of_a_put(broker)
        place = url.rpartition("/")[2]
        head = f"POST /{place}/v1/store.commit HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        for length in range(0, len(body), 7):
            with socket.create_connection(("127.0.0.1", mounts.port)) as line:
                line.sendall(head.encode() + body[:length])
        broker.put("jobs", 1)
    assert values(path) == [1]


def _body_of_a_put(broker: Broker) -> bytes:
    store: Any = broker.core.store
    sent: list[bytes] = []
    post = store._line.post

    def keep(route: str, body: bytes, seconds: float) -> Any:
        sent.append(body)
        raise client.RequestNotSent("kept")

    store._line.post = keep
    try:
        with pytest.raises(StoreUnavailable):
            broker.put("jobs", 99)
    finally:
        store._line.post = post
    return sent[0]


def test_idle_connections_that_were_cut_are_no_error(far: Broker, proxy: HttpProxy) -> None:
    for number in range(1, 20):
        proxy.reset()
        far.put("jobs", number)
        proxy.reset()
        assert far.stats("jobs").pending == number + 1


def test_calls_that_nobody_answers_end_with_an_error_that_says_so(
    far_url: str, proxy: HttpProxy, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(far_url) as far:
        far.create_queue("jobs")
        far.put("jobs", 0)
        proxy.go_dark()
        begun = time.monotonic()
        with monkeypatch.context() as impatient:
            impatient.setattr(client, "ANSWER_SECONDS", SHORT_SECONDS)
            impatient.setattr(client, "LOST_SECONDS", SHORT_SECONDS)
            impatient.setattr(client, "UNSENT_SECONDS", 0.2)
            with pytest.raises(OutcomeUnknown):
                far.put("jobs", 1)
            with pytest.raises(StoreUnavailable):
                far.stats("jobs")
        assert time.monotonic() - begun < BOUND_SECONDS
        proxy.light_up()
        far.put("jobs", 2)
        assert far.stats("jobs").pending == 2
    assert values(path) == [0, 2]


def test_server_that_is_not_there_is_not_available(mounts: Mounts) -> None:
    reserved = ReservedPort()
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match="refused"):
        connect(f"http://127.0.0.1:{reserved.number}")
    assert time.monotonic() - begun < BOUND_SECONDS


def test_waiting_worker_is_woken_through_connections_that_break(far: Broker, proxy: HttpProxy, url: str) -> None:
    far.complete(far.lease("jobs")[0])
    with connect(url) as near:
        for number in range(1, 6):
            worker = Background(lambda: far.lease("jobs", wait="30s"))
            proxy.reset()
            near.put("jobs", number)
            (lease,) = worker.result()
            assert lease.value == number
            far.complete(lease)


def test_close_does_not_wait_for_the_server(far: Broker, proxy: HttpProxy) -> None:
    far.complete(far.lease("jobs")[0])
    assert far.lease("jobs", wait="50ms") == []
    begun = time.monotonic()
    far.close()
    assert time.monotonic() - begun < change_watcher.POLL_SECONDS / 2
    assert not [thread for thread in threading.enumerate() if thread.name == "redrive-watch"]


def test_fork_while_a_worker_waits(far: Broker, path: Path) -> None:
    far.complete(far.lease("jobs")[0])
    waits = Background(lambda: far.lease("jobs", wait="30s"))
    while not far.core.notify._waiters:
        time.sleep(0.001)

    def work(say: Say) -> None:
        far.put("jobs", 1)
        far.put("jobs", 2)
        (lease,) = far.lease("jobs", wait="30s")
        far.complete(lease)
        say(lease.id.encode())
        far.close()

    said = run(work).said
    (lease,) = waits.result()
    assert lease.id.encode() != said
    far.complete(lease)
    assert far.stats("jobs").completed_total == 3


@pytest.mark.parametrize("forward", [False, True], ids=["before", "after"])
def test_outcome_is_unknown_where_the_server_that_knew_it_was_started_anew(
    forward: bool,
    far: Broker,
    proxy: HttpProxy,
    commits: str,
    mounts: Mounts,
    url: str,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But not of what may be repeated: that is repeated. A put is, under a key that outlives its item."""
    far.create_queue("brief", idempotency_timeout="item")
    restarted = threading.Event()
    ask_again = client._Tries.again

    def restart() -> None:
        until(lambda: proxy.cuts > cuts)
        mounts.restart(url)
        restarted.set()

    def ask_again_afterwards(tries: Any) -> bool:
        assert restarted.wait(PATIENCE_SECONDS)
        return ask_again(tries)

    monkeypatch.setattr(client, "LOST_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(client._Tries, "again", ask_again_afterwards)
    for queue, value, key in (("jobs", 1, None), ("jobs", 2, "two"), ("brief", 3, "three")):
        cuts = proxy.cuts
        restarted.clear()
        proxy.cut_at(commits, forward=forward)
        restarting = Background(restart)
        if value == 2:
            far.put(queue, value, idempotency_key=key)
        else:
            with pytest.raises(OutcomeUnknown):
                far.put(queue, value, idempotency_key=key)
        restarting.result()
    assert values(path) == ([0, 1, 2, 3] if forward else [0, 2])


# Under load


def test_connections_are_reset_again_and_again(
    url: str, far_url: str, proxy: HttpProxy, path: Path, record_property: Report
) -> None:
    load = Load(far_url)
    some_work(load)
    proxy.delay = 0.003
    cut = 0
    for _ in range(8):
        some_calls(load, 10)
        cut += proxy.reset()
    proxy.delay = 0.0
    resumed = round(load.resumes(), 2)
    told = load.finish(url, path)
    record_property("figures", f"{cut} cut, resumed {resumed}, {told}, {dict(load.outcomes)}")
    assert unknown(load) == 0  # the server remembers what it answered


def test_answers_to_commits_are_cut_off(
    url: str, far_url: str, proxy: HttpProxy, commits: str, path: Path, record_property: Report
) -> None:
    load = Load(far_url)
    some_work(load)
    for number in range(24):
        proxy.cut_at(commits, forward=number % 2 == 0)
        load.wait_until(lambda number=number: proxy.cuts > number)
    load.resumes()
    told = load.finish(url, path)
    record_property("figures", f"{proxy.cuts} cut, {told}, {dict(load.outcomes)}")
    assert unknown(load) == 0


# A server that is killed


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpServer]:
    server = HttpServer(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    yield server
    server.stop()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_server_restarts(
    how: signal.Signals,
    server: HttpServer,
    tmp_path: Path,
    record_property: Report,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "redrive.client.remote_store.LOST_SECONDS", 1.0
    )  # until it gives up what was sent and not answered
    load = Load(server.url)
    resumed = []
    for _ in range(KILLS):
        some_work(load)
        server.stop(how)
        refused = load.outcomes["put refused"]
        load.wait_until(lambda refused=refused: load.outcomes["put refused"] > refused)
        server.start()
        resumed.append(round(load.resumes(), 2))
    told = load.finish(server.url, tmp_path / "jobs.db")
    record_property("figures", f"resumed {resumed}, {told}, {dict(load.outcomes)}")


def test_puts_with_keys_survive_kills_of_the_server(server: HttpServer, tmp_path: Path) -> None:
    """Each producer puts one number after the other, each until it is acknowledged; the server is killed meanwhile."""
    with connect(server.url) as broker:
        broker.create_queue("jobs")
    acknowledged: list[int] = []
    stop = threading.Event()

    async def produce(broker: Any, number: int) -> None:
        count = 0
        while not stop.is_set():
            value = number + PRODUCERS * count
            try:
                await broker.put("jobs", value, idempotency_key=f"key {value}")
            except (StoreUnavailable, OutcomeUnknown):
                await asyncio.sleep(0.01)
                continue
            acknowledged.append(value)
            count += 1

    async def produce_all() -> None:
        async with connect_async(server.url) as broker:
            await asyncio.gather(*(produce(broker, number) for number in range(PRODUCERS)))

    producers = Background(lambda: asyncio.run(produce_all()))
    try:
        for _ in range(KILLS):
            enough = len(acknowledged) + 10 * PRODUCERS
            end = time.monotonic() + PATIENCE_SECONDS
            while len(acknowledged) < enough:
                assert time.monotonic() < end
                time.sleep(0.002)
            server.kill()
            server.start()
    finally:
        stop.set()
        producers.result()
    there = values(tmp_path / "jobs.db")
    assert len(there) == len(set(there))
    assert set(acknowledged) <= set(there)
    assert len(set(there) - set(acknowledged)) <= PRODUCERS
