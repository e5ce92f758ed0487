"""A damaged log is told from one that ends early, before SQLite writes over it; and one that was emptied is noticed."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.sizes import THOROUGH
from tests.terminal.cli import Cli

from redrive import Broker, connect
from redrive.errors import OutcomeUnknown, RedriveError, StoreUnavailable
from redrive.stores.sqlite import engine
from redrive.stores.sqlite.log_damage import FRAME_HEADER_BYTES, HEADER_BYTES

FRAME_BYTES = FRAME_HEADER_BYTES + engine.PAGE_BYTES
PUTS = 12
FLIPS = 1_000 if THOROUGH else 60


def copy_of(path: Path, folder: Path) -> Path:
    """A database and its log as a killed program leaves them."""
    folder.mkdir(exist_ok=True)
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", folder / f"jobs.db{suffix}")
    for left in folder.glob("jobs.db-[sl]*"):
        left.unlink()
    return folder / "jobs.db"


def frames(log: Path) -> list[bool]:
    """Whether each frame commits, of the newest log in the file."""
    data = log.read_bytes()
    heads = [data[at : at + FRAME_HEADER_BYTES] for at in range(HEADER_BYTES, len(data), FRAME_BYTES)]
    return [struct.unpack(">I", head[4:8])[0] > 0 for head in heads if head[8:16] == data[16:24]]


def flip(file: Path, at: int, bit: int = 0) -> None:
    with file.open("r+b") as data:
        data.seek(at)
        (byte,) = data.read(1)
        data.seek(at)
        data.write(bytes([byte ^ 1 << bit]))


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store whose program was killed after some puts, each a transaction."""
    path = tmp_path / "jobs.db"
    with connect(f"sqlite:///{path}", maintenance=False) as broker:
        broker.create_queue("jobs")
    with connect(f"sqlite:///{path}", maintenance=False) as broker:
        for number in range(PUTS):
            broker.put("jobs", number)
        return copy_of(path, tmp_path / "killed")


def values(broker: Broker) -> list[Any]:
    return [item.value for item in broker.find(status="any", order="oldest", limit=1_000).items]


def look(path: Path) -> tuple[list[Any], tuple[str, ...]]:
    """What is there after the next start, and what health says."""
    with connect(f"sqlite:///{path}", maintenance=False) as broker:
        broker.put("jobs", "new")
        found = values(broker)
        assert found.pop() == "new"
        return found, broker.health().warnings


def copies(path: Path) -> list[Path]:
    return sorted(path.parent.glob("jobs.db-wal-damaged-*"))


def test_flip_in_any_frame_but_the_last_ones_is_named(killed: Path, tmp_path: Path) -> None:
    commits = frames(Path(f"{killed}-wal"))
    ends = [at for at, commit in enumerate(commits) if commit]
    assert len(ends) == PUTS
    for at in range(len(commits)):
        path = copy_of(killed, tmp_path / f"flipped-{at}")
        log = Path(f"{path}-wal")
        flip(log, HEADER_BYTES + at * FRAME_BYTES + FRAME_HEADER_BYTES + 8)
        damaged = log.read_bytes()
        found, warnings = look(path)
        lost = sum(1 for end in ends if end >= at)
        assert found == list(range(PUTS - lost))
        if lost > 2:
            (warning,) = warnings
            (copy,) = copies(path)
            assert "is damaged: its log was damaged" in warning
            assert f"at least the last {lost} transactions" in warning
            assert str(copy) in warning
            assert copy.read_bytes() == damaged
            assert look(path)[1] == warnings
            copy.unlink()
            assert look(path)[1] == ()


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_flip_in_the_header_of_the_log_is_named(killed: Path, at: int) -> None:
    flip(Path(f"{killed}-wal"), at, 3)
    found, warnings = look(killed)
    assert len(found) == PUTS or "is damaged" in warnings[0]


def test_random_flips_in_a_log_lose_nothing_silently(killed: Path, tmp_path: Path) -> None:
    """But the last transactions, which a power cut could have left so."""
    chance = random.Random(len(killed.name))
    size = os.path.getsize(f"{killed}-wal")
    for number in range(FLIPS):
        path = copy_of(killed, tmp_path / "flipped")
        for left in copies(path):
            left.unlink()
        flip(Path(f"{path}-wal"), chance.randrange(size), chance.randrange(8))
        found, warnings = look(path)
        assert found == list(range(len(found)))
        assert len(found) >= PUTS - 2 or "is damaged" in warnings[0], number


def test_log_that_ends_early_is_not_damaged(killed: Path, tmp_path: Path) -> None:
    whole = Path(f"{killed}-wal").read_bytes()
    for length in {*range(0, len(whole), FRAME_BYTES), *range(HEADER_BYTES, len(whole), FRAME_BYTES + 7)}:
        path = copy_of(killed, tmp_path / "torn")
        os.truncate(f"{path}-wal", length)
        assert look(path)[1] == ()


def test_last_transaction_that_lacks_a_frame_is_not_damage(tmp_path: Path) -> None:
    """A power cut keeps its frames in any order."""
    path = tmp_path / "jobs.db"
    with connect(f"sqlite:///{path}", maintenance=False) as broker:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        before = len(frames(Path(f"{path}-wal")))
        broker.put_many("jobs", ["x" * 3_000] * 20)
        commits = frames(Path(f"{path}-wal"))
        assert commits[before:].count(True) == 1
        for at in range(before, len(commits)):
            copy = copy_of(path, tmp_path / f"cut-{at}")
            with Path(f"{copy}-wal").open("r+b") as log:
                log.seek(HEADER_BYTES + at * FRAME_BYTES)
                log.write(bytes(FRAME_BYTES))
            assert look(copy) == ([1], ())


def test_frames_of_an_earlier_log_are_not_damage(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with connect(f"sqlite:///{path}", maintenance=False) as broker:
        broker.create_queue("jobs")
        for number in range(PUTS):
            broker.put("jobs", number)
        other = apsw.Connection(str(path))
        other.pragma("user_version")
        other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        broker.put("jobs", PUTS)
        assert os.path.getsize(f"{path}-wal") > HEADER_BYTES + 2 * FRAME_BYTES * len(frames(Path(f"{path}-wal")))
        copy = copy_of(path, tmp_path / "killed")
    assert look(copy) == (list(range(PUTS + 1)), ())


def test_what_a_large_transaction_left_when_it_was_rolled_back_is_not_damage(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with connect(f"sqlite:///{path}", maintenance=False) as broker:
        broker.create_queue("jobs")
        program = apsw.Connection(str(path))
        program.execute("PRAGMA cache_size = 1; BEGIN IMMEDIATE; CREATE TABLE large (value)")
        for _ in range(500):
            program.execute("INSERT INTO large VALUES (randomblob(3000))")
        program.execute("ROLLBACK")
        program.close()
        assert os.path.getsize(f"{path}-wal") > 400 * FRAME_BYTES
        broker.put("jobs", 1)
        copy = copy_of(path, tmp_path / "killed")
    assert look(copy) == ([1], ())


def test_doctor_says_that_a_log_was_damaged(killed: Path) -> None:
    flip(Path(f"{killed}-wal"), HEADER_BYTES + FRAME_HEADER_BYTES)
    found = Cli(f"sqlite:///{killed}").json("doctor", exits=1)["checks"]
    (check,) = (check for check in found if check["name"] == "store")
    assert check["state"] == "warn"
    assert "is damaged: its log was damaged" in check["finding"]


def test_relaxed_log_that_a_power_cut_left_incomplete_is_not_damaged(killed: Path) -> None:
    """Its transactions are not synced one after the other."""
    flip(Path(f"{killed}-wal"), HEADER_BYTES + FRAME_HEADER_BYTES)
    with connect(f"sqlite:///{killed}", maintenance=False, durability="relaxed") as broker:
        assert broker.health().is_healthy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    with connect(f"sqlite:///{path}", maintenance=False) as broker:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(PUTS))
        yield broker


def in_transaction(broker: Broker) -> None:
    program = apsw.Connection(broker.core.store._engine.name)  # type: ignore[attr-defined]
    with program:
        broker.put("jobs", 1, transaction=program)


CALLS: tuple[Callable[[Broker], object], ...] = (
    lambda broker: broker.put("jobs", 1),
    lambda broker: broker.lease("jobs"),
    lambda broker: broker.find(),
    lambda broker: broker.stats("jobs"),
    lambda broker: broker.run_maintenance(),
    in_transaction,
)


@pytest.mark.parametrize("length", [0, HEADER_BYTES, HEADER_BYTES + FRAME_BYTES])
@pytest.mark.parametrize("call", CALLS)
def test_log_that_was_emptied_or_cut_is_noticed_by_every_call(
    broker: Broker, path: Path, call: Callable[[Broker], object], length: int
) -> None:
    before = path.read_bytes()
    os.truncate(f"{path}-wal", length)
    for each in (call, *CALLS):
        with pytest.raises(StoreUnavailable, match="its log was emptied or cut under this program"):
            each(broker)
    assert any("its log was emptied" in warning for warning in broker.health().warnings)
    broker.close()
    assert path.read_bytes() == before
    _, (warning,) = look_without_queue(path)
    assert "is damaged: its log was emptied while programs used it" in warning


def look_without_queue(path: Path) -> tuple[list[Any], tuple[str, ...]]:
    with connect(f"sqlite:///{path}", maintenance=False) as broker:
        return values(broker), broker.health().warnings


def test_log_that_is_emptied_during_a_transaction_leaves_its_outcome_unknown(
    broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = broker.core.store
    carry_out = store._carry_out  # type: ignore[attr-defined]

    def empty(*given: Any) -> Any:
        found = carry_out(*given)
        os.truncate(f"{path}-wal", 0)
        return found

    monkeypatch.setattr(store, "_carry_out", empty)
    with pytest.raises(OutcomeUnknown, match="its log was emptied"):
        broker.put("jobs", 1)


def test_log_that_another_program_copies_back_and_cuts_is_in_order(broker: Broker, path: Path) -> None:
    other = apsw.Connection(str(path))
    other.pragma("user_version")
    for _ in range(3):
        broker.put("jobs", "more")
        other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        assert os.path.getsize(f"{path}-wal") == 0
        assert len(values(broker)) > PUTS
        assert broker.health().is_healthy
    assert len(broker.lease("jobs", 100)) == PUTS + 3


def test_second_process_notices_an_emptied_log_too(broker: Broker, path: Path) -> None:
    with connect(f"sqlite:///{path}", maintenance=False) as second:
        second.put("jobs", "second")
        os.truncate(f"{path}-wal", 0)
        for each in (broker, second):
            with pytest.raises(RedriveError, match="its log was emptied"):
                each.put("jobs", 1)
