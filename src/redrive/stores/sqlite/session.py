"""A connection of apsw for the statements of `relational`."""

from __future__ import annotations

import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import apsw

from redrive.clock import Instant
from redrive.model.search_terms import SearchQuery
from redrive.stores.relational.batch import ADD_COUNTS, COUNTED_COLUMNS, Batch
from redrive.stores.relational.item_rows import STATE_COLUMNS
from redrive.stores.relational.leases import DUE_CHECK_SQL, LEASE_COLUMNS
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.session import LeasedHead, LeaseKey, OverdueCheck, Row

_FRESH = "(expire_deadline IS NULL OR expire_deadline > {now})"
_HEAD = f"""
    SELECT {LEASE_COLUMNS} FROM redrive_ready AS r CROSS JOIN redrive_item AS i ON i.item_no = r.item_no
    WHERE r.queue = ?1 AND {_FRESH.format(now="?2")}
    ORDER BY r.rank, r.ready_at, r.seq LIMIT ?3"""
_LEASE = f"""
    INSERT INTO redrive_lease (item_no, queue, token, deadline, leased_at, worker, {STATE_COLUMNS})
    SELECT item_no, queue, random() & 9223372036854775807, ?1, ?2, ?3, rank, ready_at, seq, expire_deadline,
        deliveries + 1,
        attempts + 1, failures, losses, redrives, coalesce(first_leased_at, ?2), entries, deaths, death_no
    FROM redrive_ready WHERE queue = ?4 AND (rank, ready_at, seq) <= (?5, ?6, ?7) AND {_FRESH.format(now="?2")}
    RETURNING item_no, token"""
_TAKE = f"""
    DELETE FROM redrive_ready
    WHERE queue = ?1 AND (rank, ready_at, seq) <= (?2, ?3, ?4) AND {_FRESH.format(now="?5")}"""

_SUMS = ", ".join(f"sum({name})" for name in COUNTED_COLUMNS)
_ROLL_UP = f"""
    INSERT INTO redrive_count AS there (queue, {", ".join(COUNTED_COLUMNS)})
    SELECT queue, {_SUMS} FROM redrive_count_delta WHERE true GROUP BY queue
    ON CONFLICT (queue) DO UPDATE SET {ADD_COUNTS}"""


class FTS5:
    """The search index: a contentless FTS5 table."""

    condition = "redrive_search MATCH ?"

    def asked(self, query: SearchQuery) -> Row:
        """Require every word, and for every prefix some word that starts with it."""
        return (" ".join([f'"{word}"' for word in query.words] + [f'"{prefix}"*' for prefix in query.prefixes]),)

    def stored(self, words: Iterable[str]) -> str:
        """Join with spaces, which no word contains."""
        return " ".join(words)


class Session:
    """One connection. It is the only writer, so what it reads stays true until it commits."""

    __slots__ = ("execute", "executemany", "request", "stream")

    search_index = FTS5()
    sequence_is_time_ordered = True

    def __init__(self, connection: apsw.Connection) -> None:
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.request = partial(partial, connection.execute)
        self.stream = connection.execute

    @staticmethod
    def table(numbers: Iterable[int]) -> Any:
        """Return numbers that a statement can read as a table."""
        values = array.array("q", numbers)
        return apsw.carray(values) if values else None  # None reads as an empty table; an empty list is an error

    @staticmethod
    def blobs(payloads: Sequence[bytes]) -> Any:
        """Return payloads that a statement can read as a table."""
        return apsw.carray(tuple(payloads))

    @staticmethod
    def lease_head(
        batch: Batch, row: QueueRow, limit: int, deadline: Instant, worker: str | None, check: OverdueCheck
    ) -> LeasedHead:
        """Lease the first items of a queue: all up to the last of them, except expired ones."""
        if check.due or check.overdue:
            due, overdue = batch.execute(DUE_CHECK_SQL, (row.key, batch.now)).get
            check = OverdueCheck(check.due and bool(due), check.overdue and bool(overdue))
            if check.due or check.overdue:
                return LeasedHead(check, [], {})
        head: list[Row] = batch.execute(_HEAD, (row.key, batch.now, limit)).fetchall()
        if not head:
            return LeasedHead(check, head, {})
        last = head[-1][:3]
        keys = dict(batch.execute(_LEASE, (deadline, batch.now, worker, row.key, *last)).fetchall())
        batch.execute(_TAKE, (row.key, *last, batch.now))
        return LeasedHead(check, head, keys)

    @staticmethod
    def scan(batch: Batch, statement: str, values: Row) -> Any:
        """Execute the statement: SQLite's indexes need no low-water marks."""
        return batch.execute(statement, values)

    @staticmethod
    def complete_leases(batch: Batch, held: Sequence[LeaseKey]) -> dict[tuple[int, int], Row]:
        """Delete nothing: reading first costs no more."""
        return {}

    @staticmethod
    def find_idempotency_keys(batch: Batch, queue: int, keys: Sequence[str]) -> dict[str, Row] | None:
        """Return None: reads need no round trip, and the writer has the whole file locked."""
        return None

    @staticmethod
    def lock_idempotency_keys(batch: Batch, queue: int, keys: Sequence[str]) -> None:
        """Do nothing: the writer has the whole file locked."""

    @staticmethod
    def roll_up(batch: Batch) -> None:
        """Add all count deltas to the counts, and delete them."""
        batch.execute(_ROLL_UP)
        batch.execute("DELETE FROM redrive_count_delta")


class LenientSession(Session):
    """A session that reads damaged text: bytes that are not UTF-8 become replacement characters. Much slower."""

    __slots__ = ("_connection",)

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self._connection = connection
        self.execute = self.stream = self._execute  # type: ignore[assignment]  # it returns rows, not a cursor
        self.request = partial(partial, self._execute)

    def _execute(self, statement: str, values: Any = ()) -> Any:
        if not statement.lstrip().startswith(("SELECT", "WITH")) or "RETURNING" in statement:
            return self._connection.execute(statement, values)
        try:
            count = len(self._connection.execute(statement, values).get_description())
        except apsw.ExecutionCompleteError:  # no rows
            return self._connection.execute(statement, values)
        columns = [f"c{number}" for number in range(count)]
        as_bytes = (f"CASE typeof({each}) WHEN 'text' THEN CAST({each} AS BLOB) ELSE {each} END" for each in columns)
        whether_text = (f"typeof({each}) = 'text'" for each in columns)
        names, read = ", ".join(columns), ", ".join((*as_bytes, *whether_text))
        rows = self._connection.execute(f"WITH stored({names}) AS ({statement}) SELECT {read} FROM stored", values)
        return _Rows(rows)


class _Rows:
    """Rows with damaged text, with what cursors have. After the values of a row, it has whether each is text."""

    def __init__(self, cursor: apsw.Cursor) -> None:
        self._cursor = cursor
        self._rows = map(_decoded, cursor)

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    @property
    def get(self) -> Any:
        """The first row, or its only value."""
        row = self.fetchone()
        return row[0] if row is not None and len(row) == 1 else row

    def fetchone(self) -> Row | None:
        """Return the next row."""
        return next(self._rows, None)

    def fetchall(self) -> list[Row]:
        """Return all further rows."""
        return list(self._rows)

    def close(self) -> None:
        """End the statement."""
        self._cursor.close()


def _decoded(row: Row) -> Row:
    values, is_text = row[: len(row) // 2], row[len(row) // 2 :]
    pairs = zip(values, is_text, strict=True)
    return tuple(value.decode(errors="replace") if text else value for value, text in pairs)
