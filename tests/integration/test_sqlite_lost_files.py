"""The files of a SQLite store removed, replaced, renamed and linked under an open broker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from tests.acceptance.children import Say, fork, join
from tests.terminal.cli import Cli

from redrive import Broker, connect
from redrive.errors import OutcomeUnknown, RedriveError, StoreUnavailable
from redrive.stores.sqlite.file_identity import FOLDER_SETTLES_NS
from redrive.testing.fake_clock import PATIENCE_SECONDS

PUTS = 5
AFTER_LOSS = {"outcome_unknown", "store_unavailable"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store" / "jobs.db"


def opened(path: Path) -> Broker:
    broker = connect(f"sqlite:///{path}", maintenance=False)
    broker.create_queue("jobs")
    return broker


def payloads(path: Path) -> list[int]:
    with connect(f"sqlite:///{path}", maintenance=False) as broker:
        return sorted(lease.value for lease in broker.lease("jobs", 1_000))


def put_all(broker: Broker, values: range) -> tuple[list[int], set[str]]:
    """What was acknowledged, and the codes of the errors of the rest."""
    acknowledged, codes = [], set()
    for value in values:
        try:
            broker.put("jobs", value)
            acknowledged.append(value)
        except RedriveError as error:
            codes.add(error.code)
    return acknowledged, codes


def settle(folder: Path) -> None:
    """Wait until the next change of the folder must have another time."""
    waiting = threading.Event()
    while time.time_ns() - os.stat(folder).st_ctime_ns <= 2 * FOLDER_SETTLES_NS:
        waiting.wait(0.01)


# Lost


def remove(path: Path) -> None:
    path.unlink()


def remove_all(path: Path) -> None:
    for name in ("", "-wal", "-shm"):
        Path(f"{path}{name}").unlink()


def remove_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def rename(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def rename_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def replace_folder(path: Path) -> None:
    times = os.stat(path.parent)
    rename_folder(path)
    shutil.copytree(path.parent.with_name("moved"), path.parent)
    os.utime(path.parent, ns=(times.st_atime_ns, times.st_mtime_ns))


def replace(path: Path) -> None:
    """As `mv other.db jobs.db` does, and with the time of the folder set back, as by `rsync -a`."""
    times = os.stat(path.parent)
    other = path.parent.parent / "other.db"
    opened(other).close()
    other.replace(path)
    os.utime(path.parent, ns=(times.st_atime_ns, times.st_mtime_ns))


LOSSES = [remove, remove_all, remove_log, rename, rename_folder, replace_folder, replace]


@pytest.mark.parametrize("settled", [False, True], ids=["fresh folder", "settled folder"])
@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_nothing_is_acknowledged_once_a_file_is_lost(path: Path, lose: Callable[[Path], None], settled: bool) -> None:
    broker = opened(path)
    if settled:
        settle(path.parent)
    assert put_all(broker, range(PUTS)) == (list(range(PUTS)), set())
    lose(path)
    acknowledged, codes = put_all(broker, range(PUTS, 3 * PUTS))
    assert acknowledged == []
    assert codes <= AFTER_LOSS
    for read in (lambda: broker.stats("jobs"), broker.list_queues, lambda: broker.lease("jobs", wait="10m")):
        with pytest.raises(StoreUnavailable, match="under this program"):
            read()
    health = broker.health()
    assert not health.is_healthy
    assert len(health.warnings) == 1
    assert "under this program" in str(health)
    broker.close()


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_commit_during_which_a_file_is_lost_is_unknown(
    path: Path, lose: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = opened(path)
    engine = broker.core.store._engine  # type: ignore[attr-defined]
    commit = engine._commit

    def lose_and_commit(execute: Callable[[str], object]) -> None:
        lose(path)
        commit(execute)

    monkeypatch.setattr(engine, "_commit", lose_and_commit)
    with pytest.raises(OutcomeUnknown, match="under this program"):
        broker.put("jobs", 1)
    with pytest.raises(StoreUnavailable, match="under this program"):
        broker.put("jobs", 2)
    broker.close()


def test_what_comes_back_stays_lost_until_a_restart(path: Path) -> None:
    broker = opened(path)
    broker.put("jobs", 1)
    rename(path)
    assert put_all(broker, range(2))[0] == []
    path.with_name("moved.db").rename(path)
    with pytest.raises(StoreUnavailable, match="put it back"):
        broker.put("jobs", 2)
    broker.close()
    assert payloads(path) == [1]


NEXT_PROGRAM = """
import os, sys
from redrive import connect
broker = connect(sys.argv[1], maintenance=False)
broker.create_queue("jobs")
broker.put("jobs", 2)
os._exit(0)  # as if it were killed: nothing is copied back
"""
FORMER_PROGRAM = """
import os, subprocess, sys
from redrive import connect
url, path, end, lost, next_program = sys.argv[1:]
broker = connect(url, maintenance=False)
broker.create_queue("jobs")
for name in lost.split(","):
    os.unlink(path + name)
subprocess.run([sys.executable, "-c", next_program, url], check=True)
if end == "close":
    broker.close()
"""


@pytest.mark.parametrize("end", ["close", "exit"])
@pytest.mark.parametrize("lost", [",-wal,-shm", "-wal,-shm"], ids=["all files", "log and index"])
def test_log_of_the_next_program_survives_the_end_of_one_that_lost_its_files(path: Path, end: str, lost: str) -> None:
    """The last one to close copies the log back and removes it by its name, which is that of another log by now."""
    script = [sys.executable, "-c", FORMER_PROGRAM, f"sqlite:///{path}", str(path), end, lost, NEXT_PROGRAM]
    subprocess.run(script, check=True, timeout=PATIENCE_SECONDS)
    assert payloads(path) == [2]


def test_lost_database_is_not_replaced_by_an_empty_one(path: Path) -> None:
    """SQLite would remove the log that is left, and with it what was acknowledged."""
    broker = opened(path)
    broker.put("jobs", 1)
    rename(path)
    with pytest.raises(StoreUnavailable, match=r"restore it, or remove .*jobs\.db-wal to start with an empty store"):
        connect(f"sqlite:///{path}", maintenance=False)
    assert not path.exists()
    broker.close()
    path.with_name("moved.db").rename(path)
    assert payloads(path) == [1]


def test_put_within_a_transaction_is_refused_once_the_file_is_lost(path: Path) -> None:
    broker = opened(path)
    own = apsw.Connection(str(path))
    own.execute("BEGIN IMMEDIATE")
    remove(path)
    with pytest.raises(StoreUnavailable, match="under this program"):
        broker.put("jobs", 1, transaction=own)
    own.execute("ROLLBACK")
    own.close()
    broker.close()


def test_file_that_cannot_be_looked_at_for_a_moment_is_not_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = opened(path)
    real = os.stat

    def refused(name: object, *arguments: object, **options: object) -> os.stat_result:
        if name == str(path.parent):
            raise PermissionError(13, "Permission denied", name)
        return real(name, *arguments, **options)  # type: ignore[call-overload, no-any-return]

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refused)
        with pytest.raises(StoreUnavailable, match="cannot be checked"):
            broker.put("jobs", 1)
    broker.put("jobs", 2)
    broker.close()
    assert payloads(path) == [2]


def test_doctor_names_a_program_that_uses_a_removed_file(path: Path) -> None:
    with opened(path):
        remove_all(path)
        opened(path).close()
        (check,) = (c for c in Cli(f"sqlite:///{path}").json("doctor", exits=1)["checks"] if c["name"] == "files")
    assert check["state"] == "warn"
    assert f"by process {os.getpid()}" in check["finding"]


# Two names


def via_link(path: Path) -> Path:
    link = path.parent.parent / "link.db"
    link.symlink_to(path)
    return link


def via_linked_folder(path: Path) -> Path:
    folder = path.parent.parent / "linked"
    folder.symlink_to(path.parent)
    return folder / path.name


def via_parent(path: Path) -> Path:
    return path.parent / ".." / path.parent.name / path.name


@pytest.mark.parametrize("other", [via_link, via_linked_folder, via_parent], ids=lambda other: other.__name__)
def test_two_paths_of_one_file_share_lock_and_log(path: Path, other: Callable[[Path], Path]) -> None:
    name = other(path)
    opened(name).close()

    def work(where: Path, values: range) -> tuple[int, int]:
        def run(_: Say) -> None:
            with connect(f"sqlite:///{where}", maintenance=False) as broker:
                for value in values:
                    broker.put("jobs", value)
            os._exit(0)

        return fork(run)

    children = [work(path, range(50)), work(name, range(50, 100))]
    assert [join(*child).code for child in children] == [0, 0]
    assert payloads(path) == list(range(100))
    assert sorted(each.name for each in path.parent.iterdir()) == ["jobs.db", "jobs.db-lock"]
    assert not list(path.parent.parent.glob("*-lock")), "a link has no lock of its own"


@pytest.mark.parametrize("other", [via_link, via_linked_folder], ids=lambda other: other.__name__)
def test_lost_log_is_noticed_through_a_link(path: Path, other: Callable[[Path], Path]) -> None:
    broker = opened(other(path))
    broker.put("jobs", 1)
    remove_log(path)
    assert put_all(broker, range(20))[0] == []
    broker.close()


def test_link_that_leads_nowhere_creates_the_file_that_it_names(path: Path) -> None:
    link = via_link(path)
    opened(link).close()
    assert path.exists()
    assert link.is_symlink()


def test_link_to_itself_is_refused(path: Path) -> None:
    path.symlink_to(path)
    with pytest.raises(StoreUnavailable, match="leads back to itself"):
        connect(f"sqlite:///{path}", maintenance=False)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_file_with_two_names_is_refused(path: Path) -> None:
    """Each name would have a log of its own, and what is in one would be lost to who opens the other."""
    opened(path).close()
    second = path.with_name("second.db")
    second.hardlink_to(path)
    for name in (path, second):
        with pytest.raises(StoreUnavailable, match=r"2 names \(hard links\).*remove all names but one"):
            connect(f"sqlite:///{name}", maintenance=False)
    second.unlink()
    opened(path).close()


def test_name_that_is_made_later_is_a_warning(path: Path) -> None:
    with opened(path) as broker:
        path.with_name("second.db").hardlink_to(path)
        broker.put("jobs", 1)
        (warning,) = broker.health().warnings
        assert "2 names (hard links)" in warning
        path.with_name("second.db").unlink()
        assert broker.health().is_healthy
