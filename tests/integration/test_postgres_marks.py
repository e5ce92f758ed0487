"""Marks: looks for the first entry of an index pass over nothing that is dead, and miss nothing that lives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.servers.postgres import Server

from redrive import Broker, connect
from redrive.contract.item_calls import Complete
from redrive.contract.queries import ListWorkerLeases
from redrive.stores.postgres import PostgresStore, low_water_marks
from redrive.stores.postgres.dialect import translate
from redrive.stores.postgres.session import TAKE_HEAD
from redrive.stores.relational import leases, queries, stats
from redrive.stores.relational.low_water_marks import SLACK
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock

READY = "ready_4"
"""The mark of ready items with the usual priority."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_water_marks, "MOVE_EVERY_SECONDS", 0.0)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(postgres_url: str, clock: FakeClock) -> Iterator[Broker]:
    with connect(postgres_url, clock=clock, maintenance=False) as broker:
        broker.create_queue("jobs", lease_timeout="60s")
        yield broker


@pytest.fixture
def admin(postgres_url: str, broker: Broker) -> Iterator[psycopg.Connection[Any]]:
    url, _, schema = postgres_url.partition("?schema=")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{schema}"')
        yield connection


def mark(admin: psycopg.Connection[Any], kind: str = READY, queue: int = 1) -> int:
    row = admin.execute(
        f"SELECT {kind} FROM redrive_low_water_mark WHERE queue = %s ORDER BY version DESC LIMIT 1", (queue,)
    ).fetchone()
    return 0 if row is None else row[0]


def work(broker: Broker, count: int = 3) -> None:
    """Something comes and goes, so that marks are worth moving; then they are moved as far as they may."""
    broker.put_many("jobs", range(count))
    for lease in broker.lease("jobs", count):
        broker.complete(lease)
    broker.run_maintenance()
    broker.run_maintenance()


def wait_until_somebody_waits_for_a_transaction(admin: psycopg.Connection[Any]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
    while admin.execute(waiting).fetchone() is None:
        assert time.monotonic() < end, "nobody waits"


def test_marks_follow_what_comes_and_goes(broker: Broker, admin: Any, clock: FakeClock) -> None:
    work(broker)
    clock.advance("10s")
    work(broker)
    assert mark(admin) == clock.now() - SLACK
    assert mark(admin, "lease") == clock.now() - SLACK + 60_000_000
    assert mark(admin, "count_delta", low_water_marks.ALL_QUEUES) > 0
    assert broker.stats("jobs").pending == 0


def test_mark_stays_at_the_first_item_that_is_there(broker: Broker, admin: Any, clock: FakeClock) -> None:
    clock.advance("1s")
    broker.put("jobs", "first", priority=0)
    put_at = clock.now()
    broker.put("jobs", "second")
    clock.advance("10s")
    (lease,) = broker.lease("jobs")
    assert lease.value == "second"
    broker.run_maintenance()
    broker.run_maintenance()
    assert mark(admin) == clock.now() - SLACK
    assert mark(admin, "ready_9") == put_at
    assert mark(admin, "lease") == lease.deadline - SLACK
    clock.advance("10s")
    assert [found.value for found in broker.lease("jobs", 10)] == ["first"]


def test_marks_never_pass_an_open_transaction_that_writes(
    broker: Broker, admin: Any, clock: FakeClock, postgres_url: str
) -> None:
    """It drew its instant, and commits a minute later."""
    with psycopg.connect(postgres_url.partition("?")[0]) as program:
        program.execute("SELECT 1")
        late = broker.put("jobs", "late", transaction=program)
        drawn = clock.now()
        for _ in range(6):
            clock.advance("10s")
            work(broker)
            assert mark(admin) <= drawn
        program.commit()
    assert [lease.id for lease in broker.lease("jobs", 10)] == [late.id]
    assert broker.stats("jobs").active == 1
    clock.advance("10s")
    work(broker)
    assert mark(admin) == clock.now() - SLACK


def test_marks_never_pass_the_newest_transaction_that_writes(
    broker: Broker, admin: Any, clock: FakeClock, postgres_url: str
) -> None:
    """Nobody who began after it has ended yet when the instant is noted, so that it is beyond every snapshot."""
    url, _, schema = postgres_url.partition("?schema=")
    store = PostgresStore(url, schema_name=schema, clock=clock)
    try:
        with psycopg.connect(url) as program:
            program.execute("SELECT 1")
            late = broker.put("jobs", "late", transaction=program)
            drawn = clock.now()
            clock.advance("10s")
            store._marks._noted = store._engine.run_autocommit(store._marks.record_bound)
            work(broker)
            store._marks.used([1])
            store._marks.move()
            assert mark(admin) <= drawn
            program.commit()
    finally:
        store.close()
    assert [lease.id for lease in broker.lease("jobs", 10)] == [late.id]


def test_reader_with_an_old_snapshot_does_not_stop_the_marks(
    broker: Broker, admin: Any, clock: FakeClock, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url.partition("?")[0]) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1")
        clock.advance("10s")
        work(broker)
        assert mark(admin) == clock.now() - SLACK


@pytest.mark.parametrize("database", ["postgres", "template1"])
def test_transaction_of_others_does_not_stop_the_marks(
    broker: Broker, admin: Any, clock: FakeClock, postgres: Server, database: str
) -> None:
    with psycopg.connect(postgres.url, dbname=database) as other:
        other.execute("SELECT pg_current_xact_id()")
        if database == "postgres":
            other.execute("CREATE TABLE written ()")
        clock.advance("10s")
        work(broker)
        assert mark(admin) == clock.now() - SLACK
        assert mark(admin, "count_delta", low_water_marks.ALL_QUEUES) > 0


def test_item_that_is_returned_below_the_mark_is_leased_again(broker: Broker, admin: Any, clock: FakeClock) -> None:
    broker.put("jobs", "returned")
    (lease,) = broker.lease("jobs")
    put_at = clock.now()
    clock.advance("10s")
    work(broker)
    assert mark(admin) > put_at
    broker.release(lease, counted=False)
    assert mark(admin) == put_at
    assert [again.id for again in broker.lease("jobs")] == [lease.id]
    work(broker)
    assert mark(admin) > put_at


@pytest.mark.parametrize("committed", [True, False])
def test_mark_that_is_raised_while_something_is_laid_below_stays(
    broker: Broker,
    admin: Any,
    clock: FakeClock,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    committed: bool,
) -> None:
    """Whoever raises sees a queue in which the returned item is not yet, and has to wait how that ends."""
    work(broker)
    broker.put("jobs", "returned")
    (lease,) = broker.lease("jobs")
    put_at = clock.now()
    clock.advance("10s")
    lower = low_water_marks.LowWaterMarks.lower
    moving: list[Background[None]] = []

    def lower_and_let_another_raise(self: low_water_marks.LowWaterMarks, session: Any, below: Any) -> None:
        monkeypatch.setattr(low_water_marks.LowWaterMarks, "lower", lower)
        lower(self, session, below)
        moving.append(Background(other.move))
        wait_until_somebody_waits_for_a_transaction(admin)
        if not committed:
            raise RuntimeError("rolled back")

    url, _, schema = postgres_url.partition("?schema=")
    store = PostgresStore(url, schema_name=schema, clock=clock)
    try:
        other = store._marks
        other.used([1])
        other._noted = low_water_marks.SnapshotBound(clock.now(), 0, 0)
        monkeypatch.setattr(low_water_marks.LowWaterMarks, "lower", lower_and_let_another_raise)
        if committed:
            broker.release(lease, counted=False)
        else:
            with pytest.raises(Exception, match="rolled back"):
                broker.release(lease, counted=False)
        moving[0].result()
    finally:
        store.close()
    if committed:
        assert mark(admin) <= put_at
        assert [again.id for again in broker.lease("jobs")] == [lease.id]
    else:
        assert mark(admin) == clock.now() - SLACK
        broker.complete(lease)


def test_failure_that_falls_due_far_behind_the_mark_is_tried_again(
    broker: Broker, admin: Any, clock: FakeClock
) -> None:
    broker.create_queue("others", retry={"attempts": 3, "cooldown": "5s"})
    broker.put("others", 1)
    broker.fail(broker.lease("others")[0], "boom")
    clock.advance("1m")
    broker.put("others", 2)
    (other,) = broker.lease("others", 1)
    broker.complete(other)
    assert [lease.value for lease in broker.lease("others", 5)] in ([1], [2])
    broker.run_maintenance()
    assert broker.stats("others").failed == 0


@pytest.mark.parametrize("by_id", [False, True])
def test_lease_that_is_shorter_than_usual_runs_out_in_time(broker: Broker, clock: FakeClock, by_id: bool) -> None:
    """The mark of usual leases is far ahead of its deadline."""
    work(broker)
    clock.advance("10s")
    work(broker)
    ids = [receipt.id for receipt in broker.put_many("jobs", ["short", "extended"])]
    if by_id:
        broker.lease_by_id(ids, lease_timeout="2s", worker="w")
    else:
        broker.lease("jobs", 2, lease_timeout="2s", worker="w")
    short, extended = broker.core.read(ListWorkerLeases("w"))
    broker.extend(extended, "30s")
    clock.advance("2s")
    assert broker.run_maintenance().lost == 1
    assert broker.get(short.id).counters.losses == 1
    clock.advance("28s")
    assert broker.run_maintenance().lost == 1


def test_leases_run_out_in_time_after_their_timeout_was_shortened(broker: Broker, clock: FakeClock) -> None:
    clock.advance("10s")
    work(broker)
    broker.update_queue("jobs", lease_timeout="5s")
    work(broker)
    broker.put("jobs", 1)
    broker.lease("jobs")
    clock.advance("5s")
    assert broker.run_maintenance().lost == 1


def test_item_that_a_clock_set_back_laid_below_the_mark_is_found(
    broker: Broker, admin: Any, clock: FakeClock, postgres_url: str
) -> None:
    """Another process has not seen how far the clock was; whoever moves the marks looks below them now and then."""
    early = FakeClock()
    clock.advance("10s")
    work(broker)
    with connect(postgres_url, clock=early, maintenance=False) as behind:
        receipt = behind.put("jobs", "below")
    url, _, schema = postgres_url.partition("?schema=")
    store = PostgresStore(url, schema_name=schema, clock=clock)
    try:
        store._marks.verify_nothing_below()
    finally:
        store.close()
    assert [lease.id for lease in broker.lease("jobs")] == [receipt.id]


def test_process_that_saw_its_clock_set_back_misses_nothing(broker: Broker, clock: FakeClock) -> None:
    clock.advance("1h")
    work(broker)
    clock.set_back("30m")
    receipt = broker.put("jobs", "below")
    assert [lease.id for lease in broker.lease("jobs")] == [receipt.id]


def buffers(admin: psycopg.Connection[Any], statement: str, values: tuple[Any, ...], schema: str) -> int:
    """How many pages a statement touches, planned as for the store."""
    with admin.transaction(force_rollback=True):
        for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan"):
            admin.execute(f"SET LOCAL {name} = off")
        admin.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor = psycopg.RawCursor(admin)
        text = translate(statement, schema, True)
        ((plan,),) = cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", values).fetchall()
    found = plan[0]["Plan"]
    touched: int = found["Shared Hit Blocks"] + found["Shared Read Blocks"]
    return touched


@pytest.mark.parametrize("held", ["snapshot", "id"])
def test_looks_pass_over_nothing_that_is_dead(
    broker: Broker, admin: Any, clock: FakeClock, postgres_url: str, held: str
) -> None:
    """With a snapshot or a transaction id held open, nothing can be cleaned up; and the tables look empty to the
    planner."""
    url, _, schema = postgres_url.partition("?schema=")
    now = clock.now() + 60_000_000
    looks: dict[str, tuple[str, tuple[Any, ...]]] = {
        "head": (TAKE_HEAD, (1, now, 10, now, None, 0, 1, 1)),
        "times": (leases.DUE_CHECK_SQL, (1, now)),
        "next": (leases._NEXT, (1,)),
        "lost": (queries._LOST, (1, now, 10)),
        "next_lost": (queries._NEXT_LOST, ()),
        "next_due": (queries._NEXT_DUE, ()),
        "oldest": (stats._OLDEST, (1, now)),
        "counts": (stats._COUNTS, (1,)),
        "stats of all": (stats._EVERY, ("default", now)),
    }
    store = broker.core.store
    with psycopg.connect(url) as other:
        if held == "snapshot":
            other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT 1" if held == "snapshot" else "SELECT pg_current_xact_id()")
        for _ in range(10):
            clock.advance("1s")
            for _ in range(10):
                broker.put_many("jobs", range(100))
                store.commit([Complete(lease.token) for lease in broker.lease("jobs", 100)])
            broker.run_maintenance()
        for table in ("ready", "lease", "item", "count_delta", "low_water_mark"):
            admin.execute(f"VACUUM ANALYZE redrive_{table}")
        clock.advance("5s")
        work(broker)
        broker.put_many("jobs", range(10))
        with_marks = {name: buffers(admin, *look, schema) for name, look in looks.items()}
        admin.execute("DELETE FROM redrive_low_water_mark")
        without = {name: buffers(admin, *look, schema) for name, look in looks.items()}
    assert {name: count for name, count in with_marks.items() if count > 150} == {}
    for name in ("head", "next", "next_lost"):
        assert without[name] > 2 * with_marks[name], (name, without, with_marks)
