"""A psycopg connection for the statements of `relational`: with a timeout, and with the warnings of the server."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg.errors import Diagnostic
from psycopg.types.numeric import Int8BinaryDumper, NumericBinaryLoader
from psycopg.types.string import StrBinaryDumper

from redrive.clock import Instant
from redrive.model.ids import MAX_NUMBER
from redrive.model.search_terms import SearchQuery
from redrive.stores.postgres.dialect import Bigints, Blobs, Texts, multi_row, register, translate
from redrive.stores.relational.batch import ADD_COUNTS, COUNTED_COLUMNS, Batch
from redrive.stores.relational.deduplication import KEY_IS_KNOWN
from redrive.stores.relational.item_rows import STATE_COLUMNS
from redrive.stores.relational.leases import DUE_CHECK_SQL, LEASE_COLUMNS
from redrive.stores.relational.low_water_marks import READY, above, bounded
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.session import LeasedHead, LeaseKey, OverdueCheck, Row

Connection = psycopg.Connection[Any]

FETCHED_AT_ONCE = 200
"""Rows of a cursor that are fetched with one round trip."""

_RANDOM = """('x' || right(gen_random_uuid()::text, 12) || right(gen_random_uuid()::text, 4))::bit(64)::bigint
            & 9223372036854775807"""
TAKE_HEAD = f"""
    WITH times AS MATERIALIZED ({DUE_CHECK_SQL}),
    head AS (
        SELECT first.ctid
        FROM (SELECT 1 FROM times WHERE NOT (due AND ?7 = 1 OR overdue AND ?8 = 1)) AS one
        LEFT JOIN LATERAL (SELECT * FROM redrive_low_water_mark
        WHERE queue = ?1 ORDER BY version DESC LIMIT 1) AS m ON true
        JOIN LATERAL (VALUES {", ".join(f"({rank}, m.{mark})" for rank, mark in enumerate(READY))})
            AS each(rank, mark) ON true
        JOIN LATERAL (
            SELECT ctid FROM redrive_ready
            WHERE queue = ?1 AND rank = each.rank AND ready_at >= coalesce(each.mark, 0)
                AND (expire_deadline IS NULL OR expire_deadline > ?2)
            ORDER BY ready_at, seq LIMIT ?3 FOR UPDATE SKIP LOCKED) AS first ON true
        LIMIT ?3),
    taken AS (
        DELETE FROM redrive_ready WHERE ctid = ANY (ARRAY(SELECT ctid FROM head)) RETURNING *),
    r AS MATERIALIZED (SELECT *, {_RANDOM} AS token FROM taken),
    leased AS (
        INSERT INTO redrive_lease (item_no, queue, token, deadline, early, leased_at, worker, {STATE_COLUMNS})
        SELECT item_no, queue, token, ?4, ?6, ?2, ?5,
            rank, ready_at, seq, expire_deadline, deliveries + 1, attempts + 1, failures, losses, redrives,
            coalesce(first_leased_at, ?2), entries, deaths, death_no
        FROM r)
    SELECT times.due, times.overdue, r.token, {LEASE_COLUMNS}
    FROM times LEFT JOIN (r CROSS JOIN redrive_item AS i ON i.item_no = r.item_no) ON true
    ORDER BY r.rank, r.ready_at, r.seq"""
"""Leases rank by rank, each from its mark on, and only as far as needed: the ranks come in the order of the list."""
_REMOVE_HELD = """
    WITH held AS (
        SELECT l.ctid FROM unnest(?1::bigint[], ?2::bigint[], ?4::bigint[]) AS given(item_no, token, queue)
        JOIN LATERAL (
            SELECT ctid FROM redrive_lease AS each
            WHERE each.item_no = given.item_no AND each.token = given.token AND each.queue = ANY (?3::bigint[])
                AND each.entries = 0 AND each.deaths = 0 AND given.queue IN (each.queue, 0)
            OFFSET 0) AS l ON true),
    gone AS (
        DELETE FROM redrive_lease WHERE ctid = ANY (ARRAY(SELECT ctid FROM held))
        RETURNING item_no, token, queue, deliveries, attempts, failures, losses, redrives),
    items AS (DELETE FROM redrive_item WHERE item_no = ANY (ARRAY(SELECT item_no FROM gone)))
    SELECT * FROM gone"""
"""A lease that is extended concurrently may be missing: the caller reads the rest again."""
_KEYS = f"""
    SELECT key, item_no, id_suffix, digest, expires_at < 0 FROM redrive_idempotency AS k
    WHERE queue = ?1 AND key = ANY (?2::text[]) AND {KEY_IS_KNOWN}"""
MANY_QUEUES = 1_000
"""Maximum number of queues listed in a statement."""
_COUNTED = ", ".join(COUNTED_COLUMNS)
_ROLL_UP = f"""
    WITH gone AS (DELETE FROM redrive_count_delta
    WHERE true {above("key", "count_delta", "0")} RETURNING queue, {_COUNTED})
    INSERT INTO redrive_count AS there (queue, {_COUNTED})
    SELECT queue, {", ".join(f"sum({name})" for name in COUNTED_COLUMNS)} FROM gone GROUP BY queue
    ON CONFLICT (queue) DO UPDATE SET {ADD_COUNTS}
    RETURNING queue"""
LOCK_KEYS = """
    SELECT pg_advisory_xact_lock(hashtextextended(key, ?1))
    FROM (SELECT DISTINCT key FROM unnest(?2::text[]) AS key ORDER BY key) AS keys"""
"""Locks these keys of a queue until the end of the transaction."""


class Arrays:
    """The search index: an array per dead letter, in a GIN index. Prefixes are searched in the array itself."""

    condition = """w.terms @> ?::text[] AND NOT EXISTS (
        SELECT 1 FROM unnest(?::text[]) AS asked(prefix)
        WHERE NOT EXISTS (SELECT 1 FROM unnest(w.terms) AS found(word) WHERE starts_with(word, prefix)))"""

    def asked(self, query: SearchQuery) -> Row:
        """Require every word, and for every prefix some word that starts with it."""
        return (Texts(query.words), Texts(query.prefixes))

    def stored(self, words: Iterable[str]) -> Texts:
        """Sort the terms, so that equal sets are equal rows."""
        return Texts(sorted(words))


class Rows:
    """The rows of a statement. It is sent with the following ones, and awaited when its rows are read."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    @property
    def get(self) -> Any:
        """The first row, or its value if it has only one column. None if there is no row."""
        first = self._cursor.fetchone()
        if first is None:
            return None
        return first[0] if len(first) == 1 else first

    @property
    def tag(self) -> str | None:
        """The command tag of the server, as `COMMIT`; None before the answer."""
        tag: str | None = self._cursor.statusmessage
        return tag

    def fetchone(self) -> Row | None:
        """Return the first row."""
        row: Row | None = self._cursor.fetchone()
        return row

    def fetchall(self) -> list[Row]:
        """Return all rows."""
        rows: list[Row] = self._cursor.fetchall()
        return rows

    def __iter__(self) -> Iterator[Row]:
        return iter(self._cursor.fetchall())


class _Whole(NumericBinaryLoader):
    """A loader of sums of integers, which PostgreSQL returns as decimals."""

    def load(self, data: Any) -> Any:
        return int(super().load(data))


class Session:
    """One connection in a transaction. In a pipeline, statements are sent together until rows are read."""

    search_index = Arrays()
    sequence_is_time_ordered = False

    def __init__(self, connection: Connection, schema: str, *, locking: bool, own: bool = True) -> None:
        self._connection = connection
        self._own = own
        self.schema = schema
        self._locking = locking
        self._walks: set[int] = set()

    def execute(self, statement: str, values: Any = ()) -> Rows:
        return Rows(self._cursor().execute(self._text(statement), values, binary=True))

    def request(self, statement: str, values: Any = ()) -> Callable[[], Rows]:
        rows = self.execute(statement, values)
        return lambda: rows

    def executemany(self, statement: str, rows: Sequence[Row]) -> None:
        if (made := multi_row(statement, rows)) is not None:
            self.execute(*made)
        else:
            self._cursor().executemany(self._text(statement), rows)

    def stream(self, statement: str, values: Any = ()) -> Iterator[Row]:
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

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the statements of this context together. Not within another transaction."""
        with self._connection.transaction():
            yield

    def _text(self, statement: str) -> str:
        return translate(statement, self.schema, self._locking)

    def _cursor(self) -> Any:
        cursor = psycopg.RawCursor(self._connection)
        if not self._own:
            adapt(cursor)
        return cursor

    @staticmethod
    def table(numbers: Iterable[int]) -> Bigints:
        return Bigints(numbers)

    @staticmethod
    def blobs(payloads: Sequence[bytes]) -> Blobs:
        return Blobs(payloads)

    @staticmethod
    def lease_head(
        batch: Batch, row: QueueRow, limit: int, deadline: Instant, worker: str | None, check: OverdueCheck
    ) -> LeasedHead:
        early = int(deadline < batch.now + row.settings.lease_timeout)
        values = (row.key, batch.now, limit, deadline, worker, early, *check)
        found = Session.scan(batch, TAKE_HEAD, values).fetchall()
        due, overdue, token = found[0][:3]
        check = OverdueCheck(check.due and due, check.overdue and overdue)
        if token is None:
            return LeasedHead(check, [], {})
        head = [entry[3:] for entry in found]
        return LeasedHead(check, head, {entry[6]: entry[2] for entry in found})

    @staticmethod
    def scan(batch: Batch, statement: str, values: Row) -> Rows:
        rows: Rows
        if batch.below:
            rows = batch.execute(bounded(statement, len(values) + 1), (*values, min(batch.below.values())))
        else:
            rows = batch.execute(statement, values)
        return rows

    @staticmethod
    def complete_leases(batch: Batch, held: Sequence[LeaseKey]) -> dict[tuple[int, int], Row]:
        plain = batch.queues.plain
        if not plain or len(plain) > MANY_QUEUES:
            return {}
        held = [each for each in held if each[1] <= MAX_NUMBER]  # no token has a larger number
        if not held:
            return {}
        numbers, keys, queues = zip(*held, strict=True)
        gone = batch.execute(_REMOVE_HELD, (Bigints(numbers), Bigints(keys), Bigints(plain), Bigints(queues)))
        return {(item_no, token): rest for item_no, token, *rest in gone}

    @staticmethod
    def find_idempotency_keys(batch: Batch, queue: int, keys: Sequence[str]) -> dict[str, Row] | None:
        asked = Texts(keys)
        batch.execute(LOCK_KEYS, (queue, asked))
        return {
            key: (item_no, id_suffix, digest, ends_with_item)
            for key, item_no, id_suffix, digest, ends_with_item in batch.execute(_KEYS, (queue, asked, batch.now))
        }

    @staticmethod
    def lock_idempotency_keys(batch: Batch, queue: int, keys: Sequence[str]) -> None:
        batch.execute(LOCK_KEYS, (queue, Texts(keys)))

    @staticmethod
    def roll_up(batch: Batch) -> None:
        batch.rolled_up.extend(queue for (queue,) in batch.execute(_ROLL_UP).fetchall())


def adapt(context: Any) -> None:
    """Send every number as bigint and every string as text, so that a statement has one plan."""
    adapters = context.adapters
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(bool, Int8BinaryDumper)
    adapters.register_dumper(str, StrBinaryDumper)
    adapters.register_loader("numeric", _Whole)
    register(adapters)


ANSWER_TIMEOUT_SECONDS = 75.0
"""Maximum wait for an answer. The server itself ends a statement sooner (`statement_timeout`): after this time the
server hangs, or something in between that still acknowledges packets. A network that acknowledges nothing is detected
by the system (`tcp_user_timeout`)."""


class TimeoutConnection(psycopg.Connection[Any]):
    """A connection of psycopg with a time limit on every wait for the server."""

    timed_out = False
    """True if it was closed because no answer came."""
    in_order = True
    """True if its last use ended normally; otherwise results of that use may be left in it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.warnings: list[str] = []
        """Warnings of the server since they were last cleared."""
        warnings = self.warnings  # not `self`: an unreferenced connection must be closed
        self.add_notice_handler(lambda notice: warnings.append(_words(notice)))

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for the result like psycopg, with a time limit."""
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: Any) -> Generator[Any, Any, Any]:
        """Run the same steps with a time limit. Psycopg makes one at least every 0.1 s, even without input."""
        end = time.monotonic() + ANSWER_TIMEOUT_SECONDS
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > end and not self.timed_out:
                    self._give_up()
                wanted = gen.send(ready)
        except StopIteration as ended:
            return ended.value

    def _give_up(self) -> None:
        """Shut the socket down below libpq, which then reports a lost connection."""
        self.timed_out = True
        ours = socket.socket(fileno=self.pgconn.socket)
        try:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
        finally:
            ours.detach()


def _words(notice: Diagnostic) -> str:
    return ": ".join(filter(None, (notice.message_primary, notice.message_detail)))
