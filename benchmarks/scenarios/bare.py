"""What SQLite itself gives: one table, an integer key, one index, hand-written batches, WAL and synchronous=FULL."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, payload, rate, run_one

FULL = 2
SCHEMA = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    CREATE TABLE items (id INTEGER PRIMARY KEY, state INTEGER NOT NULL, payload BLOB NOT NULL);
    CREATE INDEX ready ON items (id) WHERE state = 0;
"""
PUT = "INSERT INTO items (state, payload) VALUES (0, ?)"
LEASE = """
    UPDATE items SET state = 1
    WHERE id IN (SELECT id FROM items WHERE state = 0 ORDER BY id LIMIT ?)
    RETURNING id, payload
"""
COMPLETE_ONE = "DELETE FROM items WHERE id = ? AND state = 1"
COMPLETE = "DELETE FROM items WHERE id IN (SELECT value FROM json_each(?)) AND state = 1"
# More than a measurement can drain, at the sizes of its batches and payloads.
BACKLOG = {(1, 200): 20_000, (100, 200): 300_000, (1, 10_000): 10_000, (100, 10_000): 40_000}


class Bare:
    """The engine behind the figures, one transaction per call."""

    def __init__(self, directory: Path) -> None:
        import apsw

        self.connection = apsw.Connection(str(directory / "bare.db"))
        self.connection.execute(SCHEMA).fetchall()
        synchronous = self.connection.pragma("synchronous")
        journal = self.connection.pragma("journal_mode")
        assert (synchronous, journal) == (FULL, "wal"), f"bare runs with {synchronous}, {journal}"

    def put(self, bodies: Sequence[bytes]) -> int:
        if len(bodies) == 1:
            self.connection.execute(PUT, bodies)
            return 1
        with self.connection:
            self.connection.executemany(PUT, ((body,) for body in bodies))
        return len(bodies)

    def lease_complete(self, limit: int) -> int:
        leased = self.connection.execute(LEASE, (limit,)).fetchall()
        if len(leased) == 1:
            self.connection.execute(COMPLETE_ONE, (leased[0][0],))
        elif leased:
            self.connection.execute(COMPLETE, (json.dumps([key for key, _ in leased]),))
        return len(leased)


def measure_put(batch: int, size: int, directory: Path) -> Measurement:
    engine = Bare(directory)
    bodies = [json.dumps(payload(size)).encode()] * batch
    return rate(*run_one(lambda: engine.put(bodies)), synchronous=FULL)


def measure_lease_complete(batch: int, size: int, directory: Path) -> Measurement:
    engine = Bare(directory)
    body = json.dumps(payload(size)).encode()
    backlog = BACKLOG[batch, size]
    for _ in range(backlog // 1000):
        engine.put([body] * 1000)
    return rate(*run_one(lambda: engine.lease_complete(batch)), synchronous=FULL, backlog=backlog)


CASES = [
    Case(
        f"bare.put.{size}B.k{batch}",
        "Bare",
        f"put, {size:,} B, {batch:,} per transaction",
        partial(measure_put, batch, size),
    )
    for size in (200, 10_000)
    for batch in (1, 1000)
] + [
    Case(
        f"bare.lease_complete.{size}B.k{batch}",
        "Bare",
        f"lease and complete, {size:,} B, {batch:,} per transaction",
        partial(measure_lease_complete, batch, size),
    )
    for size in (200, 10_000)
    for batch in (1, 100)
]
BARS: list[Bar] = []
