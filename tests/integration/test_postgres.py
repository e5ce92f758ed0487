"""What concerns the server: starting on an empty database, rights, lost connections, restarts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.servers.postgres import Server

from redrive import Broker, connect
from redrive.errors import InvalidInput, StoreReadOnly, StoreUnavailable
from redrive.stores.postgres.dialect import Bigints, Blobs, Texts, multi_row, translate
from redrive.stores.postgres.session import Session, adapt


@pytest.fixture
def admin(postgres: Server) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def url(postgres: Server, admin: psycopg.Connection[Any], request: pytest.FixtureRequest) -> Iterator[str]:
    schema = f"own_{abs(hash(request.node.nodeid)):x}"
    yield f"{postgres.url}?schema={schema}"
    admin.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with connect(url, maintenance=False) as broker:
        broker.create_queue("jobs")
        yield broker


def terminate(admin: psycopg.Connection[Any], *, listeners: bool) -> int:
    """Cut connections of Redrive on the server. Gives how many there were."""
    found = admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'redrive' "
        "AND (query LIKE 'LISTEN%%') = %s",
        (listeners,),
    ).fetchall()
    return len(found)


def test_many_that_start_at_once_make_the_tables_once(url: str) -> None:
    together = threading.Barrier(8)
    problems: list[BaseException] = []

    def start() -> None:
        together.wait()
        try:
            with connect(url, maintenance=False) as broker:
                broker.create_queue("jobs")
                broker.put("jobs", 1)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    with connect(url, maintenance=False) as broker:
        assert broker.stats("jobs").pending == 8


def test_without_create_an_empty_database_is_an_error(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="no tables of Redrive"):
        connect(url, create_if_missing=False)
    connect(url).close()
    connect(url, create_if_missing=False).close()


def test_role_with_the_documented_rights_and_no_others(url: str, postgres: Server, admin: Any) -> None:
    connect(url).close()
    schema = url.partition("schema=")[2]
    role = f"app_{schema}"
    admin.execute(f'CREATE ROLE "{role}" LOGIN')
    try:
        admin.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{role}"')
        admin.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO "{role}"')
        admin.execute(f'GRANT USAGE ON ALL SEQUENCES IN SCHEMA "{schema}" TO "{role}"')
        theirs = url.replace("postgres@", f"{role}@")
        with connect(theirs, maintenance=False) as broker:
            broker.create_queue("jobs")
            broker.put("jobs", 1)
            (lease,) = broker.lease("jobs")
            broker.fail(lease, "boom", final=True)
            broker.redrive(broker.find().items[0].id)
            broker.run_maintenance()
            assert broker.stats("jobs").pending == 1
    finally:
        admin.execute(f'DROP OWNED BY "{role}"')
        admin.execute(f'DROP ROLE "{role}"')


def test_role_without_rights_is_told_what_it_lacks(url: str, admin: Any) -> None:
    connect(url).close()
    role = f"stranger_{url.partition('schema=')[2]}"
    admin.execute(f'CREATE ROLE "{role}" LOGIN')
    try:
        with pytest.raises(StoreReadOnly, match=r"permission denied.*grant this role the rights"):
            connect(url.replace("postgres@", f"{role}@"))
    finally:
        admin.execute(f'DROP ROLE "{role}"')


def test_lost_connection_is_made_again(broker: Broker, admin: Any, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        assert terminate(admin, listeners=False)
        broker.put("jobs", number)
        assert terminate(admin, listeners=False)
        assert broker.stats("jobs").pending == number + 1
    assert [record.getMessage() for record in caplog.records if record.name.startswith("psycopg")] == []


def test_waiting_lease_is_woken_after_its_listener_was_lost(broker: Broker, url: str, admin: Any) -> None:
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(broker.lease("jobs", wait="1h")), daemon=True)
    waiting.start()
    while not admin.execute("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'").fetchall():
        pass
    assert terminate(admin, listeners=True)
    with connect(url, maintenance=False) as other:
        other.put("jobs", 1)
    waiting.join(120)
    assert len(found) == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_restarted_server_is_found_again(how: signal.Signals) -> None:
    server = Server()
    try:
        with connect(server.url, maintenance=False) as broker:
            broker.create_queue("jobs")
            for number in range(20):
                broker.put("jobs", number)
            (lease,) = broker.lease("jobs")
            server.stop(how)
            with pytest.raises(StoreUnavailable):
                broker.put("jobs", "while it is down")
            server.start()
            broker.complete(lease)
            broker.put("jobs", "after")
            assert [lease.value for lease in broker.lease("jobs", 100)] == [*range(1, 20), "after"]
    finally:
        server.destroy()


def test_item_that_is_committed_late_is_leased(broker: Broker, postgres: Server) -> None:
    with psycopg.connect(postgres.url) as late:
        late.execute("SELECT 1")
        receipt = broker.put("jobs", "late", transaction=late)
        for number in range(10):
            broker.put("jobs", number)
            (lease,) = broker.lease("jobs")
            broker.complete(lease)
            broker.run_maintenance()
        assert broker.lease("jobs") == []
        late.commit()
    assert [lease.id for lease in broker.lease("jobs")] == [receipt.id]


def test_within_takes_a_connection_to_the_same_database(broker: Broker, admin: Any) -> None:
    with pytest.raises(InvalidInput, match="transaction open"):
        broker.put("jobs", 1, transaction=admin)
    with pytest.raises(InvalidInput, match=r"psycopg\.Connection"):
        broker.put("jobs", 1, transaction=object())


def test_server_that_does_not_sync_is_refused(admin: Any, url: str) -> None:
    admin.execute("ALTER SYSTEM SET fsync = off")
    admin.execute("SELECT pg_reload_conf()")
    try:
        while admin.execute("SHOW fsync").fetchone() != ("off",):
            pass
        with pytest.raises(StoreUnavailable, match="fsync is off"):
            connect(url)
        with connect(url, durability="relaxed") as broker:
            assert broker.durability().level == "relaxed"
    finally:
        admin.execute("ALTER SYSTEM RESET fsync")
        admin.execute("SELECT pg_reload_conf()")


def test_nobody_answers() -> None:
    with pytest.raises(StoreUnavailable, match="postgresql://127"):
        connect("postgresql://nobody@127.0.0.1:1/none")


@pytest.mark.parametrize(
    ("statement", "translated"),
    [
        (
            "SELECT a FROM redrive_item WHERE item_no IN carray(?)",
            'SELECT a FROM "s".redrive_item WHERE item_no = ANY($1::bigint[])',
        ),
        ("SELECT ?2, ?1 /*+ FOR UPDATE */", "SELECT $2, $1  FOR UPDATE "),
        ("SELECT value FROM carray(?)", "SELECT value FROM unnest($1) WITH ORDINALITY AS listed(value, rowid)"),
        ("CAST(?1 || x AS BLOB)", "convert_to($1 || x, 'UTF8')"),
        ("a CROSS JOIN b ON c", "a JOIN b ON c"),
        (
            "carray(?) AS c CROSS JOIN redrive_item AS i ON i.item_no = c.value",
            "unnest($1::bigint[]) WITH ORDINALITY AS c(value, rowid) "
            'JOIN LATERAL (SELECT * FROM "s".redrive_item AS i WHERE i.item_no = c.value OFFSET 0) AS i ON true',
        ),
        ("SELECT 1 /*= + 1 */ /*-*/ - 1 /*-*/", "SELECT 1  + 1  "),
        ("FROM redrive_dead_letter INDEXED BY redrive_dead_letter_queue", 'FROM "s".redrive_dead_letter '),
    ],
)
def test_statement_in_other_words(statement: str, translated: str) -> None:
    assert translate(statement, "s", True) == translated


def test_rows_are_locked_only_by_who_writes() -> None:
    assert translate("SELECT 1 /*+ FOR UPDATE */", "s", False) == "SELECT 1 "


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (Bigints([1, -(2**63), 2**63 - 1]), "bigint"),
        (Bigints([None, 7, None]), "bigint"),
        (Bigints(), "bigint"),
        (Texts(["a", "", "ä\x1f{},\"'\\ NULL", None]), "text"),
        (Texts(), "text"),
        (Blobs([b"", b"\0\xff", None]), "bytea"),
    ],
)
def test_array_arrives_as_it_is(admin: psycopg.Connection[Any], array: list[Any], kind: str) -> None:
    adapt(admin)
    ((found, count),) = (
        psycopg.RawCursor(admin)
        .execute(f"SELECT $1, coalesce(array_length($1::{kind}[], 1), 0)", (array,), binary=True)
        .fetchall()
    )
    assert found == array
    assert count == len(array)


def test_rows_of_a_kind_are_written_with_one_statement(broker: Broker, url: str, admin: Any) -> None:
    """Columns that are NULL in all of them, in some of them, and lists of different lengths."""
    schema = url.partition("schema=")[2]
    adapt(admin)
    session = Session(admin, schema, locking=True)
    words = "INSERT INTO redrive_search (rowid, terms) VALUES (?, ?)"
    letters = [(1, Texts(["a", "b"])), (2, Texts(["c"]))]
    assert multi_row(words, letters) is not None
    session.executemany(words, letters)
    assert session.execute("SELECT rowid, terms FROM redrive_search ORDER BY rowid").fetchall() == letters
    columns = "namespace, at, actor, verb, queue, ids, count, note"
    rows = [("n", 1, "a", "v", None, "[]", 0, None), ("n", 2, "a", "v", "q", "[]", 0, None)]
    session.executemany(f"INSERT INTO redrive_audit ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    found = session.execute(f"SELECT {columns} FROM redrive_audit WHERE at < 3 ORDER BY at")
    assert found.fetchall() == rows
    changed = "UPDATE redrive_audit SET note = ?, count = ? WHERE at = ?"
    assert multi_row(changed, [("b", 7, 1), ("c", 8, 2)]) is not None
    session.executemany(changed, [(None, 7, 1), ("c", 8, 2)])
    assert session.execute("SELECT note, count FROM redrive_audit ORDER BY at").fetchall() == [(None, 7), ("c", 8)]
    removed = "DELETE FROM redrive_audit WHERE at = ? AND actor = ? AND count = 7"
    assert multi_row(removed, [(1, "a"), (2, "a")]) is not None
    session.executemany(removed, [(1, "a"), (2, "a")])
    assert session.execute("SELECT count FROM redrive_audit").fetchall() == [(8,)]
    assert multi_row("UPDATE redrive_audit SET count = count + ? WHERE at = ?", [(1, 1), (1, 2)]) is None
