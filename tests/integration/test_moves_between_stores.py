"""Moves between stores that outlive a process: files and servers, and those that an older Redrive has written."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import psycopg
import pytest
from tests.servers.postgres import Server
from tests.until import until

from redrive import Broker, connect
from redrive.clock import Instant
from redrive.stores.postgres import schema as postgres_schema
from redrive.stores.sqlite import schema as sqlite_schema
from redrive.testing.conformance.actions import kill, take, values

QUEUE = "INSERT INTO redrive_queue VALUES (1, 'default', 'jobs', '{}', 1, 0, 0, 0)"
ITEM = """
    INSERT INTO redrive_item (n, tail, queue, put_at, priority, payload) VALUES (7, 65536, 1, 5, 5, '"old"')"""
READY = "INSERT INTO redrive_ready VALUES (1, 7, 4, 5, 7, NULL, 0, 0, 0, 0, 0, NULL, 0, 0, NULL)"
COUNT = "INSERT INTO redrive_count VALUES (1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0)"
NAMESPACE = "INSERT INTO redrive_namespace (name) VALUES ('default')"


def check_old_item_moves(url: str) -> None:
    """What was put before this schema dies, and goes to another store."""
    with connect(url, store_name="here", stores={"there": "memory://"}, maintenance=False) as broker:
        there = broker.on_store("there")
        there.create_queue("morgue")
        assert (broker.stats("jobs").pending, broker.stats("jobs").moving) == (1, 0)
        broker.update_queue("jobs", dead_queue="morgue@there")
        assert broker.fail(take(broker), "boom").status == "moving"
        assert broker.stats("jobs").moving == 1
        broker.run_maintenance()
        assert [item.value for item in there.find().items] == ["old"]
        assert broker.stats("jobs").moving == 0


def test_older_file_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with closing(apsw.Connection(str(path))) as old:
        sqlite_schema.MIGRATIONS[0](old, Instant(0))
        old.execute("UPDATE redrive_meta SET version = ?", (sqlite_schema.FIRST,))
        for statement in (QUEUE, ITEM.replace("'\"old\"'", "CAST('\"old\"' AS BLOB)"), READY, COUNT, NAMESPACE):
            old.execute(statement)
    check_old_item_moves(f"sqlite:///{path}")


def test_older_schema_of_a_server_is_brought_up_to_date(postgres: Server, postgres_url: str) -> None:
    name = postgres_url.partition("schema=")[2]
    with psycopg.connect(postgres.url) as old:
        old.execute(f'CREATE SCHEMA "{name}"')
        old.execute(f'SET LOCAL search_path TO "{name}"')
        old.execute(postgres_schema.MIGRATIONS[0])
        old.execute(f"CREATE SEQUENCE redrive_number INCREMENT BY {postgres_schema.BLOCK} START WITH 1000000")
        old.execute("INSERT INTO redrive_meta VALUES (1, 1, 0)")
        for statement in (QUEUE, ITEM.replace("'\"old\"'", "'\"old\"'::bytea"), READY, COUNT, NAMESPACE):
            old.execute(statement)
    check_old_item_moves(postgres_url)


@pytest.mark.parametrize("direction", ["to the server", "from the server"])
def test_items_go_to_a_server_and_back_by_themselves(tmp_path: Path, postgres_url: str, direction: str) -> None:
    urls = [f"sqlite:///{tmp_path}/jobs.db", postgres_url]
    here, there = urls if direction == "to the server" else urls[::-1]
    with connect(here, store_name="here", stores={"there": there}) as broker:
        other = broker.on_store("there")
        other.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue@there")
        for n in range(20):
            kill(broker, n)
        until(lambda: other.count(queue="morgue") == 20 and broker.count(status="any") == 0)
        other.redrive([item.id for item in other.find(queue="morgue").items])
        until(lambda: broker.stats("jobs").pending == 20)
        assert sorted(values(broker.lease("jobs", 20))) == list(range(20))
        until(lambda: other.count(status="any") == 0)


def test_another_process_goes_on_after_the_store_was_away(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    url = f"sqlite:///{tmp_path}/jobs.db"
    stores = {"there": f"sqlite:///{folder}/there.db"}

    def open_one() -> Broker:
        return connect(url, store_name="here", stores=stores, maintenance=False)

    folder.mkdir()
    with open_one() as broker:
        broker.on_store("there").create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue@there")
    away = folder.rename(tmp_path / "away")
    with open_one() as broker:
        kill(broker, "x")
        assert broker.run_maintenance().moved == 0
        assert "does not exist" in (broker.moves()[0].problem or "")
    away.rename(folder)
    with open_one() as broker:
        assert broker.run_maintenance().moved == 1
        assert broker.on_store("there").count() == 1
