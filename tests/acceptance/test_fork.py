"""A fork while a broker is open: parent and child both go on, and neither harms the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.children import Say, fork, join, run
from tests.acceptance.places import Where, places

from redrive import Broker, connect
from redrive.stores.postgres import PostgresStore
from redrive.stores.sqlite import checkpoint, engine
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "redrive.db"


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def where(request: pytest.FixtureRequest, path: Path) -> Where:
    if request.param == "sqlite":
        return path
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def broker(where: Where) -> Iterator[Broker]:
    with connect(where if isinstance(where, str) else f"sqlite:///{where}") as broker:
        broker.create_queue("jobs")
        yield broker


@pytest.fixture
def file_broker(path: Path) -> Iterator[Broker]:
    with connect(f"sqlite:///{path}") as broker:
        broker.create_queue("jobs")
        yield broker


def pending(where: Where) -> set[bytes]:
    return {standing.payload for standing in places(where)}


def test_parent_and_child_both_go_on(broker: Broker, where: Where) -> None:
    broker.put_many("jobs", range(4))

    def work(say: Say) -> None:
        broker.complete(broker.lease("jobs")[0])
        broker.put("jobs", 10)
        say(broker.lease("jobs")[0].token.encode())
        broker.close()

    said = run(work).said
    lease = broker.lease("jobs")[0]
    assert lease.token.encode() != said
    assert lease.token[-16:].encode() != said[-16:]
    broker.complete(lease)
    assert pending(where) == {b"1", b"3", b"10"}


def test_what_the_child_puts_survives_the_end_of_the_parents_broker(path: Path) -> None:
    """SQLite remembers locks per process: a child that inherits that memory writes to a log its parent deletes."""
    broker = connect(f"sqlite:///{path}")
    broker.create_queue("jobs")
    go, gone = os.pipe()

    def work(say: Say) -> None:
        broker.put("jobs", 1)
        say(b"open")
        os.read(go, 1)
        broker.put("jobs", 2)
        assert broker.stats("jobs").pending == 2

    pid, reader = fork(work)
    assert os.read(reader, 4) == b"open"
    broker.close()
    os.write(gone, b"x")
    assert join(pid, reader).code == 0
    assert pending(path) == {b"1", b"2"}


def test_child_that_never_uses_the_broker_leaves_the_file_alone(file_broker: Broker, path: Path) -> None:
    file_broker.put("jobs", 1)
    closes = [lambda: None, file_broker.close, file_broker.core.store.close]
    for close in closes:
        assert run(lambda say: close()).code == 0  # noqa: B023
        assert (path.parent / "redrive.db-wal").exists()
        file_broker.put("jobs", 1)
        assert file_broker.stats("jobs").pending == len(places(path))


def test_child_leaves_the_parents_connections_alone(postgres_url: str) -> None:
    """Whatever a child does with them, nothing of it reaches the server: a goodbye would end them for the parent."""
    with connect(postgres_url, maintenance=False) as broker:
        broker.create_queue("jobs")
        store = broker.core.store
        assert isinstance(store, PostgresStore)
        store.poll_changes()
        assert broker.stats("jobs").pending == 0
        connections = tuple(store._engine._connections)
        assert len({connection.info.backend_pid for connection in connections}) >= 3, "writer, reader, listener"

        def use(_: Say) -> None:
            broker.complete(broker.lease("jobs")[0])
            store.poll_changes()
            broker.close()

        for end in (lambda _: None, lambda _: broker.close(), lambda _: store.close(), use):
            broker.put("jobs", 1)
            run(end)
            for connection in connections:
                # What the child sent would stand before this, and be done first.
                assert connection.execute("SELECT 1").fetchone() == (1,)
        assert broker.stats("jobs").pending == 3


_CHILD_THAT_EXITS = """
import os, sys
from redrive import connect
broker = connect(sys.argv[1])
broker.create_queue("jobs")
broker.put("jobs", 1)
broker.core.store.poll_changes()
connections = tuple(broker.core.store._engine._connections)
if os.fork() == 0:
    sys.exit()
assert os.wait()[1] == 0
for connection in connections:
    assert not connection.closed
broker.put("jobs", 2)
store = broker.core.store
assert store._engine._writer in connections and store._notifications._listener in connections
store._notifications._listener.execute("SELECT 1")
broker.close()
"""


def test_child_that_exits_as_programs_do_says_no_goodbye_for_its_parent(postgres_url: str) -> None:
    """At the end of an interpreter everything is collected, connections too."""
    subprocess.run([sys.executable, "-c", _CHILD_THAT_EXITS, postgres_url], check=True, timeout=PATIENCE_SECONDS)
    assert pending(postgres_url) == {b"1", b"2"}


def test_parents_turn_ends_with_the_parent_though_a_child_lives(path: Path) -> None:
    """A child must not keep the parent's place in the line of writers: nobody would ever get a turn again."""
    broker = connect(f"sqlite:///{path}", maintenance=False)
    broker.create_queue("jobs")
    go, gone = os.pipe()

    def child(_: Say) -> None:
        os.close(gone)
        os.read(go, 1)

    def parent(say: Say) -> None:
        own = connect(f"sqlite:///{path}", maintenance=False)
        own.put("jobs", 1)
        fork(child)
        own.core.store._engine._turn.run(lambda: die(say))

    def die(say: Say) -> None:
        say(b"x")
        os.kill(os.getpid(), signal.SIGKILL)

    pid, reader = fork(parent)
    assert os.read(reader, 1) == b"x"
    os.waitpid(pid, 0)
    thread = threading.Thread(target=broker.put, args=("jobs", 2), daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    for end in (gone, go, reader):
        os.close(end)
    assert not thread.is_alive()
    broker.close()


def test_fork_in_the_middle_of_calls_of_other_threads(
    broker: Broker, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads put all the while; each child finds a store it can use, and its items are there afterwards."""
    monkeypatch.setattr(checkpoint, "CHECKPOINT_PAGES", 20)
    stop = threading.Event()
    put = [0, 0]

    def keep_putting(index: int) -> None:
        while not stop.is_set():
            broker.put("jobs", "parent")
            put[index] += 1

    threads = [threading.Thread(target=keep_putting, args=(index,), daemon=True) for index in range(2)]
    for thread in threads:
        thread.start()
    try:
        for n in range(15):
            ended = run(lambda say: broker.put_many("jobs", [f"child {n}", f"child {n}"]) and None)  # noqa: B023
            assert ended.code == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    left = [standing.payload for standing in places(where)]
    assert left.count(b'"parent"') == sum(put)
    assert sorted(left) == sorted([b'"parent"'] * sum(put) + [f'"child {n}"'.encode() for n in range(15) for _ in "ab"])


def test_close_while_another_thread_forks_comes_to_its_end(path: Path) -> None:
    """The fork holds the locks of the engine: it must find the engine afterwards, to let go of them."""
    broker = connect(f"sqlite:///{path}", maintenance=False)
    engine._before_fork()
    closing = Background(lambda: broker.close() or True)
    threading.Event().wait(0.05)
    engine._after_fork_in_parent()
    assert closing.result()


def test_waiting_lease_of_another_process_is_woken(broker: Broker) -> None:
    waiting, woken = fork(lambda say: say(b"%d" % broker.lease("jobs", wait="30s")[0].value))
    broker.put("jobs", 7)
    assert join(waiting, woken).said == b"7"


def test_numbers_that_another_process_drew_are_not_drawn_again(path: Path) -> None:
    """A place at the tail is no item's number; on a clock that stands still two brokers drew the same."""
    clock = FakeClock()
    with (
        connect(f"sqlite:///{path}", clock=clock, maintenance=False) as one,
        connect(f"sqlite:///{path}", clock=clock, maintenance=False) as two,
    ):
        one.create_queue("jobs")
        for n in range(3):
            one.put("jobs", f"one {n}")
            one.release(one.lease("jobs")[0])
            two.put("jobs", f"two {n}")
        assert len(two.lease("jobs", 10)) == 6
