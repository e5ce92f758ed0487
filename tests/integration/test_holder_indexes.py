"""Items are found by the name of a holder through an index, whether they have one holder or several."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from tests.servers.postgres import Server

from redrive import connect
from redrive.model.holder import ItemHolder, encode_holders
from redrive.stores.postgres.dialect import translate
from redrive.stores.redis.indexes import DeadLetterIndexes
from redrive.stores.relational.find import _SearchPlan
from redrive.stores.relational.holder_index import HELD

INDEXES = ("redrive_scheduled_held", "redrive_finished_held", "redrive_holder_name")
ASKED = (*(encode_holders((ItemHolder("ann", lasting),)) for lasting in (False, True)), "default", 1, "ann", 1000)


def fill(url: str) -> None:
    with connect(url, maintenance=False) as broker:
        broker.create_queue("jobs")
        ids = [receipt.id for receipt in broker.put_many("jobs", range(50))]
        for name in ("ann", "bob"):
            broker.hold(ids[:20], name, lasting=True)
        broker.bury_items(ids[:10])


def test_index_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    fill(f"sqlite:///{path}")
    with closing(apsw.Connection(str(path))) as admin:
        plan = [row[3] for row in admin.execute(f"EXPLAIN QUERY PLAN {HELD}", ASKED)]
    assert not [step for step in plan if step.startswith("SCAN")], plan
    assert [name for name in INDEXES if not any(name in step for step in plan)] == []


def test_index_on_postgres(postgres: Server) -> None:
    fill(f"{postgres.url}?schema=holders")
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        try:
            plan = explain(admin)
        finally:
            admin.execute("DROP SCHEMA holders CASCADE")
    assert [name for name in INDEXES if name not in plan] == []


def explain(admin: psycopg.Connection[Any]) -> str:
    """The plan of any values, as for the store, in which tables are never small enough for a scan."""
    with admin.transaction(force_rollback=True):
        admin.execute("SET LOCAL enable_seqscan = off")
        admin.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor = psycopg.RawCursor(admin)
        rows = cursor.execute(f"EXPLAIN {translate(HELD, 'holders', True)}", ASKED).fetchall()
    return "\n".join(line for (line,) in rows)


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_what_a_holder_has_is_found_and_counted_without_reading_the_queue(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if store == "sqlite" else request.getfixturevalue(f"{store}_url")
    fill(url)

    def read_all(*given: Any, **options: Any) -> Any:
        raise AssertionError("it walks through all items")

    monkeypatch.setattr(_SearchPlan, "items", read_all)
    monkeypatch.setattr(DeadLetterIndexes, "walk", read_all)
    with connect(url, maintenance=False) as broker:
        assert broker.count(held_by="ann", status="any") == 20
        assert len(broker.find(held_by="bob", status="pending", limit=50).items) == 10
        assert broker.find(held_by="eve", status="pending").items == ()


@pytest.mark.parametrize("name", ["ann", "[", '["ann",true]'])
def test_text_of_one_holder_fits_into_an_index_entry(name: str) -> None:
    longest = encode_holders((ItemHolder(name + "\x01" * (256 - len(name)), True),))
    assert longest is not None
    assert len(longest.encode()) < 2_600
