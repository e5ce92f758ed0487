"""SQLite: draining tasks that do nothing, ours beside the peers. Everyone with synchronous=FULL, read back."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from benchmarks import peer_drain, worker
from benchmarks.drain import Left
from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement
from benchmarks.peer_drain import Peer, Way, work
from benchmarks.peers.drain import SYNC_NOTE
from benchmarks.subject import url

FULL = "2"
GROUP = "SQLite: drain of tasks that do nothing"
ITEMS = 100_000
JUDGED = "threads.x2"
"""Of our ways, the one that the bars are about, on every store: two workers, functions, all else by default."""

PEERS = {
    "huey": Peer(
        "huey (takes the job out before it runs)",
        "drain_huey",
        "huey",
        "huey",
        4_000,
        {
            "threads1": Way("1 thread", work("drain_huey", "thread", "1")),
            "threads8": Way("8 threads", work("drain_huey", "thread", "8")),
            "processes2": Way("2 processes", work("drain_huey", "process", "2")),
        },
        ("huey.db", "SELECT count(*) FROM task"),
    ),
    "persist_queue": Peer(
        "persist-queue, SQLiteAckQueue",
        "drain_persist_queue",
        "persist_queue",
        "persist-queue",
        2_000,
        {
            "threads1": Way("1 thread", work("drain_persist_queue", "1")),
            "threads8": Way("8 threads", work("drain_persist_queue", "8")),
        },
        ("data.db", "SELECT count(*) FROM ack_queue_default WHERE status <> 5"),
    ),
    "litequeue": Peer(
        "litequeue",
        "drain_litequeue",
        "litequeue",
        "litequeue",
        1_000,
        {
            "processes1": Way("1 process", work("drain_litequeue")),
            "processes2": Way("2 processes", work("drain_litequeue"), processes=2),
        },
        ("litequeue.db", "SELECT count(*) FROM Queue WHERE status IN (0, 1)"),
    ),
}
LEFT = """
    SELECT (SELECT count(*) FROM redrive_ready) + (SELECT count(*) FROM redrive_scheduled)
        + (SELECT count(*) FROM redrive_lease)"""


def measure_peer(peer: Peer, way: Way, directory: Path) -> Measurement:
    file, statement = peer.left
    measured = peer_drain.drain(peer, way, str(directory), counter(directory / file, statement), directory)
    return _with_sync(measured, directory)


def measure(way: worker.Way, directory: Path) -> Measurement:
    left = counter(directory / "redrive.db", LEFT)
    return _with_sync(worker.drain(way, ITEMS, url(directory), left, directory), directory)


def counter(file: Path, statement: str) -> Left:
    """Asks the database by a connection of its own, which is opened for each question: it holds nothing up."""

    def left() -> int:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)) as connection:
            found: int = connection.execute(statement).fetchone()[0]
        return found

    return left


def _with_sync(measured: Measurement, directory: Path) -> Measurement:
    """The measurement, if every worker that did something said that it ran with FULL."""
    notes = list(directory.glob(f"{SYNC_NOTE}*"))
    values = {note.read_text() for note in notes}
    if values != {FULL}:
        raise RuntimeError(f"measured with synchronous={values or 'unknown'}, not FULL")
    return Measurement(measured.figures, {**measured.facts, "synchronous": FULL, "read_back_by": len(notes)})


CASES = [
    Case(f"sqlite.redrive.{name}", GROUP, f"Redrive: {way.words}", partial(measure, way))
    for name, way in worker.WAYS.items()
] + [
    Case(f"sqlite.{key}.{name}", GROUP, f"{peer.name}: {way.words}", partial(measure_peer, peer, way))
    for key, peer in PEERS.items()
    for name, way in peer.ways.items()
]
_PEER_KEYS = tuple(f"sqlite.{key}.{name}" for key, peer in PEERS.items() for name in peer.ways)
BARS = [
    Bar(
        "SQLite: drain at least 8 × the fastest of huey, persist-queue and litequeue",
        f"sqlite.redrive.{JUDGED}",
        _PEER_KEYS,
        at_least=8.0,
    ),
    Bar(
        "SQLite: two processes of one worker at least half of one worker with threads",
        "sqlite.redrive.processes2",
        ("sqlite.redrive.threads",),
        at_least=0.5,
    ),
    *(
        Bar(f"… {way.words}", f"sqlite.redrive.{name}", _PEER_KEYS)
        for name, way in worker.WAYS.items()
        if name != JUDGED
    ),
]
