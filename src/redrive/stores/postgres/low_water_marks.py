"""Low-water marks: the position in each index before which no live entry exists.

PostgreSQL keeps index entries of deleted rows while any transaction holds a snapshot that can see them, so a scan for
the first live entry would step over all of them. Scans therefore start at the mark. There is one mark per queue and
index.

**A mark never passes a position at which an entry can still appear.** A transaction locks `redrive_meta` against
changes of the table, gets its id, and then takes its instant (`PostgresStore._begun`). It keeps that lock until its
entries are visible. A process therefore records an instant, and after it allocates a transaction id. Once no
transaction up to that id is open, or none of those that are has that lock, all later entries have a later instant, and
all earlier ones are visible. Then the mark moves to that instant minus SLACK, or to the first existing entry. So
transactions of others stop nothing. ADR 37 has the proof. (The end of a snapshot cannot replace the id: transactions
beyond it may be running already.)

**An entry inserted below**, more than SLACK before the instant of its transaction, lowers the mark in that transaction.
That is done last, because it locks; until then its scans start at that entry (`Session.scan`).

A change of the marks of a queue inserts a row with the next version, so two concurrent changes have the same key: one
of them waits, and reads again. Only the newest row is read, so the marks themselves do not bloat.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from redrive.clock import Clock, Instant
from redrive.errors import RedriveError
from redrive.model.limits import MAX_PRIORITY
from redrive.model.queue import QueueSettings
from redrive.stores.postgres.engine import Engine
from redrive.stores.postgres.session import Session
from redrive.stores.relational.low_water_marks import KINDS, SLACK
from redrive.telemetry import events

MOVE_EVERY_SECONDS = 0.5
"""Minimum time between two moves of the marks by one process."""
LOOK_BELOW_EVERY_SECONDS = 60.0
"""Interval of verification: if the clock was set back, an item may be inserted below a mark that is just moving."""
ALL_QUEUES = 0
"""The key, instead of a queue, of the mark of all count deltas. That mark is a key, not an instant."""

_log = events.logger("redrive.store")

_HIGHEST = 2**63 - 1
_COLUMNS = ", ".join(KINDS)
_INDEXES = {
    **{f"ready_{rank}": ("redrive_ready", "ready_at", f"rank = {rank}") for rank in range(MAX_PRIORITY + 1)},
    "lease": ("redrive_lease", "deadline", "early = 0"),
    "early_lease": ("redrive_lease", "deadline", "early = 1"),
    "scheduled": ("redrive_scheduled", "ready_at", "held_by IS NULL"),
    "ready_expiry": ("redrive_ready", "expire_deadline", "expire_deadline IS NOT NULL"),
    "scheduled_expiry": ("redrive_scheduled", "expire_deadline", "expire_deadline IS NOT NULL"),
}
"""The index of each mark: table, column, and condition."""
_LEASE_TIMEOUT = f"""coalesce((
    SELECT coalesce((settings::json ->> 'lease_timeout')::bigint, {QueueSettings().lease_timeout})
    FROM redrive_queue WHERE key = ?1), 0)"""
_CURRENT_MARKS = ", ".join(f"coalesce(max({kind}), 0) AS {kind}" for kind in KINDS)
_PRESENT = f"""(
        SELECT coalesce(max(version), 0) AS version, {_CURRENT_MARKS}
        FROM (SELECT * FROM redrive_low_water_mark WHERE queue = ?1 ORDER BY version DESC LIMIT 1) AS newest) AS m"""
_CHANGE = f"""
    INSERT INTO redrive_low_water_mark (queue, version, {_COLUMNS})
    SELECT ?1, m.version + 1, {{values}} FROM {_PRESENT} ON CONFLICT DO NOTHING RETURNING version"""
_LOWER = _CHANGE.format(values=", ".join(f"least(m.{kind}, ?{item_row})" for item_row, kind in enumerate(KINDS, 2)))


def _first(table: str, column: str, condition: str, bounds: str) -> str:
    return f"(SELECT {column} FROM {table} WHERE queue = ?1 AND {condition} AND {bounds} ORDER BY {column} LIMIT 1)"


def _raised(kind: str) -> str:
    if kind == "count_delta":
        return "m.count_delta"
    table, column, condition = _INDEXES[kind]
    to = f"?2 + {_LEASE_TIMEOUT}" if kind == "lease" else "?2"
    return f"greatest(m.{kind}, least({to}, {_first(table, column, condition, f'{column} >= m.{kind}')}))"


_RAISE = _CHANGE.format(values=", ".join(map(_raised, KINDS)))
_RAISE_COUNT_DELTA = f"""
    INSERT INTO redrive_low_water_mark (queue, version, count_delta)
    SELECT ?1, m.version + 1, greatest(m.count_delta, least(?2,
        (SELECT key FROM redrive_count_delta WHERE key >= m.count_delta ORDER BY key LIMIT 1)))
    FROM {_PRESENT} ON CONFLICT DO NOTHING RETURNING version"""
_BELOW = f"""
    SELECT {", ".join(_first(*section, f"{section[1]} < m.{kind}") for kind, section in _INDEXES.items())}
    FROM {_PRESENT}"""
_COUNT_DELTA_BELOW = (
    f"SELECT 1 FROM {_PRESENT} WHERE EXISTS (SELECT 1 FROM redrive_count_delta WHERE key < m.count_delta)"
)
_FORGET = "DELETE FROM redrive_low_water_mark WHERE queue = ? AND version < ?"
_FORGET_QUEUES = """
    DELETE FROM redrive_low_water_mark WHERE queue <> 0 AND NOT EXISTS (SELECT 1 FROM redrive_queue
    WHERE key = queue)"""
_MARKED = "SELECT DISTINCT queue FROM redrive_low_water_mark"
_REACHED = """
    SELECT nextval('redrive_count_delta_key_seq'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"""
_ID = "SELECT pg_current_xact_id()::text::bigint"
HOLDS_META = """bool_or(locktype = 'relation' AND relation = 'redrive_meta'::regclass
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"""
"""A condition on the locks of one transaction: it holds, or waits for, the lock on redrive_meta."""
HAS_ID = "locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted"
"""A condition on one lock: its transaction has this id, or this is the id of a subtransaction of it."""
_UP_TO = "((?1 - transactionid::text::bigint) & 4294967295) < 2147483648"
"""A transaction's id, of which a lock has the lower half, is at most ?1: open ones are less than 2^31 apart."""
_MAY_STILL_PUT = f"""
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint <= ?1 AND EXISTS (
        SELECT 1 FROM pg_locks GROUP BY virtualtransaction
        HAVING {HOLDS_META} AND bool_or({HAS_ID} AND {_UP_TO}))"""
"""Whether a transaction up to that id is open that can have taken its instant. All locks are read at one time."""
_NOT_SYNCED = "SET LOCAL synchronous_commit = off"


class SnapshotBound(msgspec.Struct, frozen=True):
    """Once every transaction up to `id` has ended, or has not put yet, no entry that appears has an earlier instant or
    a smaller key."""

    instant: Instant
    count_delta_key: int
    id: int


class LowWaterMarks:
    """The marks of one schema, as moved by one process. `clock` is None if the server's clock is used."""

    def __init__(self, engine: Engine, clock: Clock | None) -> None:
        self._engine = engine
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Reset, as after a fork."""
        self.highest = Instant(0)
        """The highest instant to which this process moved a mark."""
        self._used: set[int] = set()
        self._noted: SnapshotBound | None = None
        self._moved_at = 0.0
        self._looked_at = time.monotonic()

    def used(self, queues: Iterable[int]) -> None:
        """Record that items were inserted and deleted in these queues, so that their marks should move."""
        self._used.update(queues)

    def lower(self, session: Session, below: Mapping[tuple[int, str], int]) -> None:
        """Lower marks in a transaction that inserted entries below them, or below where they may soon be."""
        for queue in sorted({queue for queue, _ in below}):
            values = [below.get((queue, kind), _HIGHEST) for kind in KINDS]
            while session.execute(_LOWER, (queue, *values)).get is None:
                pass  # changed concurrently: the next statement sees the new version

    def move(self) -> None:
        """Raise the marks of used queues as far as possible. Errors of the server are logged, not raised."""
        if time.monotonic() - self._moved_at < MOVE_EVERY_SECONDS:
            return
        try:
            if self._used:
                self._engine.run_autocommit(self._move)
            if time.monotonic() - self._looked_at >= LOOK_BELOW_EVERY_SECONDS:
                self.verify_nothing_below()
        except RedriveError as error:
            _log.info("low_water_marks_not_advanced", error=str(error))

    def verify_nothing_below(self) -> None:
        """Lower every mark with an entry below it, which only a clock that was set back can cause."""
        self._looked_at = time.monotonic()
        self._engine.run_autocommit(self._look_below)

    def _move(self, session: Session) -> None:
        noted = self._noted = self._noted or self.record_bound(session)
        if session.execute(_MAY_STILL_PUT, (noted.id,)).get:
            return
        self._moved_at = time.monotonic()
        used, self._used, self._noted = self._used, set(), None
        self.highest = max(self.highest, noted.instant)
        for queue in sorted(used):
            self._raise(session, queue, _RAISE, noted.instant - SLACK)
        self._raise(session, ALL_QUEUES, _RAISE_COUNT_DELTA, noted.count_delta_key)

    def record_bound(self, session: Session) -> SnapshotBound:
        """Return the bound that holds once all current transactions that put have ended."""
        given = None if self._clock is None else self._clock.now()
        count_delta_key, server_now = session.execute(_REACHED).get
        return SnapshotBound(server_now if given is None else given, count_delta_key, session.execute(_ID).get)

    def _raise(self, session: Session, queue: int, statement: str, to: int) -> None:
        """Raise a mark in a separate, short transaction, which waits only for one that lowers it."""
        with session.transaction():
            session.execute(_NOT_SYNCED)  # a lost change is repeated later
            version = session.execute(statement, (queue, to)).get
            if version is not None:
                session.execute(_FORGET, (queue, version))

    def _look_below(self, session: Session) -> None:
        session.execute(_FORGET_QUEUES)
        for (queue,) in session.execute(_MARKED).fetchall():
            if queue == ALL_QUEUES:
                found: dict[str, Any] = {"count_delta": 0} if session.execute(_COUNT_DELTA_BELOW, (queue,)).get else {}
            else:
                first = session.execute(_BELOW, (queue,)).fetchone()
                assert first is not None
                found = {kind: at for kind, at in zip(_INDEXES, first, strict=True) if at is not None}
            if found:
                _log.warning("low_water_marks_lowered", queue_number=queue)
                with session.transaction():
                    self.lower(session, {(queue, kind): at for kind, at in found.items()})
