"""Settle deliveries: complete, settle, return, extend. The token decides. Results are kept in a table of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from redrive.clock import Instant
from redrive.contract import SettleCall
from redrive.contract.item_calls import Complete, Extend, ReturnLease, Settle, StaleSettings
from redrive.errors import LeaseLost, PayloadTooLarge, RedriveError, WrongQueue
from redrive.model.feed import FeedKind
from redrive.model.ids import MAX_NUMBER, ItemId, item_id_of, parse_id, parse_token
from redrive.model.item import Counters, HistoryEntry, HistoryEvent, Result, Settled, Status
from redrive.model.judge import OutcomeKind
from redrive.stores.relational import dead_letters, feed, verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.item_rows import (
    FEW,
    ItemRow,
    delete_row,
    earlier_ids,
    find_all_leased,
    find_by_id,
    find_leased,
    insert_row,
)
from redrive.stores.relational.puts import put_batch
from redrive.stores.relational.session import ANY_QUEUE, NO_QUEUE, Executor, HeldAs

# By the tail too: a number may come twice, once the item that had it is gone and the clock was set back.
_KEEP = """
    INSERT INTO redrive_result (n, tail, namespace, result, result_type, until) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (n, tail) DO UPDATE
    SET result = excluded.result, result_type = excluded.result_type, until = excluded.until"""
_GET = """
    SELECT result, result_type FROM redrive_result
    WHERE n = ? AND tail = ? AND namespace = ? AND until > ?"""


def store_result(batch: Batch, place: ItemRow, result: Result, time: int) -> None:
    """Keep the result of an item that is about to be completed, under every id that it had."""
    ids = [(place.n, place.tail)]
    if place.entries:  # what moved has a history that says so
        ids += map(parse_id, earlier_ids(batch, place.n))
    for n, tail in ids:
        values = (n, tail, batch.namespace_key, result.payload, result.content_type, batch.now + time)
        batch.write(_KEEP, values)


def read_result(executor: Executor, namespace_key: int | None, id: ItemId, now: Instant) -> Result | None:
    """What was kept, until its time is over."""
    n, tail = parse_id(id)
    if n > MAX_NUMBER or tail > MAX_NUMBER:  # nobody was ever given such an id
        return None
    row = executor.execute(_GET, (n, tail, namespace_key, now)).fetchone()
    return None if row is None else Result(*row)


_OF_LEASE = "SELECT n, token, queue, deliveries, attempts, failures, losses, redrives, entries, deaths"
_HELD_ONE = f"{_OF_LEASE} FROM redrive_lease WHERE n = ? /*+ FOR UPDATE */"
_HELD = f"{_OF_LEASE} FROM redrive_lease WHERE n IN carray(?) /*+ ORDER BY n FOR UPDATE */"
_EXTEND = "UPDATE redrive_lease SET deadline = ? /*= , early = 0 */ WHERE n = ?"
_EXTEND_EARLY = "UPDATE redrive_lease SET deadline = ? /*= , early = 1 */ WHERE n = ?"


def settle_all(batch: Batch, calls: Sequence[SettleCall]) -> list[Any]:
    """Carry out settles. Plain completions go together; the rest one by one."""
    results: list[Any] = [None] * len(calls)
    plain: list[int] = []
    others: list[int] = []
    contested = len({call.token for call in calls}) < len(calls)  # of two calls with one token, the first one counts
    for index, call in enumerate(calls):
        together = call.__class__ is Complete and call.result is None and not call.puts and not contested
        (plain if together else others).append(index)
    held = {} if contested else _all_held(batch, [calls[index].token for index in others])
    for index in others:
        try:
            results[index] = _settle_one(batch, calls[index], held)
        except RedriveError as refusal:
            results[index] = refusal
    if plain:
        _complete_all(batch, [calls[index] for index in plain], plain, results)  # type: ignore[misc]  # chosen by class
    return results


def finish(
    batch: Batch,
    place: ItemRow,
    result: Result | None,
    *,
    kind: FeedKind = FeedKind.COMPLETED,
    actor: str | None = None,
    operation: str | None = None,
) -> Settled:
    """Complete an item that was taken from its place: kept for keep_completed, or removed. `kind` is what is told."""
    row = batch.by_key[place.queue]
    counters, queue = place.counters, row.queue.name
    batch.count_delta(place.queue, "completed_total")
    feed.append_event(batch, kind, queue, place.n, place.tail, actor=actor, operation=operation)
    if not row.settings.keep_completed:
        verdicts.remove(batch, place)
        return Settled(place.id, queue, None, counters)
    dead_letters.remove_dead_letter(batch, place)
    place.status, place.ended_at, place.result, place.held_by = Status.COMPLETED, batch.now, result, None
    insert_row(batch, place)
    return Settled(place.id, queue, Status.COMPLETED, counters)


def _complete_all(batch: Batch, calls: Sequence[Complete], indexes: Sequence[int], results: list[Any]) -> None:
    """Completions without result and puts: one look, then everything that goes, goes at once."""
    parsed = [_held_as(batch, call) for call in calls]
    finished: dict[int, int] = {}
    if removed := batch.session.delete_leases(batch, parsed):
        rest = [place for place, each in enumerate(parsed) if each[:2] not in removed]
        for index, call, each in zip(indexes, calls, parsed, strict=True):
            if each[:2] in removed:
                queue, *counts = removed[each[:2]]
                finished[queue] = finished.get(queue, 0) + 1
                results[index] = Settled(
                    item_id_of(call.token),
                    batch.by_key[queue].queue.name,
                    None,
                    Counters(*counts),
                )
        parsed = [parsed[place] for place in rest]
        calls, indexes = [calls[place] for place in rest], [indexes[place] for place in rest]
    if parsed:
        _complete_held(batch, parsed, calls, indexes, results, finished)
    for queue, count in finished.items():
        batch.count_delta(queue, "active", -count)
        batch.count_delta(queue, "completed_total", count)


def _held_as(batch: Batch, call: Complete) -> HeldAs:
    token, queue = call.token, call.queue
    if queue is None:
        return HeldAs(int(token[16:32], 16), int(token[32:], 16))
    named = batch.by_name.get(queue)
    return HeldAs(int(token[16:32], 16), int(token[32:], 16), NO_QUEUE if named is None else named.key)


def _complete_held(
    batch: Batch,
    parsed: Sequence[HeldAs],
    calls: Sequence[Complete],
    indexes: Sequence[int],
    results: list[Any],
    finished: dict[int, int],
) -> None:
    numbers = [each.n for each in parsed]
    look = batch.execute(_HELD_ONE, numbers) if len(numbers) == 1 else batch.execute(_HELD, (batch.table(numbers),))
    held = {row[0]: row for row in look.fetchall()}
    gone: list[int] = []
    # Of what is kept, or has a past, more is to be changed than a lease.
    more = {row[0] for row in held.values() if row[8] or row[9] or _keeps(batch, row[2])}
    tails = {n: int(call.token[:16], 16) for call, (n, *_) in zip(calls, parsed, strict=True) if n in more}
    places = find_all_leased(batch, tails) if tails else {}
    for index, call, (n, key, named) in zip(indexes, calls, parsed, strict=True):
        row, token = held.get(n), call.token
        if row is None or row[1] != key or row[2] not in batch.by_key:
            results[index] = _lost(batch, token)
            continue
        _, _, queue, deliveries, attempts, failures, losses, redrives, *_ = row
        owner = batch.by_key[queue]
        if named not in (ANY_QUEUE, queue):
            results[index] = WrongQueue(item_id_of(token), owner.queue.name, call.queue or "")
            continue
        del held[n]
        if (place := places.get(n)) is not None:
            delete_row(batch, place)
            results[index] = finish(batch, place, None)
            continue
        if owner.records_success:
            feed.append_event(batch, FeedKind.COMPLETED, owner.queue.name, n, int(token[:16], 16))
        gone.append(n)
        finished[queue] = finished.get(queue, 0) + 1
        counters = Counters(deliveries, attempts, failures, losses, redrives)
        results[index] = Settled(item_id_of(token), owner.queue.name, None, counters)
    if len(gone) == 1:
        batch.execute("DELETE FROM redrive_lease WHERE n = ?", gone)
        batch.execute("DELETE FROM redrive_item WHERE n = ?", gone)
    elif gone:
        all_gone = batch.table(gone)
        batch.execute("DELETE FROM redrive_lease WHERE n IN carray(?)", (all_gone,))
        batch.execute("DELETE FROM redrive_item WHERE n IN carray(?)", (all_gone,))


def _keeps(batch: Batch, queue: int) -> bool:
    return queue in batch.by_key and bool(batch.by_key[queue].settings.keep_completed)


def _settle_one(batch: Batch, call: SettleCall, held: Mapping[str, ItemRow]) -> Any:
    place = held.get(call.token) or _held(batch, call.token)
    row = batch.by_key[place.queue]
    if not isinstance(call, Settle) and call.queue not in (None, row.queue.name):
        raise WrongQueue(place.id, row.queue.name, call.queue or "")
    match call:
        case Settle(_, ending, verdict, version, failure, note, at_once):
            assert place.deadline is not None
            if ending is OutcomeKind.LOST and not at_once and place.deadline > batch.now:
                raise LeaseLost(place.id, Status.ACTIVE)
            if version != row.queue.version:
                return StaleSettings(row.queue)
            verdicts.check(batch, row, ending, verdict)
            worker = place.worker
            delete_row(batch, place)
            place.failures += ending is OutcomeKind.FAILED
            place.losses += ending is OutcomeKind.LOST
            batch.count_delta(place.queue, "failed_total", ending is OutcomeKind.FAILED)
            entry = _record(batch, place, HistoryEvent(ending.value), failure=failure, worker=worker, note=note)
            return verdicts.apply_verdict(batch, place, verdict, entry)
        case Extend(_, timeout):
            deadline = Instant(batch.now + (row.settings.lease_timeout if timeout is None else timeout))
            early = deadline < batch.now + row.settings.lease_timeout
            batch.execute(_EXTEND_EARLY if early else _EXTEND, (deadline, place.n))
            return deadline
        case Complete(_, result, puts, kept_for):
            if result is not None and len(result.payload) > row.settings.max_payload_size:
                raise PayloadTooLarge("result", len(result.payload), row.settings.max_payload_size, "max_payload_size")
            put_batch(batch, puts, leaving=place.queue)
            if result is not None and kept_for is not None:
                store_result(batch, place, result, kept_for)
            delete_row(batch, place)
            return finish(batch, place, result)
        case ReturnLease(_, note):
            worker = place.worker
            delete_row(batch, place)
            place.status = Status.PENDING
            place.attempts = max(0, place.attempts - 1)
            if note is not None:
                entry = _record(batch, place, HistoryEvent.RETURNED, worker=worker, note=note)
                verdicts.tell(batch, FeedKind.RETURNED, place, entry, title=note)
            insert_row(batch, place)
            return Settled(place.id, row.queue.name, Status.PENDING, place.counters, place.ready_at)
        case _:
            assert_never(call)


def _record(batch: Batch, place: ItemRow, event: HistoryEvent, **details: Any) -> HistoryEntry:
    queue = batch.by_key[place.queue].queue.name
    entry = HistoryEntry(batch.now, event, queue, place.deliveries, **details)
    verdicts.record(batch, place, entry)
    return entry


def _all_held(batch: Batch, tokens: Sequence[str]) -> dict[str, ItemRow]:
    """The places of items that are active under these tokens, with one look where there are many."""
    if len(tokens) <= FEW:
        return {}
    parsed = {token: parse_token(token) for token in tokens}
    found = find_all_leased(batch, {n: tail for n, tail, _ in parsed.values()})
    return {
        token: found[n]
        for token, (n, _, key) in parsed.items()
        if n in found and found[n].token == key and found[n].queue in batch.by_key
    }


def _held(batch: Batch, token: str) -> ItemRow:
    """The place of an item that is active under this token. Raises LeaseLost."""
    n, tail, key = parse_token(token)
    place = find_leased(batch, n, tail)
    if place is None or place.token != key or place.queue not in batch.by_key:
        raise _lost(batch, token)
    return place


def _lost(batch: Batch, token: str) -> LeaseLost:
    """What to tell whoever comes too late: what the item is now."""
    id = item_id_of(token)  # type: ignore[arg-type]
    place = find_by_id(batch, id)
    return LeaseLost(id, None if place is None or place.queue not in batch.by_key else place.status.value)
