"""Redrive's own schema, indexes and ids in hand-written batches, without the broker: the ceiling that it is held to.

The same tables, the fastest statements we know for them, ids made as the store makes them, WAL with synchronous=FULL
read back on the connection. Nothing else: no validation, no settings, no counts, no expiry, no waiting, no fair lock;
SQLite checkpoints by itself. `handed`: each transaction is made by another thread while the main thread waits, as for
every caller in the main thread (ADR 19).
"""

import array
import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, Case, NotReady
from benchmarks.load import Measurement, payload, rate, run_one
from benchmarks.scenarios.bare import BACKLOG, FULL
from redrive.broker.signal_shield import shielded

QUEUE = 1
LEASE_MICROSECONDS = 60_000_000
STATE = (
    "rank, ready_at, seq, expire_deadline, deliveries, attempts, failures, losses, redrives, first_leased_at, "
    "entries, deaths"
)
ITEM = "INSERT INTO redrive_item (item_no, id_suffix, queue, put_at, priority, payload) VALUES (?, ?, ?, ?, 5, ?)"
READY = (
    f"INSERT INTO redrive_ready (queue, item_no, {STATE}) VALUES (?, ?2, 4, ?3, ?2, NULL, 0, 0, 0, 0, 0, NULL, 0, 0)"
)
ITEMS = """
    INSERT INTO redrive_item (item_no, id_suffix, queue, put_at, priority, payload)
    SELECT ?1 + rowid, (?2 + rowid * 86977480212389 & 140737488355327) << 16, ?3, ?4, 5, value FROM carray(?5)
"""
READIES = f"""
    INSERT INTO redrive_ready (queue, item_no, {STATE})
    SELECT ?1, value, 4, ?2, value, NULL, 0, 0, 0, 0, 0, NULL, 0, 0 FROM carray(?3)
"""
HEAD = """
    SELECT r.rank, r.ready_at, r.seq, r.item_no, i.id_suffix, i.payload, i.content_type, i.headers, i.put_at,
        r.deliveries,
        r.attempts, r.failures, r.losses, r.redrives, r.first_leased_at, r.expire_deadline, i.overrides
    FROM redrive_ready AS r CROSS JOIN redrive_item AS i ON i.item_no = r.item_no
    WHERE r.queue = ? ORDER BY r.rank, r.ready_at, r.seq LIMIT ?
"""
LEASE = f"""
    INSERT INTO redrive_lease (item_no, queue, token, deadline, leased_at, {STATE})
    SELECT item_no, queue, random() & 9223372036854775807, ?1, ?2, rank, ready_at, seq, expire_deadline, deliveries + 1,
        attempts + 1, failures, losses, redrives, coalesce(first_leased_at, ?2), entries, deaths
    FROM redrive_ready WHERE queue = ?3 AND (rank, ready_at, seq) <= (?4, ?5, ?6) RETURNING item_no, token
"""
TAKE = "DELETE FROM redrive_ready WHERE queue = ? AND (rank, ready_at, seq) <= (?, ?, ?)"
HELD = "SELECT item_no, token FROM redrive_lease WHERE item_no IN carray(?)"
HELD_ONE = "SELECT token FROM redrive_lease WHERE item_no = ?"


class Raw:
    """A connection to a new database with the store's schema and one queue."""

    def __init__(self, directory: Path) -> None:
        try:
            from redrive.clock import SystemClock
            from redrive.stores.sqlite import schema
        except ImportError as error:
            raise NotReady(f"redrive: {error}") from error
        import apsw

        self.carray = apsw.carray
        self.now = SystemClock().now
        self.connection = apsw.Connection(str(directory / "raw.db"))
        self.connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -65536")
        self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # as the store: plans are made once
        synchronous, journal = self.connection.pragma("synchronous"), self.connection.pragma("journal_mode")
        assert (synchronous, journal) == (FULL, "wal"), f"raw runs with {synchronous}, {journal}"
        with self.connection:
            schema.migrate(self.connection, self.now())
        self.last = 0

    def put(self, bodies: Sequence[bytes]) -> list[str]:
        """Puts encoded payloads in one transaction; returns their ids."""
        now, count = self.now(), len(bodies)
        first = max(self.last + 1, now * 2048)
        self.last = first + count - 1
        salt = random.getrandbits(47)
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        if count == 1:
            execute(ITEM, (first, salt << 16, QUEUE, now, bodies[0]))
            execute(READY, (QUEUE, first, now))
        else:
            execute(ITEMS, (first - 1, salt, QUEUE, now, self.carray(tuple(bodies))))
            execute(READIES, (QUEUE, now, self.carray(array.array("q", range(first, first + count)))))
        execute("COMMIT")
        return [f"{salt << 16:016x}{first + index:016x}" for index in range(count)]

    def lease(self, limit: int) -> list[Any]:
        """Leases up to `limit` items in one transaction."""
        self.connection.execute("BEGIN IMMEDIATE")
        held = self.take(limit)
        self.connection.execute("COMMIT")
        return held

    def take(self, limit: int) -> list[Any]:
        """Leases up to `limit` items, in the transaction of the caller."""
        now, execute = self.now(), self.connection.execute
        head = execute(HEAD, (QUEUE, limit)).fetchall()
        held: list[Any] = []
        if head:
            last = head[-1][:3]
            held = execute(LEASE, (now + LEASE_MICROSECONDS, now, QUEUE, *last)).fetchall()
            execute(TAKE, (QUEUE, *last))
        return held

    def complete(self, held: list[Any]) -> int:
        """Completes leased items in one transaction, if their tokens are right; returns how many."""
        self.connection.execute("BEGIN IMMEDIATE")
        self.finish(held)
        self.connection.execute("COMMIT")
        return len(held)

    def finish(self, held: list[Any]) -> None:
        """Completes leased items in the transaction of the caller, if their tokens are right."""
        execute = self.connection.execute
        if len(held) == 1:
            ((n, token),) = held
            assert execute(HELD_ONE, (n,)).get == token
            execute("DELETE FROM redrive_lease WHERE item_no = ?", (n,))
            execute("DELETE FROM redrive_item WHERE item_no = ?", (n,))
        else:
            numbers = self.carray(array.array("q", [n for n, _ in held]))
            assert dict(execute(HELD, (numbers,)).fetchall()) == dict(held)
            execute("DELETE FROM redrive_lease WHERE item_no IN carray(?)", (numbers,))
            execute("DELETE FROM redrive_item WHERE item_no IN carray(?)", (numbers,))

    def lease_complete(self, limit: int) -> int:
        """Leases up to `limit` items in one transaction and completes them in another; returns how many."""
        held = self.lease(limit)
        return self.complete(held) if held else 0


class HandedRaw(Raw):
    """The same for the main thread: another one makes each transaction."""

    def put(self, bodies: Sequence[bytes]) -> list[str]:
        return shielded(super().put, bodies)

    def lease(self, limit: int) -> list[Any]:
        return shielded(super().lease, limit)

    def complete(self, held: list[Any]) -> int:
        return shielded(super().complete, held)


def measure_put(batch: int, size: int, directory: Path, kind: type[Raw] = Raw) -> Measurement:
    raw = kind(directory)
    bodies = [json.dumps(payload(size)).encode()] * batch
    return rate(*run_one(lambda: len(raw.put(bodies))), synchronous=FULL)


def measure_lease_complete(batch: int, size: int, directory: Path, kind: type[Raw] = Raw) -> Measurement:
    raw = kind(directory)
    body = json.dumps(payload(size)).encode()
    backlog = BACKLOG[batch, size]
    for _ in range(backlog // 1000):
        raw.put([body] * 1000)
    return rate(*run_one(lambda: raw.lease_complete(batch)), synchronous=FULL, backlog=backlog)


CASES = [
    Case(
        f"raw.put.{size}B.k{batch}",
        "Raw",
        f"put, {size:,} B, {batch:,} per transaction",
        partial(measure_put, batch, size),
    )
    for size in (200, 10_000)
    for batch in (1, 1000)
] + [
    Case(
        f"raw.lease_complete.{size}B.k{batch}",
        "Raw",
        f"lease and complete, {size:,} B, {batch:,} per transaction",
        partial(measure_lease_complete, batch, size),
    )
    for size in (200, 10_000)
    for batch in (1, 100)
]
CASES += [
    Case(
        f"raw.{scenario}.200B.k1.handed",
        "Raw",
        f"{words}, 200 B, 1 per transaction, handed to another thread",
        partial(measure, 1, 200, kind=HandedRaw),
    )
    for scenario, words, measure in (
        ("put", "put", measure_put),
        ("lease_complete", "lease and complete", measure_lease_complete),
    )
]
BARS: list[Bar] = []
