"""Transactions that run side by side in one namespace: the orders that chance hardly ever brings, forced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.acceptance.places import places

from redrive import Broker, Receipt, Settled, connect
from redrive.contract.item_calls import Complete, NewItem, Put
from redrive.errors import IdempotencyConflict, LeaseLost, QueueNotFound, StoreUnavailable
from redrive.model.payload import JSON
from redrive.stores.postgres import PostgresStore
from redrive.stores.postgres.session import Session
from redrive.stores.relational import dead_letters
from redrive.stores.relational import item_rows as standing
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def one(postgres_url: str, clock: FakeClock) -> Iterator[Broker]:
    with connect(postgres_url, clock=clock, maintenance=False) as broker:
        broker.create_queue("morgue", lease_timeout="10s")
        broker.create_queue("jobs", dead_queue="morgue", lease_timeout="10s")
        yield broker


@pytest.fixture
def two(one: Broker, postgres_url: str, clock: FakeClock) -> Iterator[Broker]:
    with connect(postgres_url, clock=clock, maintenance=False) as broker:
        yield broker


def once(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, meanwhile: Callable[[], object]) -> None:
    """Before the first call of a function, which is in the middle of a transaction, let others do something."""
    function = getattr(module, name)

    def wrapped(*values: Any) -> Any:
        monkeypatch.setattr(module, name, function)
        meanwhile()
        return function(*values)

    monkeypatch.setattr(module, name, wrapped)


def wait_until_somebody_waits(url: str) -> None:
    """For a lock of ours, on the server."""
    end = time.monotonic() + PATIENCE_SECONDS
    with psycopg.connect(url, autocommit=True) as connection:
        while (
            connection.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone() is None
        ):
            assert time.monotonic() < end, "nobody waits"


def test_letters_of_one_group_that_are_completed_at_once_all_leave_it(
    one: Broker, two: Broker, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a transaction read of a group is old when it writes: it may only say how many fewer there are."""
    one.put_many("jobs", range(3))
    for lease in one.lease("jobs", 3):
        one.fail(lease, "boom", final=True)
    first, second = one.lease("morgue", 2)
    once(monkeypatch, dead_letters, "write_groups", lambda: two.complete(second))
    one.complete(first)
    assert [group.count for group in one.groups()] == [1]
    assert len(places(postgres_url)) == 1
    two.complete(two.lease("morgue")[0])
    assert one.groups() == ()
    assert places(postgres_url) == []


@pytest.mark.parametrize("fails", [False, True])
def test_completed_dead_letter_with_puts_runs_alone_after_the_others(
    one: Broker, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Its puts read keys of others, so the lock must be exclusive; that of the batch is shared."""
    one.put_many("jobs", range(2))
    first, second = one.lease("jobs", 2)
    one.fail(first, "boom", final=True)
    (dead,) = one.lease("morgue")
    transact, locks = PostgresStore._transact, list[bool]()

    def transacted(store: PostgresStore, calls: Any, now: Any, *, shared: bool) -> Any:
        locks.append(shared)
        if fails and not shared:
            raise StoreUnavailable("here", "the server is gone")
        return transact(store, calls, now, shared=shared)

    monkeypatch.setattr(PostgresStore, "_transact", transacted)
    puts = (Put("jobs", (NewItem(b"3", JSON, idempotency_key="k"),)),)
    done, left = one.core.store.commit([Complete(second.token), Complete(dead.token, puts=puts)]).results
    assert locks == [True, False]
    assert isinstance(done, Settled)
    assert isinstance(left, StoreUnavailable if fails else Settled)
    assert one.stats("morgue").dead_letters == int(fails)
    assert one.stats("jobs").pending == int(not fails)


@pytest.mark.parametrize(("completed", "status"), [(False, "active"), (True, None)])
def test_item_that_is_leased_while_somebody_looks_for_it_is_found(
    one: Broker, two: Broker, monkeypatch: pytest.MonkeyPatch, completed: bool, status: str | None
) -> None:
    """It was not among the leases when he looked there, and is no longer where it was ready."""
    one.put("jobs", 1)
    late = one.lease("jobs")[0]
    one.release(late, counted=False)
    execute, looked = Session.execute, []

    def lease_between(session: Session, statement: str, values: Any = ()) -> Any:
        rows = execute(session, statement, values)
        if statement is not standing._LEASES or looked:
            return rows
        looked.append(rows.fetchall())
        (lease,) = two.lease("jobs")
        if completed:
            two.complete(lease)
        return execute(session, statement, (session.table([]),))

    monkeypatch.setattr(Session, "execute", lease_between)
    with pytest.raises(LeaseLost) as lost:
        one.complete(late)
    assert looked == [[]]
    assert lost.value.status == status


def test_queue_with_an_open_put_of_a_program_is_not_deleted(one: Broker, postgres_url: str) -> None:
    """The item would be in a queue that does not exist."""
    url = postgres_url.partition("?")[0]
    with psycopg.connect(url) as program:
        program.execute("SELECT 1")
        one.put("jobs", 1, transaction=program)
        with pytest.raises(StoreUnavailable, match="a transaction of a program puts to queue 'jobs'"):
            one.delete_queue("jobs")
        one.pause_queue("jobs")
        program.commit()
    assert [each.queue for each in places(postgres_url)] == ["jobs"]
    one.delete_queue("jobs", confirm=1)
    assert places(postgres_url) == []
    with psycopg.connect(url) as program:
        program.execute("SELECT 1")
        with pytest.raises(QueueNotFound):
            one.put("jobs", 1, transaction=program)


def test_key_in_an_open_transaction_of_a_program_makes_nobody_wait_but_who_puts_under_it(
    one: Broker, two: Broker, postgres_url: str
) -> None:
    two.put("jobs", 0)  # knows the queues from now on
    url = postgres_url.partition("?")[0]
    with psycopg.connect(url) as program:
        program.execute("SELECT 1")
        receipt = one.put("jobs", 1, idempotency_key="k", transaction=program)
        waiting = Background(lambda: two.put("jobs", 1, idempotency_key="k"))
        wait_until_somebody_waits(url)
        one.put("jobs", 2)
        one.put("jobs", 3, idempotency_key="l")
        program.commit()
    assert waiting.result() == Receipt(receipt.id, duplicate=True)


def test_retention_passes_over_a_key_that_an_open_transaction_uses_again(
    one: Broker, postgres_url: str, clock: FakeClock
) -> None:
    one.update_queue("jobs", idempotency_timeout="10s")
    one.put("jobs", 1, idempotency_key="k")
    clock.advance("10s")
    with psycopg.connect(postgres_url.partition("?")[0]) as program:
        program.execute("SELECT 1")
        receipt = one.put("jobs", 2, idempotency_key="k", transaction=program)
        one.run_maintenance()
        program.commit()
    assert one.put("jobs", 2, idempotency_key="k") == Receipt(receipt.id, duplicate=True)


def test_restore_waits_for_an_open_transaction_of_a_program_that_takes_its_key(one: Broker, postgres_url: str) -> None:
    """The key was free when the item was dropped, and is another one's when the transaction is committed."""
    url = postgres_url.partition("?")[0]
    dropped = one.put("jobs", 1, idempotency_key="k").id
    one.drop([dropped])
    with psycopg.connect(url) as program:
        program.execute("SELECT 1")
        one.put("jobs", 1, idempotency_key="k", transaction=program)
        restoring = Background(lambda: one.restore([dropped]))
        wait_until_somebody_waits(url)
        program.commit()
    (refusal,) = restoring.result()
    assert isinstance(refusal, IdempotencyConflict)
    assert sorted(each.status for each in places(postgres_url)) == ["archived", "pending"]
