"""SQLite transactions: those of the caller (`transaction`), those that fail half way, and what upkeep costs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from redrive import Broker, connect
from redrive.contract.maintenance_calls import ApplyRetention
from redrive.contract.queries import GetNextDue, GetOverdue
from redrive.errors import DiskFull, StoreUnavailable
from redrive.model.queue import QueueSettings
from redrive.stores.relational.batch import Batch
from redrive.stores.sqlite import checkpoint
from redrive.testing.conformance.actions import Background

MANY_QUEUES = 500


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "redrive.db"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    with connect(f"sqlite:///{path}", maintenance=False, durability="relaxed") as broker:
        broker.create_queue("jobs")
        yield broker


@pytest.fixture
def own(broker: Broker, path: Path) -> Iterator[apsw.Connection]:
    own = apsw.Connection(str(path))
    own.set_busy_timeout(10_000)
    yield own
    own.close()


def test_put_within_a_transaction_that_has_done_nothing_yet_waits_for_the_lock(
    broker: Broker, path: Path, own: apsw.Connection
) -> None:
    """A plain BEGIN: it must not begin by reading, or SQLite refuses to let it write while somebody else does."""
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    own.execute("BEGIN")
    put = Background(lambda: broker.put("jobs", 1, transaction=own))
    threading.Event().wait(0.05)
    other.execute("COMMIT")
    assert put.result()
    own.execute("COMMIT")
    assert broker.stats("jobs").pending == 1


def test_put_within_a_transaction_that_has_read_while_others_write_says_what_to_do(
    broker: Broker, own: apsw.Connection
) -> None:
    own.execute("BEGIN")
    assert own.execute("SELECT count(*) FROM redrive_item").get == 0
    broker.put("jobs", 1)
    with pytest.raises(StoreUnavailable, match="BEGIN IMMEDIATE"):
        broker.put("jobs", 2, transaction=own)
    own.execute("COMMIT")
    assert broker.stats("jobs").pending == 1


def test_put_within_that_fails_half_way_leaves_nothing_to_commit(
    broker: Broker, own: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Batch) -> None:
        raise apsw.FullError("database or disk is full")

    own.execute("BEGIN IMMEDIATE")
    with monkeypatch.context() as patch:
        patch.setattr(Batch, "write_count_deltas", full)
        with pytest.raises(DiskFull):
            broker.put_many("jobs", [1, 2], transaction=own)
    broker.put("jobs", 3, transaction=own)
    own.execute("COMMIT")
    assert [lease.value for lease in broker.lease("jobs", 10)] == [3]
    assert broker.stats("jobs").put_total == 1


def test_commit_is_acknowledged_where_the_log_cannot_be_copied_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread, no file handle: the items are on disk all the same, and a refusal would be a lie."""

    def no_more(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(checkpoint, "CHECKPOINT_PAGES", 1)
    monkeypatch.setattr(threading.Thread, "start", no_more)
    assert broker.put("jobs", 1)
    assert broker.stats("jobs").pending == 1


def test_interrupted_in_its_turn_it_gives_the_turn_back(
    broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = broker.core.store

    def interrupted(work: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store._engine, "_transact", interrupted)
    with pytest.raises(KeyboardInterrupt):
        broker.put("jobs", 1)
    with connect(f"sqlite:///{path}", maintenance=False) as other:
        assert Background(lambda: other.put("jobs", 2)).result()


def test_upkeep_that_has_nothing_to_do_does_not_go_through_all_queues(broker: Broker) -> None:
    """A step runs every second: what it costs must not grow with the queues that exist."""
    store: Any = broker.core.store
    writer = store._engine.writer
    settings = msgspec.json.encode(QueueSettings(keep_dead=1, keep_completed=1)).decode()
    rows = [(f"queue-{n}", settings) for n in range(MANY_QUEUES)]
    writer.execute("BEGIN IMMEDIATE")
    writer.executemany(
        "INSERT INTO redrive_queue (namespace, name, settings, version, paused, is_dead_queue, created_at) "
        "VALUES ('default', ?, ?, 1, 0, 0, 0)",
        rows,
    )
    writer.execute("UPDATE redrive_meta SET epoch = epoch + 1")
    writer.execute("COMMIT")
    broker.put("queue-7", 1)
    store.commit((ApplyRetention(),))
    statements: list[str] = []

    def count(_: object, statement: str, __: object) -> bool:
        statements.append(statement)
        return True

    writer.exec_trace = count
    store.commit((ApplyRetention(),))
    writer.exec_trace = None
    assert len(statements) < 20
    assert store.read(GetOverdue()) == ()
    assert store.read(GetNextDue()) is None
