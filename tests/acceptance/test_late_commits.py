"""Late commits: items that are committed late are above the marks, however these move.

Transactions of others with an id are open all the time, so that marks always rise by what the locks say.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from tests.servers.postgres import Server
from tests.sizes import THOROUGH

from redrive import Broker, connect
from redrive.stores.postgres import PostgresStore, connection_settings, low_water_marks
from redrive.stores.postgres.session import Rows, Session
from redrive.stores.relational import batch
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import FakeClock

RACE_SECONDS = 60.0 if THOROUGH else 1.5
IGNORES_LOCKS = "SELECT ?1::bigint < 0"
"""A planted mistake: marks rise beside every transaction."""
EXECUTE = Session.execute


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(postgres_url: str, clock: FakeClock) -> Iterator[Broker]:
    with connect(postgres_url, clock=clock, maintenance=False) as broker:
        yield broker


@pytest.fixture
def mover(postgres_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    """Another process, which moves marks as often as it is asked, and waits for no one for long."""
    monkeypatch.setattr(low_water_marks, "MOVE_EVERY_SECONDS", 0.0)
    monkeypatch.setitem(connection_settings.SETTINGS, "lock_timeout", "100ms")
    url, _, schema = postgres_url.partition("?schema=")
    store = PostgresStore(url, schema_name=schema, clock=clock)
    yield store
    store.close()


@pytest.fixture
def program(postgres: Server) -> Iterator[psycopg.Connection[Any]]:
    """A program's connection; and transactions of others, here and in another database, that are open all the time."""
    with contextlib.ExitStack() as stack:
        for database in ("postgres", "template1"):
            other = stack.enter_context(psycopg.connect(postgres.url, dbname=database))
            other.execute("SELECT pg_current_xact_id()")
        yield stack.enter_context(psycopg.connect(postgres.url, autocommit=True))


def below(store: PostgresStore) -> list[Any]:
    """Entries below the marks of their queues."""

    def find(session: Session) -> list[Any]:
        queues = session.execute(low_water_marks._MARKED).fetchall()
        found = [session.execute(low_water_marks._BELOW, queue).fetchone() for queue in queues if queue != (0,)]
        deltas = session.execute(low_water_marks._COUNT_DELTA_BELOW, (low_water_marks.ALL_QUEUES,)).fetchall()
        return [row for row in found if row is not None and any(at is not None for at in row)] + deltas

    return store._engine.run_autocommit(find)


def moved(store: PostgresStore, queue: str) -> int:
    """The mark of ready items of the usual priority."""
    found = store._engine.run_autocommit(
        lambda session: (
            session.execute(
                "SELECT max(ready_4) FROM redrive_low_water_mark AS m JOIN redrive_queue AS q ON q.key = m.queue "
                "WHERE q.name = ?",
                (queue,),
            ).get
        )
    )
    return 0 if found is None else found


class Steps:
    """The statements of a writer, and the steps of its program; before one of them, all earlier ones were executed and
    something else runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, run: Callable[[], None]) -> None:
        self.left, self._run = at, run
        monkeypatch.setattr(Session, "execute", lambda *given: self._execute(*given))

    def step(self, flush: Callable[[], object] = lambda: None) -> None:
        self.left -= 1
        if self.left == 0:
            flush()
            self._run()

    def _execute(self, session: Session, statement: str, values: Any = ()) -> Rows:
        if self.left > 0:
            self.step(lambda: statement.startswith("BEGIN") or EXECUTE(session, "SELECT 1").get)
        return EXECUTE(session, statement, values)


Writer = Callable[[Broker, psycopg.Connection[Any], str, Steps], None]


def put(broker: Broker, program: psycopg.Connection[Any], queue: str, steps: Steps) -> None:
    broker.put(queue, 1)


def put_with_key(broker: Broker, program: psycopg.Connection[Any], queue: str, steps: Steps) -> None:
    broker.put(queue, 1, idempotency_key="key", priority=9, expire_timeout="2h")


def put_for_later(broker: Broker, program: psycopg.Connection[Any], queue: str, steps: Steps) -> None:
    broker.put(queue, 1, delay="200ms")


def put_and_lease_shortly(broker: Broker, program: psycopg.Connection[Any], queue: str, steps: Steps) -> None:
    broker.put(queue, 1)
    broker.lease(queue, lease_timeout="1s")


def put_and_return(broker: Broker, program: psycopg.Connection[Any], queue: str, steps: Steps) -> None:
    broker.put(queue, 1)
    broker.release(broker.lease(queue)[0], counted=False)


def put_and_fail(broker: Broker, program: psycopg.Connection[Any], queue: str, steps: Steps) -> None:
    broker.put(queue, 1)
    broker.fail(broker.lease(queue)[0], "boom")


def put_in_transaction(broker: Broker, program: psycopg.Connection[Any], queue: str, steps: Steps) -> None:
    with program.transaction():
        steps.step()
        broker.put(queue, 1, transaction=program)
        steps.step()
        broker.put(queue, 2, transaction=program)
        steps.step()


def put_in_older_transaction(broker: Broker, program: psycopg.Connection[Any], queue: str, steps: Steps) -> None:
    with program.transaction():
        program.execute("SELECT pg_current_xact_id()")
        steps.step()
        broker.put(queue, 1, transaction=program)
        steps.step()


def put_in_savepoints(broker: Broker, program: psycopg.Connection[Any], queue: str, steps: Steps) -> None:
    with program.transaction():
        with program.transaction() as undone:
            broker.put(queue, 1, transaction=program)
            raise psycopg.Rollback(undone)
        steps.step()
        with program.transaction():
            program.execute("CREATE TEMPORARY TABLE IF NOT EXISTS written ()")
            broker.put(queue, 2, transaction=program)
            steps.step()
        steps.step()


def put_in_old_snapshot(broker: Broker, program: psycopg.Connection[Any], queue: str, steps: Steps) -> None:
    program.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    try:
        with program.transaction():
            program.execute("SELECT count(*) FROM pg_class")
            steps.step()
            broker.put(queue, 1, transaction=program)
            steps.step()
    finally:
        program.isolation_level = None


def put_in_prepared_transaction(broker: Broker, program: psycopg.Connection[Any], queue: str, steps: Steps) -> None:
    """PostgreSQL refuses to prepare what has sent a notification: this one has not."""
    execute = Session.execute
    program.execute("BEGIN")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Session,
            "execute",
            lambda session, statement, values=(): execute(
                session, *(("SELECT 1", ()) if "pg_notify" in statement else (statement, values))
            ),
        )
        broker.put(queue, 1, transaction=program)
    steps.step()
    program.execute(f"PREPARE TRANSACTION '{queue}'")
    steps.step()
    program.execute(f"COMMIT PREPARED '{queue}'")


WRITERS: tuple[Writer, ...] = (
    put, put_with_key, put_for_later, put_and_lease_shortly, put_and_return, put_and_fail, put_in_transaction,
    put_in_older_transaction, put_in_savepoints, put_in_old_snapshot, put_in_prepared_transaction,
)  # fmt: skip


def passed_items(
    writer: Writer, broker: Broker, mover: PostgresStore, program: psycopg.Connection[Any], clock: FakeClock
) -> list[str]:
    """Move the marks before each step of a writer in turn. Returns where entries were passed or items not found."""
    passed: list[str] = []
    at, raised = 0, False
    while True:
        at += 1
        queue = f"{writer.__name__}-{at}"
        broker.create_queue(queue, retry={"attempts": 9, "cooldown": "1s"})

        key = mover._engine.run_autocommit(
            lambda session, queue=queue: session.execute("SELECT key FROM redrive_queue WHERE name = ?", (queue,)).get
        )

        def move(key: int = key) -> None:
            for _ in range(3):
                clock.advance("2s")
                mover._marks.used([key])
                mover._marks.move()

        with pytest.MonkeyPatch.context() as patch:
            steps = Steps(patch, at, move)
            writer(broker, program, queue, steps)
            steps.left = 0 if steps.left > 0 else -1
        if steps.left == 0:  # it has fewer steps
            assert raised, "no mark ever rose beside it"
            return passed
        raised = raised or moved(mover, queue) > 0
        if below(mover):
            passed.append(f"step {at}: an entry below a mark")
        clock.advance("1h")
        for _ in range(3):
            broker.run_maintenance()
        there = broker.stats(queue)
        leased = len(broker.lease(queue, 10))
        if not leased == there.pending + there.failed + there.active > 0:
            passed.append(f"step {at}: {leased} leased of {there}")


@pytest.mark.parametrize("writer", WRITERS)
def test_marks_that_move_before_any_step_of_a_writer_pass_nothing(
    writer: Writer, broker: Broker, mover: PostgresStore, program: psycopg.Connection[Any], clock: FakeClock
) -> None:
    assert passed_items(writer, broker, mover, program, clock) == []


@pytest.mark.parametrize("writer", [put, put_in_prepared_transaction])
def test_marks_that_ignore_locks_are_caught(
    writer: Writer,
    broker: Broker,
    mover: PostgresStore,
    program: psycopg.Connection[Any],
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(low_water_marks, "_MAY_STILL_PUT", IGNORES_LOCKS)
    assert passed_items(writer, broker, mover, program, clock) != []


def race(url: str, server: Server, seconds: float, *, until_passed: bool = False) -> tuple[int, int]:
    """Programs and brokers put, commit late or roll back, while marks move without a pause. Returns how many items were
    put, and how many of them are never leased."""
    end, puts, lock = time.monotonic() + seconds, [0], threading.Lock()
    plain, _, schema = url.partition("?schema=")
    with connect(url, maintenance=False) as broker, connect(url, maintenance=False) as worker:
        broker.create_queue("jobs")
        store = PostgresStore(plain, schema_name=schema)
        key = store._engine.run_autocommit(lambda session: session.execute("SELECT key FROM redrive_queue").get)

        def going() -> bool:
            return time.monotonic() < end

        def program(seed: int) -> None:
            chance = random.Random(seed)
            with psycopg.connect(server.url) as connection:
                while going():
                    for _ in range(chance.randrange(3)):
                        connection.execute("SELECT pg_current_xact_id()")
                    connection.execute("SELECT 1")
                    count = chance.randrange(1, 4)
                    for _ in range(count):
                        broker.put("jobs", 1, transaction=connection, priority=chance.choice((5, 9)))
                        connection.execute("SELECT pg_sleep(%s)", (chance.choice((0, 0, 0.001, 0.02)),))
                    if chance.random() < 0.1:
                        connection.rollback()
                    else:
                        connection.commit()
                        with lock:
                            puts[0] += count

        def others() -> None:
            """A transaction with an id is always open."""
            with psycopg.connect(server.url) as first, psycopg.connect(server.url) as second:
                while going():
                    for connection in (first, second):
                        connection.rollback()
                        connection.execute("SELECT pg_current_xact_id(), pg_sleep(0.005)")

        def direct() -> None:
            while going():
                broker.put_many("jobs", range(2))
                with lock:
                    puts[0] += 2

        def mover() -> None:
            while going():
                store._marks.used([key])
                store._marks.move()

        leased = 0
        tasks = [Background(partial(program, seed)) for seed in range(3)]
        tasks += [Background(each) for each in (others, direct, mover)]
        while going():
            leased += len(worker.lease("jobs", 100))
            if until_passed and below(store):
                end = 0.0
        for task in tasks:
            task.result()
        while found := len(worker.lease("jobs", 100)):
            leased += found
        assert moved(store, "jobs") > 0
        store.close()
        return puts[0], puts[0] - leased


@pytest.fixture
def without_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks follow at no distance: a mistake of a microsecond is seen."""
    monkeypatch.setattr(low_water_marks, "SLACK", 0)
    monkeypatch.setattr(batch, "SLACK", 0)
    monkeypatch.setattr(low_water_marks, "MOVE_EVERY_SECONDS", 0.0)


@pytest.mark.usefixtures("without_slack")
def test_items_that_are_committed_late_are_leased_however_marks_race(postgres: Server, postgres_url: str) -> None:
    put, missing = race(postgres_url, postgres, RACE_SECONDS)
    assert put > 0
    assert missing == 0


@pytest.mark.usefixtures("without_slack")
def test_race_catches_marks_that_ignore_locks(
    postgres: Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_water_marks, "_MAY_STILL_PUT", IGNORES_LOCKS)
    _, missing = race(postgres_url, postgres, 60.0, until_passed=True)
    assert missing > 0
