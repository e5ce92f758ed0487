"""Redrive's own schema on PostgreSQL in hand-written batches of 100, without the broker: the ceiling it is held to.

The same tables and indexes; each transaction is one statement and one round trip of psycopg, with binary arrays,
prepared and planned once. Nothing else: no settings, no counts, no expiry, no notices, no lock of the namespace.
"""

import json
import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, payload, rate, run_one
from benchmarks.postgres import server
from redrive.stores.postgres.dialect import Bigints, Blobs

QUEUE = 1
LEASE_MICROSECONDS = 60_000_000
BATCH = 100
BACKLOG = 60_000
STATE = (
    "rank, ready_at, seq, expire_deadline, deliveries, attempts, failures, losses, redrives, first_leased_at, "
    "entries, deaths, death_no"
)
PUT = f"""
    WITH given AS MATERIALIZED (
        SELECT $1 + place AS item_no, ($2 + place * 86977480212389 & 140737488355327) << 16 AS id_suffix, payload
        FROM unnest($5::bytea[]) WITH ORDINALITY AS listed(payload, place)),
    items AS (
        INSERT INTO redrive_item (item_no, id_suffix, queue, put_at, priority, payload)
        SELECT item_no, id_suffix, $3, $4, 5, payload FROM given)
    INSERT INTO redrive_ready (queue, item_no, {STATE})
    SELECT $3, item_no, 4, $4, item_no, NULL, 0, 0, 0, 0, 0, NULL, 0, 0, NULL FROM given"""
LEASE = f"""
    WITH head AS (
        SELECT ctid FROM redrive_ready WHERE queue = $1 ORDER BY rank, ready_at, seq LIMIT $2 FOR UPDATE SKIP LOCKED),
    taken AS (DELETE FROM redrive_ready WHERE ctid = ANY (ARRAY(SELECT ctid FROM head)) RETURNING *),
    r AS MATERIALIZED (
        SELECT *, ('x' || right(gen_random_uuid()::text, 12) || right(gen_random_uuid()::text, 4))::bit(64)::bigint
            & 9223372036854775807 AS token FROM taken),
    leased AS (
        INSERT INTO redrive_lease (item_no, queue, token, deadline, leased_at, {STATE})
        SELECT item_no, queue, token, $3, $4, rank, ready_at, seq, expire_deadline, deliveries + 1, attempts + 1,
            failures,
            losses, redrives, coalesce(first_leased_at, $4), entries, deaths, death_no FROM r)
    SELECT r.item_no, r.token, i.id_suffix, i.payload, i.content_type, i.headers, i.put_at, r.deliveries, r.attempts,
        r.failures
    FROM r JOIN LATERAL (SELECT * FROM redrive_item AS i WHERE i.item_no = r.item_no OFFSET 0) AS i ON true"""
COMPLETE = """
    WITH gone AS (
        DELETE FROM redrive_lease AS l USING unnest($1::bigint[], $2::bigint[]) AS held(item_no, token)
        WHERE l.item_no = held.item_no AND l.token = held.token RETURNING l.item_no),
    items AS (DELETE FROM redrive_item WHERE item_no = ANY (ARRAY(SELECT item_no FROM gone)))
    SELECT item_no FROM gone"""


class Raw:
    """A connection to a database with the store's schema and one queue."""

    def __init__(self, url: str) -> None:
        import psycopg

        from redrive.stores.postgres import PostgresStore
        from redrive.stores.postgres.session import adapt

        PostgresStore(url).close()  # makes the tables
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("SET search_path TO redrive")
        for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"):
            self.connection.execute(f"SET {name} = off")
        self.connection.execute("SET plan_cache_mode = force_generic_plan")
        self.connection.prepare_threshold = 0
        adapt(self.connection)
        self.cursor = psycopg.RawCursor
        self.last = 0

    def _run(self, statement: str, values: Sequence[Any]) -> Any:
        """One statement in a transaction of its own, which is one round trip."""
        return self.cursor(self.connection).execute(statement, values, binary=True)

    def put(self, bodies: Sequence[bytes]) -> list[str]:
        """Puts encoded payloads in one transaction; returns their ids. Numbers are made here: one process puts."""
        now, count = _now(), len(bodies)
        first = max(self.last + 1, now * 2048)
        self.last = first + count - 1
        salt = random.getrandbits(47)
        self._run(PUT, (first - 1, salt, QUEUE, now, Blobs(bodies)))
        return [f"{salt << 16:016x}{first + index:016x}" for index in range(count)]

    def lease(self, limit: int) -> list[Any]:
        """Leases up to `limit` items in one transaction."""
        now = _now()
        found: list[Any] = self._run(LEASE, (QUEUE, limit, now + LEASE_MICROSECONDS, now)).fetchall()
        return found

    def complete(self, held: list[Any]) -> int:
        """Completes leased items in one transaction, if their tokens are right; returns how many."""
        done = self._run(COMPLETE, (Bigints(row[0] for row in held), Bigints(row[1] for row in held))).fetchall()
        assert len(done) == len(held), "a token was wrong"
        return len(done)

    def lease_complete(self, limit: int) -> int:
        """Leases up to `limit` items in one transaction and completes them in another; returns how many."""
        held = self.lease(limit)
        return self.complete(held) if held else 0


def _now() -> int:
    return time.time_ns() // 1000


def measure_put(batch: int, directory: Path) -> Measurement:
    body = json.dumps(payload()).encode()
    with server(directory) as url:
        raw = Raw(url)
        return rate(*run_one(lambda: len(raw.put([body] * batch))))


def measure_lease_complete(batch: int, directory: Path) -> Measurement:
    body = json.dumps(payload()).encode()
    with server(directory) as url:
        raw = Raw(url)
        for _ in range(BACKLOG // 1000):
            raw.put([body] * 1000)
        return rate(*run_one(lambda: raw.lease_complete(batch)), backlog=BACKLOG)


CASES = [
    Case(
        f"raw.{name}.k{batch}",
        "Raw",
        f"{words}, 200 B, {batch:,} per transaction",
        partial(measure, batch),
    )
    for name, words, measure in (
        ("put", "put", measure_put),
        ("lease_complete", "lease and complete", measure_lease_complete),
    )
    for batch in (1, BATCH)
]
BARS: list[Bar] = []
