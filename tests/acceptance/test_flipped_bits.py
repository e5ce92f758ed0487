"""A bit of a SQLite file that flips, wherever it is: damage is named, or nothing is missing. Never silently fewer."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.sizes import THOROUGH
from tests.terminal.cli import Cli

from redrive import Broker, connect
from redrive.errors import OutcomeUnknown, StoreError
from redrive.stores.sqlite import SQLiteStore
from redrive.testing.fake_clock import FakeClock

FLIPS = 1_000 if THOROUGH else 60
PUTS = 40


@pytest.fixture
def stored(tmp_path: Path) -> bytes:
    """A file with items in every state, keys, histories, dead letters."""
    path = tmp_path / "jobs.db"
    fill(address(path))
    return path.read_bytes()


def address(path: Path) -> str:
    return f"sqlite:///{path}"


def fill(url: str) -> None:
    with opened(url) as broker:
        broker.create_queue("retried", retry={"attempts": 2, "cooldown": "1h"})
        broker.create_queue("fatal", retry={"attempts": 1}, keep_completed="30d")
        for queue in ("retried", "fatal"):
            for number in range(PUTS):
                key = f"{queue}-{number}" if number % 3 == 0 else None
                delay = "1h" if number % 7 == 0 else 0
                broker.put(queue, {"number": number}, idempotency_key=key, priority=number % 10, delay=delay)
            for number, lease in enumerate(broker.lease(queue, PUTS * 2 // 3)):
                match number % 4:
                    case 0:
                        broker.complete(lease)
                    case 1:
                        broker.fail(lease, ValueError(f"boom {number % 3}"))
                    case 2:
                        broker.release(lease)
        broker.run_maintenance()


def opened(url: str, after: str = "0s") -> Broker:
    clock = FakeClock()
    clock.advance(after)
    return connect(url, maintenance=False, clock=clock)


def inventory(url: str) -> tuple[Any, ...]:
    """What is there, by every way to it: of each queue and status, of the counts, and what is given later."""
    with opened(url) as broker:
        there = Counter((item.queue, item.status) for item in broker.find(status="any", limit=1_000).items)
        each = Counter(
            (queue, status, len(broker.find(queue=queue, status=status, limit=1_000).items))
            for queue in ("retried", "fatal")
            for status in ("pending", "failed", "active", "completed", "dead")
        )
        counts = [(one.queue, one.pending, one.failed, one.active, one.dead) for one in broker.list_stats()]
        groups = sorted(group.count for group in broker.groups())
    with opened(url, after="3h") as broker:
        for _ in range(6):
            broker.run_maintenance()
        leased = [len(broker.lease(queue, 1_000)) for queue in ("retried", "fatal")]
    return there, each, counts, groups, leased


def named(url: str) -> bool:
    """Whether `redrive doctor` and `health()` name damage."""
    with opened(url) as broker:
        return bool(broker.core.store.examine()) or not broker.health().is_healthy


def missed(stored: bytes, folder: Path, flips: int) -> Iterator[tuple[int, int]]:
    """Flip one bit after the other. Returns those after which something is missing, and no error or check names it."""
    path = folder / "whole.db"
    path.write_bytes(stored)
    whole = inventory(address(path))
    chance = random.Random(len(stored))
    used = [at for at, byte in enumerate(stored) if byte]
    for number in range(flips):
        at, bit = chance.choice(used) if number % 2 else chance.randrange(len(stored)), chance.randrange(8)
        for left in folder.glob("flipped.db*"):
            left.unlink()
        path = folder / "flipped.db"
        path.write_bytes(stored[:at] + bytes([stored[at] ^ 1 << bit]) + stored[at + 1 :])
        try:
            is_missed = not named(address(path)) and inventory(address(path)) != whole
        except (StoreError, OutcomeUnknown):  # an error that names the store is never silent
            continue
        if is_missed:
            yield at, bit


def test_flipped_bit_in_a_file_is_named_or_nothing_is_missing(stored: bytes, tmp_path: Path) -> None:
    assert list(missed(stored, tmp_path, FLIPS)) == []


def test_some_flips_lose_items_silently_if_the_file_is_not_examined(
    stored: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SQLiteStore, "examine", lambda store: ())
    assert next(missed(stored, tmp_path, 5_000), None) is not None


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM redrive_ready WHERE item_no = (SELECT max(item_no) FROM redrive_ready)", "1 item in no place"),
        ("DELETE FROM redrive_lease", "12 items in no place"),
        ("DELETE FROM redrive_item WHERE item_no IN (SELECT item_no FROM redrive_finished)", "14 rows of items that"),
        ("UPDATE redrive_item SET queue = queue + 8 WHERE item_no = (SELECT max(item_no) FROM redrive_item)", "1 item"),
        ("UPDATE redrive_count SET pending = pending + 4 WHERE queue = 1", "queue 'retried' counts 24 pending items"),
    ],
)
def test_rows_that_do_not_belong_together_are_named(stored: bytes, tmp_path: Path, damage: str, problem: str) -> None:
    path = tmp_path / "damaged.db"
    path.write_bytes(stored)
    with opened(address(path)) as broker:
        assert broker.core.store.examine() == ()
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute(damage)
    with opened(address(path)) as broker:
        assert problem in broker.core.store.examine()[0]


def test_index_that_misses_an_entry_and_a_changed_definition_are_named(stored: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    for wanted, there, problem in (
        ("redrive_scheduled (queue, ready_at) WHERE", "redrive_scheduled (queue, deaths) WHERE", "definition of"),
        ("redrive_lease (queue, deadline)", "redrive_lease (queue, attempts)", "missing from index"),
    ):
        path.write_bytes(stored)
        with contextlib.closing(apsw.Connection(str(path))) as connection:
            connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
            connection.pragma("writable_schema", 1)
            connection.execute("UPDATE sqlite_schema SET sql = replace(sql, ?, ?)", (wanted, there))
        with opened(address(path)) as broker:
            assert any(problem in each for each in broker.core.store.examine())
        found = Cli(f"sqlite:///{path}").json("doctor", exits=1)["checks"]
        assert {check["state"] for check in found if check["name"] == "structure"} == {"fail"}
