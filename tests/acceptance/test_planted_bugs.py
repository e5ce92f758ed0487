"""A checker counts only if it can fail: each of these plants a bug, and the checker that must find it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.acceptance.crashing import crash_everywhere
from tests.acceptance.faults import Fault
from tests.acceptance.histories import Entry, check_history, read_journal
from tests.acceptance.operations import OPERATIONS, furnish, open_broker
from tests.acceptance.places import Broken, Standing, places
from tests.acceptance.test_races import LATE, extend_while_the_sweep_looks, next_owner, race, same_token
from tests.acceptance.working import MAX_ATTEMPTS, Worker, create_queues

from redrive import Broker, connect
from redrive.stores.relational import settle
from redrive.stores.sqlite import session
from redrive.stores.sqlite.engine import Engine
from redrive.testing.fake_clock import FakeClock

ROUNDS = 500
OPERATION = {operation.name: operation for operation in OPERATIONS}


# Crash points


def acknowledge_before_the_commit() -> None:
    def begin_only(self: Engine, work: Any) -> Any:
        self.writer.execute("BEGIN IMMEDIATE")
        return work(self.writer)

    Engine._commit = begin_only  # type: ignore[method-assign]


def forget_the_transaction() -> None:
    Engine.transact = lambda self, work: work(self.writer)  # type: ignore[method-assign,assignment]


def test_acknowledgement_before_the_commit_is_found(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="1 steps were acknowledged"):
        crash_everywhere(OPERATION["put"], tmp_path, plant=acknowledge_before_the_commit)


@pytest.mark.parametrize("name", ["put", "complete", "fail, dead queue", "redrive from a dead queue", "delete a queue"])
def test_insert_and_delete_without_a_transaction_are_found(name: str, tmp_path: Path) -> None:
    with pytest.raises(Broken):
        crash_everywhere(OPERATION[name], tmp_path, plant=forget_the_transaction)


def test_normal_instead_of_full_is_found_by_a_power_cut(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="1 steps were acknowledged"):
        crash_everywhere(OPERATION["complete"], tmp_path, Fault.POWER_CUT, durability="relaxed")


def test_normal_instead_of_full_survives_a_kill(tmp_path: Path) -> None:
    """That is what relaxed durability promises; so the power cut above is what finds it, not the kill."""
    assert crash_everywhere(OPERATION["complete"], tmp_path, Fault.KILL, durability="relaxed") > 5


# Races


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[tuple[Broker, Broker, FakeClock]]:
    clock = FakeClock()
    url = f"sqlite:///{tmp_path}/redrive.db"
    with connect(url, clock=clock, maintenance=False) as one, connect(url, clock=clock, maintenance=False) as two:
        one.create_queue("jobs", lease_timeout="1s", max_losses=0, max_attempts=0)
        one.create_queue("other")
        yield one, two, clock


def test_missing_token_check_is_found(
    two_brokers: tuple[Broker, Broker, FakeClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(batch: Any, token: str) -> Any:
        place = settle.find_by_id(batch, settle.item_id_of(token))  # type: ignore[arg-type]
        if place is None or place.token is None:
            raise settle._lost(batch, token)
        return place

    monkeypatch.setattr(settle, "_find_leased", held)
    with pytest.raises(AssertionError, match="the late one True, its rival True"):
        race(*two_brokers, next_owner, [LATE[1]], ROUNDS)


def test_settle_that_does_not_end_the_lease_is_found(
    two_brokers: tuple[Broker, Broker, FakeClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "_settle_one", lambda batch, call, held: settle._find_leased(batch, call.token))
    with pytest.raises(AssertionError, match="the late one True, its rival True"):
        race(*two_brokers, same_token, [LATE[1]], ROUNDS)


def test_sweep_that_ignores_an_extension_is_found(
    two_brokers: tuple[Broker, Broker, FakeClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = settle._find_leased

    def held_and_overdue(batch: Any, token: str) -> Any:
        place = held(batch, token)
        place.deadline = batch.now
        return place

    monkeypatch.setattr(settle, "_find_leased", held_and_overdue)
    with pytest.raises(AssertionError, match="the sweep took it"):
        extend_while_the_sweep_looks(*two_brokers)


# Histories


def test_attempts_counted_at_success_only_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for statement in ("_HEAD", "_LEASE"):
        text = getattr(session, statement)
        assert "attempts + 1" in text
        monkeypatch.setattr(session, statement, text.replace("attempts + 1", "attempts"))
    path = tmp_path / "redrive.db"
    url = f"sqlite:///{path}"
    create_queues(url)
    Worker(url, tmp_path, number=1, life=0, share=20).run(lambda _: None)
    with pytest.raises(Broken, match="counts 0 attempts"):
        check_history(read_journal(tmp_path / "1.journal"), places(path), MAX_ATTEMPTS)


def _entries(*lines: tuple[str, str, int, int]) -> list[Entry]:
    """Calls on item 1: call, phase, delivery, attempts."""
    return [
        Entry(at, call, phase, values=[1], ids=["one"], delivery=delivery, attempts=attempts)
        for at, (call, phase, delivery, attempts) in enumerate(lines)
    ]


PUT = (("put", "invoke", 0, 0), ("put", "ok", 0, 0))
LEASE = ("lease", "ok", 1, 1)
COMPLETE = (("complete", "invoke", 1, 1), ("complete", "ok", 1, 1))
LEFT = Standing("one", "jobs", "dead", b"1", 1, 1, 0, 0, 0, None, 0, 0, None)


@pytest.mark.parametrize(
    ("found", "lines", "left"),
    [
        ("lost", PUT, []),
        ("lost", (*PUT, LEASE), []),
        ("more than once", PUT, [LEFT, LEFT]),
        ("more than once", (*PUT, LEASE, *COMPLETE), [LEFT]),
        ("nobody put", (LEASE,), [LEFT]),
        ("given twice", (*PUT, LEASE, LEASE), [LEFT]),
        ("counts 7 attempts", (*PUT, ("lease", "ok", 7, 7)), [LEFT]),
        ("settled twice", (*PUT, LEASE, *COMPLETE, *COMPLETE), []),
        ("stale settle", (*PUT, LEASE, ("lease", "ok", 2, 2), *COMPLETE), []),
        ("after its completion", (*PUT, LEASE, *COMPLETE, ("lease", "ok", 2, 2)), []),
    ],
)
def test_history_that_must_not_be_is_found(found: str, lines: Any, left: list[Standing]) -> None:
    with pytest.raises(Broken, match=found):
        check_history(_entries(*lines), left, MAX_ATTEMPTS)


def test_history_of_a_call_whose_outcome_is_unknown_is_accepted() -> None:
    assert check_history(_entries(PUT[0]), [], MAX_ATTEMPTS).unknown == 1
    assert check_history(_entries(*PUT, LEASE, COMPLETE[0]), [], MAX_ATTEMPTS).put == 1


def test_history_of_a_lease_that_is_written_down_late_is_accepted() -> None:
    """Its worker was starved meanwhile: it ran out, and the next delivery was completed."""
    next_delivery = (("lease", "ok", 2, 2), ("complete", "invoke", 2, 2), ("complete", "ok", 2, 2))
    assert check_history(_entries(*PUT, *next_delivery, LEASE), [], MAX_ATTEMPTS).completed == 1


# Places


@pytest.mark.parametrize(
    ("found", "damage"),
    [
        ("in no place", "DELETE FROM redrive_ready WHERE item_no = (SELECT min(item_no) FROM redrive_ready)"),
        ("in no place", "DELETE FROM redrive_finished WHERE status = 'dead'"),
        ("in two places", "INSERT INTO redrive_scheduled SELECT item_no, queue, 'failed', NULL, rank, ready_at, seq,"
         " expire_deadline, deliveries, attempts, failures, losses, redrives, first_leased_at, entries, deaths,"
         " death_no FROM redrive_ready"),
        ("do not exist", "DELETE FROM redrive_item WHERE item_no IN (SELECT item_no FROM redrive_lease)"),
        ("counts", "UPDATE redrive_count_delta SET pending = pending + 1 WHERE key = 1"),
        ("counts", "DELETE FROM redrive_dead_letter"),
        ("entries", "DELETE FROM redrive_history"),
        ("deaths", "DELETE FROM redrive_death"),
        ("rows of items", "INSERT INTO redrive_history (key, item_no, entry, data) VALUES (1, 1, 1, x'')"),
        ("old one", "INSERT INTO redrive_former_id SELECT item_no, id_suffix, item_no FROM redrive_item LIMIT 1"),
        ("stands in", "UPDATE redrive_lease SET queue = queue + 1"),
        ("holders", "INSERT INTO redrive_holder SELECT item_no, 1, 'breaker' FROM redrive_scheduled"),
    ],
)  # fmt: skip
def test_damaged_file_is_found(found: str, damage: str, tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    with open_broker(path) as broker:
        furnish(broker)
        broker.put("jobs", "ready")
    assert places(path)
    connection = apsw.Connection(str(path))
    connection.execute(damage)
    connection.close()
    with pytest.raises(Broken, match=found):
        places(path)
