"""The end of a delivery (complete, settle, return) and its extension. Each call names its token."""

from __future__ import annotations

import msgspec

from redrive.clock import Instant
from redrive.contract.item_calls import Complete, Extend, ReturnLease, Settle, StaleSettings
from redrive.errors import LeaseLost, PayloadTooLarge
from redrive.model.feed import FeedKind
from redrive.model.gate import close_for_retry_after
from redrive.model.item import HistoryEntry, HistoryEvent, KeptResult, Result, Settled, Status
from redrive.model.judge import OutcomeKind
from redrive.model.state_machine import Verb
from redrive.stores.rules.feed import append_event
from redrive.stores.rules.puts import PutPlan
from redrive.stores.rules.record import Record
from redrive.stores.rules.replies import apply_verdict, check_last_reply, reply_or_refuse
from redrive.stores.rules.state import State
from redrive.stores.rules.verdicts import check_verdict, return_to_dead


def complete(state: State, call: Complete) -> Settled:
    """Complete an item. The puts are checked before any change. For them, the completed item no longer counts."""
    item = state.leased(call.token, call.queue)
    largest = state.queues[item.queue].value.settings.max_payload_size
    if call.result is not None and len(call.result.payload) > largest:
        raise PayloadTooLarge("result", len(call.result.payload), largest, "max_payload_size")
    if call.reply is not None:
        check_last_reply(state, item, call.reply)
    plan = PutPlan(state, leaving=item.queue, completes=item)
    for put in call.puts:
        plan.add(put)
    if call.keep_result is not None and call.result is not None:
        kept = KeptResult(call.result.payload, call.result.content_type, item.queue, item.origin_queue)
        state.results.keep(item.ids, kept, Instant(state.now + call.keep_result))
    kind = FeedKind.DONE if item.is_dead_letter else FeedKind.COMPLETED
    settled = complete_item(state, item, Verb.COMPLETE, call.result)
    if call.result is not None and (call.keep_result is not None or settled.status is not None):
        state.wake_awaiting(item)
    plan.apply()
    append_event(state, kind, item.queue, item)
    return settled if call.reply is None else reply_or_refuse(state, item, settled, call.reply)


def complete_item(
    state: State, item: Record, verb: Verb, result: Result | None = None, *, forced: bool = False
) -> Settled:
    """Complete an item: keep it for `keep_completed`, or remove it."""
    queue = state.queues[item.queue]
    removed = queue.value.settings.keep_completed == 0
    if removed:
        state.remove(item, verb, forced=forced)
    else:
        with state.change(item, verb, Status.COMPLETED, forced=forced):
            item.completed_at = state.now
            item.result = result
    queue.completed_total += 1
    return item.to_settled(removed=removed)


def settle(state: State, call: Settle) -> Settled | StaleSettings:
    """End a delivery with an outcome other than completion. The call brings the verdict."""
    item = state.leased(call.token)
    assert item.grant is not None
    if call.outcome_kind is OutcomeKind.LOST and not call.worker_is_gone and item.grant.deadline > state.now:
        raise LeaseLost(item.id, item.status)
    queue = state.queues[item.queue]
    if call.version != queue.value.version:
        return StaleSettings(queue.value)
    check_verdict(state, item.queue, call.outcome_kind, call.verdict, was_dead=item.was_dead)
    if call.close_until is not None:
        gates = close_for_retry_after(queue.value.gates, call.close_until, item.grant.leased_at, state.now)
        queue.value = msgspec.structs.replace(queue.value, gates=gates)
    return apply_verdict(state, item, call.outcome_kind, call.verdict, failure=call.failure, note=call.note)


def return_lease(state: State, call: ReturnLease) -> Settled:
    """Return a lease whose item never ran: deliveries stays counted, attempts does not. The item, also a dead one,
    keeps its old position."""
    item = state.leased(call.token, call.queue)
    worker, was_dead = item.worker, item.was_dead
    with state.change(item, Verb.RELEASE, item.status_without_lease):
        before = item.counters
        item.counters = msgspec.structs.replace(before, attempts=max(0, before.attempts - 1))
        if call.note is not None:
            item.history.add(
                HistoryEntry(
                    state.now, HistoryEvent.RETURNED, item.queue, before.deliveries, worker=worker, note=call.note
                )
            )
    if call.note is not None:
        append_event(state, FeedKind.RETURNED, item.queue, item, title=call.note)
    return return_to_dead(state, item) if was_dead else item.to_settled()


def extend(state: State, call: Extend) -> Instant:
    """Set the deadline to now + timeout. It may be earlier than the old one."""
    item = state.leased(call.token, call.queue)
    assert item.grant is not None
    timeout = state.queues[item.queue].value.settings.lease_timeout if call.timeout is None else call.timeout
    with state.reindex(item):
        item.grant.deadline = Instant(state.now + timeout)
    return item.grant.deadline
