"""Settle deliveries: complete, settle, return, extend. The token is the fencing token. Unusual calls follow the
rules."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from redrive.clock import Instant
from redrive.contract.item_calls import Complete, Extend, Reply, ReturnLease, Settle, SettleCall, StaleSettings
from redrive.errors import LeaseLost, PayloadTooLarge, RedriveError, WrongQueue
from redrive.model.delivery_end import DELIVERY_ENDS
from redrive.model.feed import FeedKind
from redrive.model.ids import ID_DIGITS, MAX_NUMBER, item_id_of
from redrive.model.item import Counters, HistoryEntry, HistoryEvent, Result, Settled, Status
from redrive.model.judge import Dead, OutcomeKind, count_outcome
from redrive.model.queue import WITH_ITEM
from redrive.stores.relational import feed, verdicts
from redrive.stores.relational.batch import LEFT, Batch
from redrive.stores.relational.failed_deliveries import PlainFailure, plain_failure, settle_failures
from redrive.stores.relational.item_rows import (
    BULK_THRESHOLD,
    ItemRow,
    delete_row,
    earlier_ids,
    extend_row,
    find_all_leased,
    find_by_id,
    find_leased,
    insert_row,
    token_numbers,
)
from redrive.stores.relational.kept_results import keep_result
from redrive.stores.relational.puts import is_odd_put, put_batch
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.rule_execution import execute_by_rules
from redrive.stores.relational.session import ANY_QUEUE, NO_QUEUE, LeaseKey

_OF_LEASE = "SELECT item_no, token, queue, deliveries, attempts, failures, losses, redrives, entries, deaths"
_LEASE = f"{_OF_LEASE} FROM redrive_lease WHERE item_no = ? /*+ FOR UPDATE */"
_unpack_token = struct.Struct(">QQQ").unpack
_LEASES = f"{_OF_LEASE} FROM redrive_lease WHERE item_no IN carray(?) /*+ ORDER BY item_no FOR UPDATE */"


def settle_all(batch: Batch, calls: Sequence[SettleCall]) -> list[Any]:
    """Execute settles. Plain completions and failures are done together, odd calls by the rules, others one by one.

    In a shared transaction, an odd completion that puts items is left to an exclusive one, with the calls that follow
    it: a shared lock cannot be upgraded. Of the other odd calls, every row is locked or new.
    """
    results: list[Any] = [None] * len(calls)
    plain: list[int] = []
    others: list[int] = []
    in_order = _depend_on_their_order(batch, calls)
    for index, call in enumerate(calls):
        together = call.__class__ is Complete and call.result is None and not (call.puts or call.reply or in_order)
        (plain if together else others).append(index)
    leased = {} if in_order else _find_all_leased(batch, [calls[index].token for index in others])
    odd: dict[int, ItemRow] = {}
    failed: list[PlainFailure] = []
    left_from = len(calls)
    for index in others:
        call = calls[index]
        try:
            item_row = leased.get(call.token) or _find_leased(batch, call.token)
            if item_row is None:
                # One of these may have changed the item.
                _settle_failed(batch, failed, results)
                _settle_odd(batch, calls, odd, results)
                raise _lost(batch, call.token)
            if leased and (failure := plain_failure(batch, index, call, item_row)) is not None:
                _settle_odd(batch, calls, odd, results)
                failed.append(failure)
                continue
            _settle_failed(batch, failed, results)
            if _is_odd(batch, call, item_row):
                if batch.is_shared and _puts_items(call):
                    batch.has_left, left_from = True, index
                    break
                odd[index] = item_row
            else:
                _settle_odd(batch, calls, odd, results)
                results[index] = _settle_one(batch, call, item_row)
        except RedriveError as refusal:
            results[index] = refusal
        if in_order:
            _settle_odd(batch, calls, odd, results)
    _settle_failed(batch, failed, results)
    _settle_odd(batch, calls, odd, results)
    if batch.has_left:
        results[left_from:] = [LEFT] * (len(calls) - left_from)
        plain = [index for index in plain if index < left_from]
    if plain:
        _complete_all(batch, [calls[index] for index in plain], plain, results)  # type: ignore[misc]  # chosen by class
    return results


def _is_odd(batch: Batch, call: SettleCall, item_row: ItemRow) -> bool:
    """Return whether a call follows the rules: it brings a reply or odd puts, ends the delivery of a dead letter, or is
    no plain verdict."""
    match call:
        case Extend():
            return False
        case Complete(puts=puts, reply=reply):
            return item_row.death_no is not None or reply is not None or any(map(is_odd_put, puts))
        case Settle(verdict=Dead() as verdict):
            odd = item_row.death_no is not None or call.close_until is not None
            return odd or not verdicts.is_plain_death(batch, batch.by_key[item_row.queue], verdict)
        case Settle():
            return item_row.was_dead or call.close_until is not None
        case ReturnLease():
            return item_row.was_dead
        case Reply():
            return True
        case _:
            assert_never(call)


def _settle_odd(
    batch: Batch, calls: Sequence[SettleCall] | Mapping[int, SettleCall], odd: dict[int, ItemRow], results: list[Any]
) -> None:
    """Execute calls by the rules."""
    if not odd:
        return
    by_rules = execute_by_rules(batch, [calls[index] for index in odd], list(odd.values()))
    for index, result in zip(odd, by_rules, strict=True):
        results[index] = result
    odd.clear()


def _settle_failed(batch: Batch, failed: list[PlainFailure], results: list[Any]) -> None:
    """Execute uniform failures."""
    if failed:
        settle_failures(batch, failed, results)
        failed.clear()


def _puts_items(call: SettleCall) -> bool:
    return isinstance(call, Complete) and bool(call.puts)


def _depend_on_their_order(batch: Batch, calls: Sequence[SettleCall]) -> bool:
    """Return whether calls must be executed in the order of the batch: two for one item, where the second depends on
    the first; or a completion that may free an idempotency key for the put of another one."""
    if len(calls) == 1:
        return False
    if len({call.token[:ID_DIGITS] for call in calls}) < len(calls):
        return True
    named = {put.queue for call in calls if call.__class__ is Complete and call.puts for put in call.puts}
    return any(
        name in batch.by_name and batch.by_name[name].settings.idempotency_timeout == WITH_ITEM for name in named
    )


def _complete_item(batch: Batch, item_row: ItemRow, result: Result | None) -> Settled:
    """Complete an item that is no dead letter: keep it for keep_completed, or delete it."""
    row = batch.by_key[item_row.queue]
    counters, queue = item_row.counters, row.queue.name
    delete_row(batch, item_row)
    batch.count_delta(item_row.queue, "completed_total")
    feed.append_event(batch, FeedKind.COMPLETED, queue, item_row.item_no, item_row.id_suffix)
    if not row.settings.keep_completed:
        verdicts.remove(batch, item_row)
        return Settled(item_row.id, queue, None, counters)
    if result is not None:
        batch.wake_awaiting(item_row.id, has_past=item_row.entries > 0)
    item_row.status, item_row.ended_at, item_row.result, item_row.holders = Status.COMPLETED, batch.now, result, ()
    insert_row(batch, item_row)
    return Settled(item_row.id, queue, Status.COMPLETED, counters)


def _complete_all(batch: Batch, calls: Sequence[Complete], indexes: Sequence[int], results: list[Any]) -> None:
    """Complete items without results and puts: one query, then one deletion for all."""
    parsed = [_lease_key(batch, call) for call in calls]
    finished: dict[int, int] = {}
    if removed := batch.session.complete_leases(batch, parsed):
        rest = [item_row for item_row, each in enumerate(parsed) if each[:2] not in removed]
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
        parsed = [parsed[item_row] for item_row in rest]
        calls, indexes = [calls[item_row] for item_row in rest], [indexes[item_row] for item_row in rest]
    if parsed:
        _complete_leased(batch, parsed, calls, indexes, results, finished)
    for queue, count in finished.items():
        batch.count_delta(queue, "active", -count)
        batch.count_delta(queue, "completed_total", count)


def _lease_key(batch: Batch, call: Complete) -> LeaseKey:
    token = call.token
    _, item_no, key = _unpack_token(bytes.fromhex(token))  # it is checked already
    if item_no > MAX_NUMBER or key > MAX_NUMBER:  # no row has such a number
        item_no = key = 0
    if call.queue is None:
        return item_no, key, ANY_QUEUE
    named = batch.by_name.get(call.queue)
    return item_no, key, NO_QUEUE if named is None else named.key


def _complete_leased(
    batch: Batch,
    parsed: Sequence[LeaseKey],
    calls: Sequence[Complete],
    indexes: Sequence[int],
    results: list[Any],
    finished: dict[int, int],
) -> None:
    numbers = [item_no for item_no, _, _ in parsed]
    rows = batch.execute(_LEASE, numbers) if len(numbers) == 1 else batch.execute(_LEASES, (batch.table(numbers),))
    leased = {row[0]: row for row in rows.fetchall()}
    gone: list[int] = []
    # Kept items, and items with a history, need changes beyond the lease.
    keeping = {queue for queue in {row[2] for row in leased.values()} if _keeps(batch, queue)}
    more = {row[0] for row in leased.values() if row[8] or row[9] or row[2] in keeping}
    id_suffixes = {
        item_no: int(call.token[:16], 16) for call, (item_no, *_) in zip(calls, parsed, strict=True) if item_no in more
    }
    item_rows = find_all_leased(batch, id_suffixes) if id_suffixes else {}
    odd: dict[int, ItemRow] = {}
    by_index = dict(zip(indexes, calls, strict=True)) if item_rows else {}
    for index, call, (item_no, key, named) in zip(indexes, calls, parsed, strict=True):
        row, token = leased.get(item_no), call.token
        if row is None or row[1] != key or row[2] not in batch.by_key:
            _settle_odd(batch, by_index, odd, results)
            results[index] = _lost(batch, token)
            continue
        _, _, queue, deliveries, attempts, failures, losses, redrives, *_ = row
        owner = batch.by_key[queue]
        if named not in (ANY_QUEUE, queue):
            results[index] = WrongQueue(item_id_of(token), owner.queue.name, call.queue or "")
            continue
        del leased[item_no]
        if item_rows and (item_row := item_rows.get(item_no)) is not None:
            if item_row.death_no is not None:
                odd[index] = item_row
                continue
            _settle_odd(batch, by_index, odd, results)
            results[index] = _complete_item(batch, item_row, None)
            continue
        if owner.records_success:
            _settle_odd(batch, by_index, odd, results)
            feed.append_event(batch, FeedKind.COMPLETED, owner.queue.name, item_no, int(token[:16], 16))
        gone.append(item_no)
        finished[queue] = finished.get(queue, 0) + 1
        counters = Counters(deliveries, attempts, failures, losses, redrives)
        results[index] = Settled(item_id_of(token), owner.queue.name, None, counters)
    if len(gone) == 1:
        batch.execute("DELETE FROM redrive_lease WHERE item_no = ?", gone)
        batch.execute("DELETE FROM redrive_item WHERE item_no = ?", gone)
    elif gone:
        all_gone = batch.table(gone)
        batch.execute("DELETE FROM redrive_lease WHERE item_no IN carray(?)", (all_gone,))
        batch.execute("DELETE FROM redrive_item WHERE item_no IN carray(?)", (all_gone,))
    _settle_odd(batch, by_index, odd, results)


def _keeps(batch: Batch, queue: int) -> bool:
    return queue in batch.by_key and bool(batch.by_key[queue].settings.keep_completed)


def _settle_one(batch: Batch, call: SettleCall, item_row: ItemRow) -> Any:
    row = batch.by_key[item_row.queue]
    if not isinstance(call, Settle) and call.queue not in (None, row.queue.name):
        raise WrongQueue(item_row.id, row.queue.name, call.queue or "")
    match call:
        case Settle():
            return _apply_verdict(batch, call, item_row, row)
        case Extend(_, timeout):
            deadline = Instant(batch.now + (row.settings.lease_timeout if timeout is None else timeout))
            extend_row(batch, item_row, deadline)
            return deadline
        case Complete(_, result, puts, keep_result):
            if result is not None and len(result.payload) > row.settings.max_payload_size:
                raise PayloadTooLarge("result", len(result.payload), row.settings.max_payload_size, "max_payload_size")
            put_batch(batch, puts, leaving=item_row.queue, completes=item_row.item_no)
            if result is not None and keep_result is not None:
                _keep_result(batch, item_row, result, keep_result)
            return _complete_item(batch, item_row, result)
        case ReturnLease(_, note):
            worker = item_row.worker
            delete_row(batch, item_row)
            item_row.attempts = max(0, item_row.attempts - 1)
            if note is not None:
                entry = _record(batch, item_row, HistoryEvent.RETURNED, worker=worker, note=note)
                verdicts.append_event(batch, FeedKind.RETURNED, item_row, entry, title=note)
            item_row.status = Status.PENDING
            insert_row(batch, item_row)
            return Settled(item_row.id, row.queue.name, Status.PENDING, item_row.counters, item_row.ready_at)
        case _:
            raise AssertionError(call)


def _apply_verdict(batch: Batch, call: Settle, item_row: ItemRow, row: QueueRow) -> Settled | StaleSettings:
    assert item_row.deadline is not None
    if call.outcome_kind is OutcomeKind.LOST and not call.worker_is_gone and item_row.deadline > batch.now:
        raise LeaseLost(item_row.id, Status.ACTIVE)
    if call.version != row.queue.version:
        return StaleSettings(row.queue)
    verdicts.check(batch, row, call.outcome_kind, call.verdict)
    worker = item_row.worker
    delete_row(batch, item_row)
    counted = count_outcome(item_row.counters, call.outcome_kind)
    item_row.attempts, item_row.failures, item_row.losses = counted.attempts, counted.failures, counted.losses
    batch.count_delta(item_row.queue, "failed_total", call.outcome_kind.is_failure)
    event = DELIVERY_ENDS[call.outcome_kind].event
    entry = _record(batch, item_row, event, failure=call.failure, worker=worker, note=call.note)
    return verdicts.apply_verdict(batch, item_row, call.verdict, entry)


def _keep_result(batch: Batch, item_row: ItemRow, result: Result, time: int) -> None:
    """Keep the result of an item that is about to be completed, and wake callers that await it."""
    ids = [item_row.id]
    if item_row.entries:  # moved items have a history
        ids += earlier_ids(batch, item_row.item_no)
    for id in ids:
        batch.wake_awaiting(id)
    queue = batch.by_key[item_row.queue].queue.name
    keep_result(batch, ids, item_row.item_no, queue, result, Instant(batch.now + time))


def _record(batch: Batch, item_row: ItemRow, event: HistoryEvent, **details: Any) -> HistoryEntry:
    queue = batch.by_key[item_row.queue].queue.name
    entry = HistoryEntry(batch.now, event, queue, item_row.deliveries, **details)
    verdicts.record(batch, item_row, entry)
    return entry


def _find_all_leased(batch: Batch, tokens: Sequence[str]) -> dict[str, ItemRow]:
    """Return the rows of items that are active under these tokens, with one query if there are many."""
    if len(tokens) <= BULK_THRESHOLD:
        return {}
    parsed = {token: token_numbers(token) for token in tokens}
    found = find_all_leased(batch, {item_no: id_suffix for item_no, id_suffix, _ in parsed.values()})
    return {
        token: found[item_no]
        for token, (item_no, _, key) in parsed.items()
        if item_no in found and found[item_no].token == key and found[item_no].queue in batch.by_key
    }


def _find_leased(batch: Batch, token: str) -> ItemRow | None:
    """Return the row of an item that is active under this token."""
    item_no, id_suffix, key = token_numbers(token)
    item_row = find_leased(batch, item_no, id_suffix)
    if item_row is None or item_row.token != key or item_row.queue not in batch.by_key:
        return None
    return item_row


def _lost(batch: Batch, token: str) -> LeaseLost:
    """Return the error for a late worker, with the current status of the item."""
    id = item_id_of(token)  # type: ignore[arg-type]
    item_row = find_by_id(batch, id)
    return LeaseLost(id, None if item_row is None or item_row.queue not in batch.by_key else item_row.status.value)
