"""The lane of uniform failures: deliveries that failed, after which items are retried, or dead in place.

It executes many together with the effects of `settle` and `verdicts`, and declines calls that need more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from redrive.clock import Instant
from redrive.contract.item_calls import Settle, SettleCall
from redrive.model.death import EXHAUSTED_REASONS, Cause, DeadReason, cause_of
from redrive.model.failure import Failure
from redrive.model.feed import FeedKind
from redrive.model.group import hour_of
from redrive.model.ids import item_id_of
from redrive.model.item import Death, HistoryEntry, HistoryEvent, Settled, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST
from redrive.stores.relational import dead_letters, feed, verdicts
from redrive.stores.relational.batch import Batch, Stage, UnindexedLetter
from redrive.stores.relational.dead_letters import LETTER_COLUMNS
from redrive.stores.relational.item_rows import INSERT_READY, INSERT_SCHEDULED, STATE_COLUMNS, ItemRow, state_values
from redrive.stores.relational.queue_rows import QueueRow

_DELETE_LEASES = "DELETE FROM redrive_lease WHERE item_no IN carray(?)"
_LEASES = "carray(?1) AS c CROSS JOIN redrive_lease AS l ON l.item_no = c.value"
_BURY = f"""
    INSERT INTO redrive_finished (item_no, queue, status, ended_at, dead_reason, {STATE_COLUMNS})
    SELECT l.item_no, l.queue, '{Status.DEAD.value}', ?4, ?5, l.rank, l.ready_at, l.seq, l.expire_deadline,
        l.deliveries, l.attempts, l.failures + 1, l.losses, l.redrives, l.first_leased_at, l.entries + 1, l.deaths + 1,
        ?2 + c.rowid * ?3
    FROM {_LEASES}"""
_INSERT_LETTERS = f"""
    INSERT INTO redrive_dead_letter ({LETTER_COLUMNS})
    SELECT ?2 + c.rowid * ?3, l.item_no, l.queue, ?4, ?5, ?6, ?7, ?8, ?9, ?10,
        l.deliveries, l.attempts, l.failures + 1, l.losses
    FROM {_LEASES}"""
"""Like `_BURY`, it copies the state of items that die from table to table in the database."""
_STORED = {status: status.value for status in Status}
# Access to a member of an enumeration takes 0.1 µs on Python 3.11.
_FAILED, _HAS_FAILED = OutcomeKind.FAILED, HistoryEvent.FAILED
_PENDING, _DIED = Status.PENDING, Status.DEAD
_Rows = list[tuple[Any, ...]]
_encode = msgspec.json.Encoder().encode


class PlainFailure(NamedTuple):
    """A call for the lane, with its position in the batch."""

    place: int
    call: Settle
    verdict: Any
    failure: Failure
    item_row: ItemRow


def plain_failure(batch: Batch, place: int, call: SettleCall, item_row: ItemRow) -> PlainFailure | None:
    """Return the call if the lane can execute it, else None.

    Its item must be no dead letter, have no expiry and no holders, and a history that is not full.
    """
    if call.__class__ is not Settle or call.outcome_kind is not _FAILED:
        return None
    failure, verdict, row = call.failure, call.verdict, batch.by_key[item_row.queue]
    if failure is None or call.close_until is not None or call.version != row.queue.version:
        return None
    if item_row.was_dead or item_row.death_no is not None or item_row.expire_deadline is not None:
        return None
    if item_row.entries >= HISTORY_FIRST + HISTORY_LAST:
        return None
    if isinstance(verdict, RetryVerdict):
        is_plain = not verdict.held_by and verdict.delay >= 0 and verdict.status in (Status.FAILED, Status.PENDING)
    else:
        is_plain = verdict.to is None and not verdict.drop and not batch.has_replies(row)
    return PlainFailure(place, call, verdict, failure, item_row) if is_plain else None


def settle_failures(batch: Batch, failures: Sequence[PlainFailure], results: list[Any]) -> None:
    """Execute calls of the lane, in their order."""
    for (key, kind), members in groupby(failures, lambda each: (each.item_row.queue, each.verdict.__class__)):
        row, alike = batch.by_key[key], list(members)
        batch.count_status(key, Status.ACTIVE, -len(alike))
        batch.count_delta(key, "failed_total", len(alike))
        (_bury if kind is Dead else _retry)(batch, row, alike, results)
        numbers = batch.table([each.item_row.item_no for each in alike])
        batch.write(_DELETE_LEASES, (numbers,), Stage.DELETE_ITEM)  # after the statements that read them


def _retry(batch: Batch, row: QueueRow, failures: Sequence[PlainFailure], results: list[Any]) -> None:
    queue, now, is_kept = row.queue.name, batch.now, FeedKind.FAILED in row.feed_kinds
    history: _Rows = []
    ready: _Rows = []
    scheduled: _Rows = []
    entries: dict[tuple[str, ...], tuple[Failure, list[feed.FailureEntry]]] = {}
    for place, call, verdict, failure, item_row in failures:
        number, status, item_no = batch.allocate(2 + is_kept), verdict.status, item_row.item_no
        history.append(_history_row(batch, queue, number, failure, call.note, item_row))
        item_row.ready_at, item_row.seq = Instant(now + verdict.delay), number + 1
        if status is _PENDING and not verdict.delay:
            ready.append((row.key, item_no, *state_values(item_row)))
        else:
            scheduled.append((item_no, row.key, _STORED[status], None, *state_values(item_row)))
        batch.count_status(row.key, status, 1)
        batch.arrivals[queue] += not verdict.delay
        if is_kept:
            kind = failure.type, failure.text, failure.error_class, failure.fingerprint
            entries.setdefault(kind, (failure, []))[1].append((number + 2, item_no, item_row.id_suffix))
        results[place] = Settled(item_id_of(call.token), queue, status, item_row.counters, item_row.ready_at)
    batch.write_all(verdicts.INSERT_HISTORY, history)
    batch.write_all(INSERT_READY, ready)
    batch.write_all(INSERT_SCHEDULED, scheduled)
    for failure, of_kind in entries.values():
        feed.append_failures(batch, FeedKind.FAILED, queue, failure, None, of_kind)


def _bury(batch: Batch, row: QueueRow, failures: Sequence[PlainFailure], results: list[Any]) -> None:
    queue, now, is_kept = row.queue.name, batch.now, FeedKind.DEAD in row.feed_kinds
    history: _Rows = []
    deaths: _Rows = []
    step = 2 + is_kept
    """Numbers per item: for the history, the death, and the feed."""
    for (reason, cause, columns), members in groupby(failures, _Causes().find):
        alike = list(members)
        number = batch.allocate(len(alike) * step)
        numbers, first = batch.table([each.item_row.item_no for each in alike]), number + 1 - step
        entries: list[feed.FailureEntry] = []
        batch.write(_BURY, (numbers, first, step, now, columns[0]))
        batch.write(_INSERT_LETTERS, (numbers, first, step, batch.namespace_key, now, *columns))
        for place, call, _, failure, item_row in alike:
            item_no, id = item_row.item_no, item_id_of(call.token)
            history.append(_history_row(batch, queue, number, failure, call.note, item_row))
            batch.wake_awaiting(id, has_past=item_row.entries > 1)  # moved items have a history
            counters = item_row.counters
            death = Death(
                now, reason, queue, batch.namespace, batch.store, id, counters, cause, item_row.first_leased_at
            )
            deaths.append((item_no, _encode(death)))
            if row.settings.search:
                batch.unindexed[number + 1] = UnindexedLetter(item_no, failure.type, failure.text)
            entries.append((number + 2, item_no, item_row.id_suffix))
            results[place] = Settled(id, queue, _DIED, counters, dead_reason=reason)
            number += step
        if is_kept:
            feed.append_failures(batch, FeedKind.DEAD, queue, alike[0].failure, reason, entries)
    batch.write_all(verdicts.INSERT_HISTORY, history)
    batch.write_all(verdicts.INSERT_DEATH, deaths)
    batch.count_status(row.key, Status.DEAD, len(failures))
    batch.count_delta(row.key, "dead_total", len(failures))
    batch.count_delta(row.key, "exhausted_total", sum(each.verdict.reason in EXHAUSTED_REASONS for each in failures))
    batch.count_delta(row.key, "dead_letters", len(failures))
    for fingerprint, count in Counter(each.failure.fingerprint for each in failures).items():
        dead_letters.count_many_in_group(batch, row.key, fingerprint, hour_of(now), count, now, now)


def _history_row(
    batch: Batch, queue: str, key: int, failure: Failure, note: str | None, item_row: ItemRow
) -> tuple[Any, ...]:
    """Count a failure, and return its history row."""
    item_row.failures += 1
    item_row.entries += 1
    entry = HistoryEntry(batch.now, _HAS_FAILED, queue, item_row.deliveries, failure, item_row.worker, None, note)
    return key, item_row.item_no, item_row.entries, _encode(entry)


class _Causes:
    """The causes of deaths in one transaction, made once for uniform failures."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[DeadReason, Cause, tuple[str, ...]]] = {}

    def find(self, failed: PlainFailure) -> tuple[DeadReason, Cause, tuple[str, ...]]:
        """Return the reason, the cause, and its columns in the index of dead letters, the reason first."""
        failure, reason = failed.failure, failed.verdict.reason
        alike = reason, failure.type, failure.text, failure.error_class, failure.fingerprint
        known = self._known.get(alike)
        if known is None:
            cause = cause_of(reason, failure)
            known = self._known[alike] = reason, cause, dead_letters.cause_columns(reason, cause)
        return known
