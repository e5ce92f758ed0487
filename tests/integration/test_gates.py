"""What gates cost, which is nothing while no allowance counts; and transactions of which one is in the middle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from redrive import Broker, connect
from redrive.clock import Instant
from redrive.contract.item_calls import LeaseItems, Settle
from redrive.model.breaker import Breaker
from redrive.model.duration import SECOND
from redrive.model.gate import BREAKER_GATE, Gate
from redrive.model.item import Status
from redrive.model.judge import OutcomeKind, RetryVerdict
from redrive.stores.postgres.session import Session
from redrive.stores.redis.store import RedisStore
from redrive.stores.relational.batch import Batch
from redrive.testing.conformance.actions import Background
from redrive.testing.conformance.gates import change_of
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock

ITEMS = 20


def set_gate(broker: Broker, queue: str = "jobs", allowance: int | None = None) -> None:
    """A breaker of a class that is open, and a gate whose time is over."""
    found, now = broker.get_queue(queue), broker.core.clock.now()
    breaker = Breaker("network", now, Instant(now + SECOND), "20 failures", SECOND, Instant(now + SECOND))
    gate = Gate(BREAKER_GATE, Instant(now - 1), allowance)
    broker.submit(change_of(found, breaker, gate=gate))


def work(broker: Broker, queue: str) -> None:
    """Put, lease and complete items, one by one and together; and look for more."""
    broker.put(queue, 0)
    broker.complete(broker.lease(queue)[0])
    broker.put_many(queue, range(ITEMS))
    for lease in broker.lease(queue, ITEMS):
        broker.complete(lease)
    assert broker.lease(queue) == []


def furnish(broker: Broker) -> None:
    """Two queues that have done the same, one of them with rules for breakers, one that is not closed, and a gate that
    has passed."""
    broker.create_queue("plain")
    broker.create_queue("gated", breakers={"queue": {"share": 0.5}, "network": {}, "fingerprint": {}})
    set_gate(broker, "gated")
    for queue in ("plain", "gated"):
        work(broker, queue)


def test_statements_and_steps_are_those_of_a_queue_without_gates(tmp_path: Path) -> None:
    seen: dict[str, list[tuple[str, int]]] = {"plain": [], "gated": []}
    with connect(f"sqlite:///{tmp_path}/jobs.db", clock=FakeClock(), maintenance=False) as broker:
        furnish(broker)
        writer = broker.core.store._engine.writer  # type: ignore[attr-defined]
        for queue, to in seen.items():
            writer.trace_v2(apsw.SQLITE_TRACE_PROFILE, lambda event, to=to: to.append(_steps(event)))
            work(broker, queue)
            writer.trace_v2(0, None)
    assert seen["gated"] == seen["plain"]
    assert sum(steps for _, steps in seen["plain"]) > 1_000


def _steps(event: dict[str, Any]) -> tuple[str, int]:
    return event["sql"], event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


def test_statements_on_postgres_are_those_of_a_queue_without_gates(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    execute = Session.execute

    def watched(session: Session, statement: str, values: Any = ()) -> Any:
        seen.append(statement)
        return execute(session, statement, values)

    with connect(postgres_url, clock=FakeClock(), maintenance=False) as broker:
        furnish(broker)
        monkeypatch.setattr(Session, "execute", watched)
        work(broker, "plain")
        plain = seen.copy()
        seen.clear()
        work(broker, "gated")
    assert seen == plain
    assert len(plain) > ITEMS


def test_script_leases_where_no_allowance_counts(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_rules = RedisStore._commit_by_rules
    calls: list[Any] = []

    def watched(self: RedisStore, given: Any, now: Instant | None) -> Any:
        calls.extend(given)
        return by_rules(self, given, now)

    clock = FakeClock()
    with connect(redis_url, clock=clock, maintenance=False) as broker:
        broker.create_queue("jobs")
        set_gate(broker)
        monkeypatch.setattr(RedisStore, "_commit_by_rules", watched)
        work(broker, "jobs")
        assert calls == []
        broker.put("jobs", 1)
        (lease,) = broker.lease("jobs")
        until = Instant(clock.now() + SECOND)
        verdict, version = RetryVerdict(0, Status.PENDING), broker.get_queue("jobs").version
        settle = Settle(lease.token, OutcomeKind.RELEASED, verdict, version, close_until=until)
        broker.submit(settle)
        assert broker.lease("jobs") == []
        assert calls == [settle]
        clock.advance("1s")
        set_gate(broker, allowance=1)
        calls.clear()
        assert [len(broker.lease("jobs")) for _ in range(3)] == [1, 0, 0]
        assert [type(call) for call in calls] == [LeaseItems]


# Transactions side by side


@contextmanager
def two_brokers(url: str) -> Iterator[tuple[Broker, Broker]]:
    clock = FakeClock()
    with (
        connect(url, clock=clock, maintenance=False) as one,
        connect(url, clock=clock, maintenance=False) as two,
    ):
        one.create_queue("jobs")
        one.put_many("jobs", range(9))
        assert len(two.lease("jobs")) == 1
        set_gate(one, allowance=2)
        yield one, two


def lease_in_the_middle(one: Broker, two: Broker, url: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two transactions lease two items each; the second begins when the first has leased and not counted yet. How many
    each of them got."""
    rivals = lease_before_gates_are_written(two, url, monkeypatch)
    first = len(one.lease("jobs", 2))
    return [first, rivals[0].result()]


def lease_before_gates_are_written(
    broker: Broker, url: str, monkeypatch: pytest.MonkeyPatch, by: str = "set_gates"
) -> list[Background[int]]:
    """Let a broker lease two items when a transaction is about to write the gates of a queue. What it does then."""
    write = getattr(Batch, by)
    rivals: list[Background[int]] = []

    def begin_another(batch: Batch, *values: Any) -> None:
        monkeypatch.setattr(Batch, by, write)
        done: list[int] = []
        rivals.append(Background(lambda: done.append(len(broker.lease("jobs", 2))) or done[0]))
        wait_until(url, lambda: bool(done))
        write(batch, *values)

    monkeypatch.setattr(Batch, by, begin_another)
    return rivals


def wait_until(url: str, is_done: Callable[[], bool]) -> None:
    """Until a transaction waits for a row that another one has locked, or something is done without that."""
    end = time.monotonic() + PATIENCE_SECONDS
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        while not is_done() and connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is None:
            assert time.monotonic() < end, "nobody waits"


def test_transactions_that_overlap_share_the_allowance(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with two_brokers(postgres_url) as (one, two):
        assert lease_in_the_middle(one, two, postgres_url, monkeypatch) == [2, 0]
        (gate,) = two.get_queue("jobs").gates
        assert len(gate.leased) == 2


def test_retry_after_loses_no_lease_that_is_counted_beside_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_brokers(postgres_url) as (one, two):
        (lease,) = one.lease("jobs")
        rivals = lease_before_gates_are_written(two, postgres_url, monkeypatch, by="write_queues")
        until, version = Instant(one.core.clock.now() + SECOND), one.get_queue("jobs").version
        verdict = RetryVerdict(0, Status.PENDING)
        one.submit(Settle(lease.token, OutcomeKind.RELEASED, verdict, version, close_until=until))
        assert rivals[0].result() == 0
        allowed, closed = two.get_queue("jobs").gates
        assert (allowed.leased, closed.until) == ((lease.id,), until)


def test_queues_in_another_order_do_not_deadlock(postgres_url: str) -> None:
    def take(broker: Broker, *queues: str) -> int:
        calls = [LeaseItems(queue, 1) for queue in queues]
        return sum(len(each.leases) for _ in range(30) for each in broker.core.store.commit(calls).results)

    with two_brokers(postgres_url) as (one, two):
        one.create_queue("others")
        for queue in ("jobs", "others"):
            one.put_many(queue, range(100))
            set_gate(one, queue, allowance=100)
        workers = [Background(lambda: take(one, "jobs", "others")), Background(lambda: take(two, "others", "jobs"))]
        assert sum(worker.result() for worker in workers) == 120
