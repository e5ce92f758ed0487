"""The SQLite store and its file: what it accepts, what it refuses untouched, and how it keeps it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from redrive import Broker, connect
from redrive.errors import EngineUnsupported, NotAStore, RedriveError, StoreReadOnly, StoreUnavailable
from redrive.model.filter import MAX_EXAMINED
from redrive.stores.sqlite import engine, schema

FULL, NORMAL = 2, 1
COMMITS = 3_000
ENOUGH_PAGES = 20_000


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def refusal(path: Path) -> RedriveError:
    with pytest.raises(RedriveError) as caught:
        connect(url(path), maintenance=False)
    return caught.value


def test_file_that_is_not_a_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_bytes(b"Dear Sir or Madam, " * 1000)
    before = path.read_bytes()
    error = refusal(path)
    assert isinstance(error, NotAStore)
    assert "is not a SQLite database" in str(error)
    assert path.read_bytes() == before


def test_folder_is_refused(tmp_path: Path) -> None:
    assert isinstance(refusal(tmp_path), NotAStore)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path / "nowhere" / "jobs.db")
    assert isinstance(error, StoreUnavailable)
    assert "does not exist; create it first" in str(error)
    assert not (tmp_path / "nowhere").exists()


def test_follow_begins_now_however_much_others_tell(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with (
        connect(url(path), maintenance=False) as quiet,
        connect(url(path), maintenance=False, namespace="loud") as loud,
    ):
        for broker in (quiet, loud):
            broker.create_queue("jobs", feed="all")
        quiet.put("jobs", "before")
        for _ in range(MAX_EXAMINED // 1_000 + 1):
            loud.put_many("jobs", range(1_000))
        entries = quiet.follow(wait=0)
        receipt = quiet.put("jobs", "after")
        assert [entry.id for entry in entries] == [receipt.id]


def test_tables_of_the_program_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    own = apsw.Connection(str(path))
    own.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT); INSERT INTO orders VALUES (1, 'tea')")
    own.close()
    with connect(url(path), maintenance=False) as broker:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
    look = apsw.Connection(str(path))
    assert look.execute("SELECT * FROM orders").fetchall() == [(1, "tea")]
    assert look.execute("PRAGMA integrity_check").get == "ok"
    look.close()


class ReadOnlyVFS(apsw.VFS):
    """Opens every database read-only, as on a read-only disk: root may write anywhere, so permissions prove nothing."""

    def __init__(self) -> None:
        self.base = apsw.vfs_names()[0]
        super().__init__("read-only", self.base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  # SQLite's name
        flags[0] = flags[0] & ~(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) | apsw.SQLITE_OPEN_READONLY
        file = apsw.VFSFile(self.base, name, flags)
        flags[1] = flags[1] & ~apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_READONLY
        return file


def test_read_only_disk_is_said(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    connect(url(path), maintenance=False).close()
    before = path.read_bytes()
    vfs = ReadOnlyVFS()
    try:
        error = refusal(path)
    finally:
        vfs.unregister()
    assert isinstance(error, StoreReadOnly)
    assert "make the file and its folder writable" in str(error)
    assert path.read_bytes() == before


def test_engine_with_the_known_flaw_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.apsw, "sqlite_lib_version", lambda: "3.51.2")
    error = refusal(tmp_path / "jobs.db")
    assert isinstance(error, EngineUnsupported)
    assert "3.51.3 or newer is needed" in str(error)
    assert not (tmp_path / "jobs.db").exists()


@pytest.mark.parametrize(("durability", "synchronous"), [("full", FULL), ("relaxed", NORMAL)])
def test_durability_is_what_the_connection_says(tmp_path: Path, durability: str, synchronous: int) -> None:
    opened: list[apsw.Connection] = []
    apsw.connection_hooks.append(opened.append)
    try:
        with connect(url(tmp_path / "jobs.db"), durability=durability, maintenance=False) as broker:
            broker.create_queue("jobs")
            broker.put("jobs", 1)
            broker.stats("jobs")
            assert [connection.pragma("synchronous") for connection in opened] == [synchronous] * len(opened)
            assert {connection.pragma("journal_mode") for connection in opened} == {"wal"}
            assert broker.durability().level == durability
    finally:
        apsw.connection_hooks.remove(opened.append)


def test_many_that_open_a_new_file_at_once_make_one_schema(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    barrier = threading.Barrier(8)
    brokers: list[Broker] = []
    errors: list[BaseException] = []

    def open_one() -> None:
        barrier.wait()
        try:
            brokers.append(connect(url(path), maintenance=False))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=open_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    brokers[0].create_queue("jobs")
    for number, broker in enumerate(brokers):
        broker.put("jobs", number)
    assert [lease.value for lease in brokers[0].lease("jobs", 8)] == list(range(8))
    for broker in brokers:
        broker.close()
    look = apsw.Connection(str(path))
    assert look.execute("SELECT version FROM redrive_meta").fetchall() == [(schema.NEWEST,)]
    look.close()


def test_log_stays_bounded_under_steady_commits(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    log = tmp_path / "jobs.db-wal"
    with connect(url(path), durability="relaxed", maintenance=False) as broker:
        broker.create_queue("jobs")
        largest = 0
        for _ in range(COMMITS):
            broker.put("jobs", b"x" * 20_000)
            largest = max(largest, log.stat().st_size)
    written = COMMITS * 20_000
    assert written > ENOUGH_PAGES * 2 * 1024, "too little was written to prove anything"
    assert largest < written // 3, f"the log grew to {largest:,} of {written:,} bytes written"


OTHER_COPY = """
import os, sqlite3, sys, time
from redrive import RedriveError, connect

path, settled = sys.argv[1:]
broker = connect(f"sqlite:///{path}", maintenance=False)
broker.create_queue("jobs")
if settled == "settled":
    while time.time_ns() - os.stat(os.path.dirname(path)).st_ctime_ns < 200_000_000:
        pass  # until a change would have another time
acknowledged = 0
errors = set()
for number in range(20):
    if number == 5:
        other = sqlite3.connect(path)
        other.execute("SELECT count(*) FROM sqlite_master").fetchall()
        other.close()
    try:
        broker.put("jobs", number)
        acknowledged += 1
    except RedriveError as error:
        errors.add(error.code)
print(acknowledged, *sorted(errors))
broker.close()
"""


@pytest.mark.parametrize("folder", ["fresh", "settled"])
def test_nothing_is_acknowledged_once_another_copy_of_sqlite_has_removed_the_log(tmp_path: Path, folder: str) -> None:
    path = tmp_path / "jobs.db"
    script = [sys.executable, "-c", OTHER_COPY, str(path), folder]
    said = subprocess.run(script, capture_output=True, text=True, timeout=240, check=True).stdout.split()
    acknowledged, errors = int(said[0]), set(said[1:])
    assert 5 <= acknowledged < 20
    assert errors <= {"outcome_unknown", "store_unavailable"}
    with connect(url(path), maintenance=False) as broker:
        assert broker.stats("jobs").pending >= acknowledged
        assert len(broker.lease("jobs", 100)) >= acknowledged


def test_connections_do_not_plan_anew_for_other_values(tmp_path: Path) -> None:
    """SQLite counts no such plans, so its setting is read back; the benchmark shows what it is worth."""
    own = engine.Engine(tmp_path / "jobs.db", relaxed=False)
    assert own.writer.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1
    with own.reading() as reader:
        assert reader.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1
    own.close()
