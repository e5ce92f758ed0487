"""Registrations among many processes, and in stores that an older Redrive has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from tests.servers.postgres import Server

from redrive import connect
from redrive.clock import Instant, SystemClock
from redrive.contract.admin_calls import CreateQueue, Register, Registration, VersionConflict
from redrive.contract.item_calls import Complete, LeaseItems
from redrive.contract.queries import GetResult, GetStats, ListRegistrations, ListWorkerLeases
from redrive.model.duration import SECOND
from redrive.model.item import Result
from redrive.model.queue import QueueSettings
from redrive.store import Store
from redrive.stores.postgres import schema as postgres_schema
from redrive.stores.sqlite import schema as sqlite_schema
from redrive.testing.conformance.actions import Background
from redrive.testing.conformance.suite import put

PROCESSES = 6
ROUNDS = 15


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def stores(url: str) -> Iterator[list[Store]]:
    """As many processes have them: each with connections of its own."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(connect(url, maintenance=False)) for _ in range(PROCESSES)]
        yield [broker._core.store for broker in brokers]


def do(store: Store, call: Any) -> Any:
    (result,) = store.commit([call]).results
    assert not isinstance(result, Exception), result
    return result


def at_once(work: Callable[[Store], Any], stores: list[Store]) -> list[Any]:
    return [each.result() for each in [Background(lambda store=store: work(store)) for store in stores]]


def test_of_many_who_fire_at_once_each_tick_is_put_by_one(stores: list[Store]) -> None:
    do(stores[0], CreateQueue("jobs", QueueSettings()))

    def fire(store: Store) -> int:
        fired, version = 0, 0
        while version < ROUNDS:
            tick = Register("schedule", "nightly", b"", version=version, puts=(put(b"tick"),))
            match do(store, tick):
                case Registration():
                    fired, version = fired + 1, version + 1
                case VersionConflict(Registration(version=present)):
                    assert present > version
                    version = present
        return fired

    fired = at_once(fire, stores)
    (registration,) = stores[0].read(ListRegistrations("schedule"))
    # One that saw the last version but one may go beyond it.
    assert ROUNDS <= registration.version < ROUNDS + PROCESSES
    assert sum(fired) == registration.version == stores[0].read(GetStats("jobs")).put_total


def test_no_announcement_of_many_at_once_is_lost(stores: list[Store]) -> None:
    def announce(store: Store) -> list[int]:
        versions = []
        for _ in range(ROUNDS):
            store.commit([Register("worker", "own", b"", 60 * SECOND)])
            versions.append(do(store, Register("worker", "shared", b"", 60 * SECOND)).version)
        return versions

    versions = [version for found in at_once(announce, stores) for version in found]
    assert sorted(versions) == list(range(1, PROCESSES * ROUNDS + 1))


def use(url: str) -> None:
    """What was put by an older Redrive is worked on with all that is new."""
    with connect(url, maintenance=False) as broker:
        store = broker._core.store
        (lease,) = do(store, LeaseItems("jobs", 1, "w1")).leases
        assert store.read(ListWorkerLeases("w1")) == (lease,)
        do(store, Complete(lease.token, Result(b"1", "application/json"), keep_result=60 * SECOND))
        assert store.read(GetResult(lease.id)).value == 1
        written = do(store, Register("worker", "w1", b"x"))
        assert store.read(ListRegistrations("worker")) == (written,)


@pytest.mark.parametrize("version", range(sqlite_schema.FIRST, sqlite_schema.NEWEST))
def test_file_of_every_older_version_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    path = tmp_path / "jobs.db"
    with closing(apsw.Connection(str(path))) as old:
        for migrate in sqlite_schema.MIGRATIONS[: version - sqlite_schema.FIRST + 1]:
            migrate(old, Instant(0))
        old.execute("UPDATE redrive_meta SET version = ?", (version,))
        furnish(old, "CAST('\"old\"' AS BLOB)")
    use(f"sqlite:///{path}")
    with closing(apsw.Connection(str(path))) as now:
        assert now.execute("SELECT version FROM redrive_meta").get == sqlite_schema.NEWEST


@pytest.mark.parametrize("version", range(1, postgres_schema.NEWEST))
def test_tables_of_every_older_version_are_brought_up_to_date(
    postgres: Server, postgres_url: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = postgres_url.partition("schema=")[2]
    with psycopg.connect(postgres.url, autocommit=True, options=f"-c search_path={name}") as admin:
        with monkeypatch.context() as before:
            before.setattr(postgres_schema, "MIGRATIONS", postgres_schema.MIGRATIONS[:version])
            before.setattr(postgres_schema, "NEWEST", version)
            postgres_schema.prepare(admin, name, "postgres", SystemClock().now(), create=True)
        assert admin.execute("SELECT version FROM redrive_meta").fetchall() == [(version,)]
        furnish(admin, "'\"old\"'::bytea")
        use(postgres_url)
        assert admin.execute("SELECT version FROM redrive_meta").fetchall() == [(postgres_schema.NEWEST,)]


def furnish(old: Any, payload: str) -> None:
    """A queue with an item, as any version has them."""
    old.execute("INSERT INTO redrive_namespace (name) VALUES ('default')")
    old.execute(
        "INSERT INTO redrive_queue (key, namespace, name, settings, version, paused, is_dead_queue, created_at) "
        "VALUES (1, 'default', 'jobs', '{}', 1, 0, 0, 0)"
    )
    old.execute(
        f"INSERT INTO redrive_item (n, tail, queue, put_at, priority, payload) VALUES (7, 65536, 1, 5, 5, {payload})"
    )
    old.execute("INSERT INTO redrive_ready VALUES (1, 7, 4, 5, 7, NULL, 0, 0, 0, 0, 0, NULL, 0, 0, NULL)")
    old.execute(
        "INSERT INTO redrive_tally (queue, pending, failed, active, completed, dead, archived, dead_letters, "
        "put_total, completed_total, failed_total, dead_total) VALUES (1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0)"
    )
