"""The version of the tables: a store of another Redrive is migrated, or refused and not touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from tests.servers.postgres import Server

from redrive import connect
from redrive.clock import Instant
from redrive.errors import SchemaTooNew, SchemaTooOld, StoreError
from redrive.model.holder import ItemHolder, encode_holders
from redrive.stores.postgres import schema as postgres_schema
from redrive.stores.sqlite import schema as sqlite_schema

ADDED = "CREATE TABLE redrive_added (number INTEGER); INSERT INTO redrive_added SELECT count(*) FROM redrive_item"
BROKEN = "CREATE TABLE redrive_added (number INTEGER); INSERT INTO redrive_nowhere VALUES (1)"
Migrate = Callable[[str], None]


class Database:
    """A database of one of the stores that have a schema, with what a test needs to know of it."""

    def __init__(self, url: str, schema: Any, open_admin: Callable[[], Any]) -> None:
        self.url, self.schema, self._open_admin = url, schema, open_admin

    @contextmanager
    def admin(self) -> Iterator[Any]:
        with closing(self._open_admin()) as connection:
            yield connection

    @property
    def version(self) -> int:
        return int(self.rows("SELECT version FROM redrive_meta")[0][0])

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.admin() as admin:
            found: list[tuple[Any, ...]] = admin.execute(statement).fetchall()
            return found

    def set_version(self, version: int) -> None:
        with self.admin() as admin:
            admin.execute(f"UPDATE redrive_meta SET version = {version}")

    def tables(self) -> set[str]:
        catalog = "pg_tables WHERE schemaname = current_schema()" if "postgres" in self.url else "sqlite_schema"
        column = "tablename" if "postgres" in self.url else "name"
        return {name for (name,) in self.rows(f"SELECT {column} FROM {catalog}")}


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A place for a store."""
    if request.param == "sqlite":
        path = tmp_path / "jobs.db"
        found = Database(f"sqlite:///{path}", sqlite_schema, lambda: apsw.Connection(str(path)))
    else:
        server: Server = request.getfixturevalue("postgres")
        url = f"{server.url}?schema=versions"
        options = "-c search_path=versions"
        found = Database(url, postgres_schema, lambda: psycopg.connect(server.url, autocommit=True, options=options))
    yield found
    if request.param == "postgres":
        with found.admin() as admin:
            admin.execute("DROP SCHEMA versions CASCADE")


@pytest.fixture
def database(empty_database: Database) -> Database:
    """A store with a pending item."""
    with connect(empty_database.url, maintenance=False) as broker:
        broker.create_queue("jobs")
        broker.put("jobs", "kept")
    return empty_database


@pytest.fixture
def next_schema(database: Database, monkeypatch: pytest.MonkeyPatch) -> Migrate:
    """Adds a migration that executes the given statements."""

    def add(statements: str) -> None:
        schema = database.schema
        migration: Any = statements if schema is postgres_schema else lambda file, now: file.execute(statements)
        monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, migration))
        monkeypatch.setattr(schema, "NEWEST", schema.NEWEST + 1)

    return add


def test_older_store_is_migrated_and_keeps_its_items(database: Database, next_schema: Migrate) -> None:
    version = database.version
    next_schema(ADDED)
    with connect(database.url, maintenance=False) as broker:
        assert [lease.value for lease in broker.lease("jobs")] == ["kept"]
    assert database.version == version + 1
    assert database.rows("SELECT number FROM redrive_added") == [(1,)]
    with connect(database.url, maintenance=False) as broker:  # once
        assert broker.stats("jobs").active == 1


def test_result_that_was_kept_before_results_named_their_queue_is_still_there(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = database.schema
    names = [each if isinstance(each, str) else each.__name__ for each in schema.MIGRATIONS]
    position = next(at for at, name in enumerate(names) if at and "result" in name)
    with connect(database.url, maintenance=False) as broker:
        (lease,) = broker.lease("jobs")
        broker.complete(lease, result=42, keep_result="1h")
    with database.admin() as admin:
        for column in ("queue", "put_to"):
            admin.execute(f"ALTER TABLE redrive_result DROP COLUMN {column}")
    database.set_version(schema.FIRST + position - 1)
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[: position + 1])
    monkeypatch.setattr(schema, "NEWEST", schema.FIRST + position)
    with connect(database.url, maintenance=False) as broker:
        kept = broker.result(lease.id)
        assert kept is not None
        assert (kept.value, kept.queue, kept.put_to) == (42, "", None)


def test_holders_of_before_an_item_could_have_several_are_kept(
    empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = empty_database.schema
    texts = [each if isinstance(each, str) else each.__name__ for each in schema.MIGRATIONS]
    position = next(at for at, text in enumerate(texts) if "holder" in text)
    names = ("ann", "[", '["ann",true]', '[["a",true],["b",true]]', 'ü"\\')
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:position])
        earlier.setattr(schema, "NEWEST", schema.FIRST + position - 1)
        with connect(empty_database.url, maintenance=False) as broker:
            broker.create_queue("jobs")
            for name in names:
                broker.put("jobs", "waits", held_by=name)
                broker.archive(broker.put("jobs", "archived", held_by=name).id)
    with empty_database.admin() as admin:
        for table in ("redrive_scheduled", "redrive_finished"):
            for name in names:  # as a Redrive wrote it that knew only one
                written = encode_holders((ItemHolder(name),))
                quoted, raw = (each.replace("'", "''") for each in (written or "", name))
                admin.execute(f"UPDATE {table} SET held_by = '{raw}' WHERE held_by = '{quoted}'")
            assert {name for (name,) in admin.execute(f"SELECT held_by FROM {table}").fetchall()} == set(names)
    with connect(empty_database.url, maintenance=False) as broker:
        items = broker.find(status="any", archived=True).items
        assert sorted(item.held_by for item in items) == sorted((name,) for name in names for _ in range(2))
        assert [broker.unhold(name) for name in names] == [2] * len(names)
        assert [lease.value for lease in broker.lease("jobs", 20)] == ["waits"] * len(names)


_COUNTS = (
    "pending, failed, active, completed, dead, archived, dead_letters, put_total, completed_total, failed_total, "
    "dead_total, moving"
)
OF_THE_FIRST_SCHEMA = (
    "INSERT INTO redrive_namespace (key, name) VALUES (1, 'default')",
    "INSERT INTO redrive_queue (key, namespace, name, settings, version, paused, is_dead_queue, created_at) "
    "VALUES (1, 'default', 'jobs', '{{}}', 1, 0, 0, 1)",
    "INSERT INTO redrive_item (item_no, id_suffix, queue, put_at, priority, payload) VALUES (9, 8, 1, 7, 5, {payload})",
    "INSERT INTO redrive_ready VALUES (1, 9, 4, 7, 9, NULL, 0, 0, 0, 0, 0, NULL, 0, 0, NULL)",
    f"INSERT INTO redrive_count (queue, {_COUNTS}) VALUES (1, 1, 0, 0, 0, 0, 0, 0, 40, 30, 20, 10, 0)",
    f"INSERT INTO redrive_count_delta (key, queue, {_COUNTS}) VALUES (1, 1, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 0)",
)


@pytest.mark.parametrize("schema", range(sqlite_schema.FIRST, sqlite_schema.NEWEST))
def test_store_of_each_earlier_schema_is_migrated(
    empty_database: Database, schema: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        migrations = empty_database.schema.MIGRATIONS[: schema - sqlite_schema.FIRST + 1]
        earlier.setattr(empty_database.schema, "MIGRATIONS", migrations)
        earlier.setattr(empty_database.schema, "NEWEST", schema)
        with empty_database.admin() as admin:
            if empty_database.schema is postgres_schema:
                postgres_schema.prepare(admin, "versions", "versions", Instant(1), create=True)
            else:
                sqlite_schema.migrate(admin, Instant(1))
            payload = b'"kept"'.hex()
            written = f"'\\x{payload}'" if empty_database.schema is postgres_schema else f"x'{payload}'"
            for statement in OF_THE_FIRST_SCHEMA:
                admin.execute(statement.format(payload=written))
    assert empty_database.version == schema
    with connect(empty_database.url, maintenance=False) as broker:
        for _ in range(2):
            stats = broker.stats("jobs")
            assert (stats.pending, stats.put_total, stats.completed_total) == (1, 44, 33)
            assert (stats.failed_total, stats.dead_total, stats.redriven_total) == (22, 11, 0)
            broker.run_maintenance()
        broker.redrive(broker.fail(broker.lease("jobs")[0], "boom").id)
        stats = broker.stats("jobs")
        assert (stats.dead_total, stats.redriven_total, stats.exhausted_total) == (12, 1, 1)
        assert [lease.value for lease in broker.lease("jobs")] == ["kept"]
    assert empty_database.version == sqlite_schema.NEWEST


def test_migration_that_fails_leaves_the_store_as_it_was(
    database: Database, next_schema: Migrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, tables = database.version, database.tables()
    with monkeypatch.context():
        next_schema(BROKEN)
        with pytest.raises(StoreError):
            connect(database.url, maintenance=False)
    assert (database.version, database.tables()) == (version, tables)


@pytest.mark.parametrize("version", range(1, sqlite_schema.FIRST))
def test_store_of_a_development_version_is_refused_untouched(database: Database, version: int) -> None:
    database.set_version(version)
    with pytest.raises(SchemaTooOld, match=rf"has schema {version}, from before the first release.*export it"):
        connect(database.url, maintenance=False)
    assert database.version == version
    assert len(database.rows("SELECT * FROM redrive_item")) == 1


def test_store_of_a_newer_version_is_refused_untouched(database: Database) -> None:
    database.set_version(99)
    with pytest.raises(SchemaTooNew, match=r"has schema 99.*Upgrade Redrive"):
        connect(database.url, maintenance=False)
    assert database.version == 99
    assert len(database.rows("SELECT * FROM redrive_item")) == 1
