"""A connection of psycopg as the statements see it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg.types.numeric import Int8BinaryDumper, NumericBinaryLoader
from psycopg.types.string import StrBinaryDumper

from redrive.clock import Instant
from redrive.model.words import Query
from redrive.stores.postgres.translate import translate
from redrive.stores.relational.batch import TALLIED, Batch, QueueRow
from redrive.stores.relational.leases import HEAD
from redrive.stores.relational.places import STATE
from redrive.stores.relational.session import Row

Connection = psycopg.Connection[Any]

FETCHED_AT_ONCE = 200
"""Rows of a walk that are fetched with one round trip."""

_RANDOM = """('x' || right(gen_random_uuid()::text, 12) || right(gen_random_uuid()::text, 4))::bit(64)::bigint
            & 9223372036854775807"""
_TAKE_HEAD = f"""
    WITH head AS (
        SELECT queue, rank, ready_at, seq FROM redrive_ready
        WHERE queue = ?1 AND (expire_deadline IS NULL OR expire_deadline > ?2)
        ORDER BY rank, ready_at, seq LIMIT ?3 FOR UPDATE SKIP LOCKED),
    r AS (
        DELETE FROM redrive_ready AS taken USING head
        WHERE (taken.queue, taken.rank, taken.ready_at, taken.seq) = (head.queue, head.rank, head.ready_at, head.seq)
        RETURNING taken.*),
    leased AS (
        INSERT INTO redrive_lease (n, queue, token, deadline, leased_at, worker, {STATE})
        SELECT n, queue, {_RANDOM}, ?4, ?2, ?5,
            rank, ready_at, seq, expire_deadline, deliveries + 1, attempts + 1, failures, losses, redrives,
            coalesce(first_leased_at, ?2), entries, deaths, letter
        FROM r RETURNING n, token)
    SELECT leased.token, {HEAD} FROM r JOIN redrive_item AS i ON i.n = r.n JOIN leased ON leased.n = r.n
    ORDER BY r.rank, r.ready_at, r.seq"""
_COUNTED = ", ".join(TALLIED)
_ROLL_UP = f"""
    WITH gone AS (DELETE FROM redrive_tally RETURNING queue, {_COUNTED})
    INSERT INTO redrive_count AS there (queue, {_COUNTED})
    SELECT queue, {", ".join(f"sum({name})" for name in TALLIED)} FROM gone GROUP BY queue
    ON CONFLICT (queue) DO UPDATE SET {", ".join(f"{name} = there.{name} + excluded.{name}" for name in TALLIED)}"""
LOCK_KEYS = """
    SELECT pg_advisory_xact_lock(hashtextextended(key, ?1))
    FROM (SELECT DISTINCT key FROM unnest(?2::text[]) AS key ORDER BY key) AS keys"""
"""So that nobody else puts under these keys of a queue until the end of the transaction."""


class Arrays:
    """The index of words: an array for each letter, in a GIN index. A prefix is looked for in the array itself."""

    condition = """w.words @> ?::text[] AND NOT EXISTS (
        SELECT 1 FROM unnest(?::text[]) AS asked(prefix)
        WHERE NOT EXISTS (SELECT 1 FROM unnest(w.words) AS found(word) WHERE starts_with(word, prefix)))"""

    def asked(self, query: Query) -> Row:
        """Every word, and for every prefix some word that begins with it."""
        return (list(query.words), list(query.prefixes))

    def stored(self, words: Iterable[str]) -> list[str]:
        """In one order, so that equal sets are equal rows."""
        return sorted(words)


class Rows:
    """The rows of a statement. It is sent with those that follow, and waited for when somebody looks at its rows."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    @property
    def get(self) -> Any:
        """The first row, or its value where it has only one. None where there is no row."""
        first = self._cursor.fetchone()
        if first is None:
            return None
        return first[0] if len(first) == 1 else first

    def fetchone(self) -> Row | None:
        """The first row."""
        row: Row | None = self._cursor.fetchone()
        return row

    def fetchall(self) -> list[Row]:
        """All of them."""
        rows: list[Row] = self._cursor.fetchall()
        return rows

    def __iter__(self) -> Iterator[Row]:
        return iter(self._cursor.fetchall())


class _Whole(NumericBinaryLoader):
    """Sums of whole numbers, which PostgreSQL gives as decimals."""

    def load(self, data: Any) -> Any:
        return int(super().load(data))


class Session:
    """One connection in a transaction. In a pipeline, statements are sent together until somebody needs rows."""

    words = Arrays()
    numbers_tell_time = False

    def __init__(self, connection: Connection, schema: str, *, locking: bool, own: bool = True) -> None:
        self._connection = connection
        self._own = own
        self.schema = schema
        self._locking = locking
        self._walks: set[int] = set()

    def execute(self, statement: str, values: Any = ()) -> Rows:
        return Rows(self._cursor().execute(self._text(statement), values, binary=True))

    def executemany(self, statement: str, rows: Sequence[Row]) -> None:
        self._cursor().executemany(self._text(statement), rows)

    def walk(self, statement: str, values: Any = ()) -> Iterator[Row]:
        number = next(number for number in itertools.count() if number not in self._walks)
        self._walks.add(number)
        name = f"walk_{number}"
        self.execute(f"DECLARE {name} NO SCROLL CURSOR FOR {statement}", values)
        try:
            while rows := self.execute(f"FETCH {FETCHED_AT_ONCE} FROM {name}").fetchall():
                yield from rows
                if len(rows) < FETCHED_AT_ONCE:
                    break
        finally:
            self._walks.discard(number)
            if not self._connection.broken:
                self.execute(f"CLOSE {name}")

    def _text(self, statement: str) -> str:
        return translate(statement, self.schema, self._locking)

    def _cursor(self) -> Any:
        cursor = psycopg.RawCursor(self._connection)
        if not self._own:
            adapt(cursor)
        return cursor

    @staticmethod
    def table(numbers: Iterable[int]) -> list[int]:
        return list(numbers)

    @staticmethod
    def blobs(payloads: Sequence[bytes]) -> list[bytes]:
        return list(payloads)

    @staticmethod
    def take_head(
        batch: Batch, row: QueueRow, limit: int, deadline: Instant, worker: str | None
    ) -> tuple[list[Row], dict[int, int]]:
        found = batch.execute(_TAKE_HEAD, (row.key, batch.now, limit, deadline, worker)).fetchall()
        head = [entry[1:] for entry in found]
        return head, {entry[3]: key for entry, (key, *_) in zip(head, found, strict=True)}

    @staticmethod
    def lock_keys(batch: Batch, queue: int, keys: Sequence[str]) -> None:
        batch.execute(LOCK_KEYS, (queue, list(keys)))

    @staticmethod
    def roll_up(batch: Batch) -> None:
        batch.execute(_ROLL_UP)


def adapt(context: Any) -> None:
    """Every number is a bigint and every text a text, whatever its value: so a statement has one plan."""
    adapters = context.adapters
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(bool, Int8BinaryDumper)
    adapters.register_dumper(str, StrBinaryDumper)
    adapters.register_loader("numeric", _Whole)
