"""Leases: promotion of due items, leases of ready items and of items by id."""

from __future__ import annotations

import secrets

import msgspec

from redrive.clock import Instant
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.item_calls import LeaseByIds, Leased, LeaseItems, check_lease_by_id
from redrive.errors import RedriveError
from redrive.model.feed import FeedKind
from redrive.model.gate import count_leases, counts_leases, lease_limit, opens_at
from redrive.model.ids import KEY_BITS, make_token, parse_id
from redrive.model.item import Counters, Lease, Status
from redrive.model.state_machine import Verb
from redrive.stores.rules.damage import check_damage
from redrive.stores.rules.feed import append_event
from redrive.stores.rules.queue_state import QueueState
from redrive.stores.rules.record import LeaseState, Record
from redrive.stores.rules.redrive import check_idempotency_owner
from redrive.stores.rules.state import State


def lease_items(state: State, call: LeaseItems) -> Leased:
    """Lease ready items. A queue that is paused or whose gates are closed gives nothing and expects nothing."""
    queue = state.queue(call.queue)
    if queue.value.paused:
        return Leased(())
    limit = lease_limit(queue.value.gates, state.now, call.limit)
    if not limit:
        return Leased((), next_at=opens_at(queue.value.gates, state.now))
    promote_due(state, queue, MAINTENANCE_BATCH)
    if not call.ignore_overdue and queue.overdue(state.now):
        return Leased((), overdue=True)
    timeout = queue.value.settings.lease_timeout if call.timeout is None else call.timeout
    leases: list[Lease] = []
    while len(leases) < limit and (id := queue.ready.first()) is not None:
        item = state.items[id]
        if item.expired(state.now) or item.has_unknown_status:
            # It is damaged, or will only be expired. Remove it, so that later leases do not skip it each time.
            queue.ready.discard(id)
            continue
        leases.append(_lease(state, queue, item, call.worker, timeout))
    return Leased(leases, next_at=None if leases else queue.next_at)


def lease_by_ids(state: State, call: LeaseByIds) -> tuple[Lease | RedriveError, ...]:
    """Lease or refuse each id separately."""
    results: list[Lease | RedriveError] = []
    for id in call.ids:
        try:
            results.append(_lease_by_id(state, call, state.item(id)))
        except RedriveError as refusal:
            results.append(refusal)
    return tuple(results)


def _lease_by_id(state: State, call: LeaseByIds, item: Record) -> Lease:
    check_damage(state.store, item)
    queue = state.queues[item.queue]
    check_lease_by_id(
        call, queue.value, item.id, item.status, item.worker, item.holders, item.expired(state.now), state.now
    )
    if item.status is Status.DEAD:
        check_idempotency_owner(state, item, queue)
    timeout = queue.value.settings.lease_timeout if call.timeout is None else call.timeout
    return _lease(state, queue, item, call.worker, timeout)


def promote_due(state: State, queue: QueueState, limit: int) -> int:
    """Make at most `limit` due items of a queue ready. Returns how many."""
    due = queue.waiting.until(state.now, limit)
    for id in due:
        make_ready(state, state.items[id])
    return len(due)


def make_ready(state: State, item: Record) -> None:
    """Move a due item to the ready index. A failed item is pending again."""
    if item.status is Status.FAILED:
        with state.change(item, Verb.PROMOTE, Status.PENDING):
            pass
    else:
        with state.reindex(item):
            pass


def _lease(state: State, queue: QueueState, item: Record, worker: str | None, timeout: int) -> Lease:
    number, tail = parse_id(item.id)
    before, dead_reason = item.counters, item.deaths[-1].reason if item.status is Status.DEAD else None
    with state.change(item, Verb.LEASE, Status.ACTIVE):
        item.counters = Counters(
            before.deliveries + 1, before.attempts + 1, before.failures, before.losses, before.redrives
        )
        token = make_token(number, tail, secrets.randbits(KEY_BITS))
        item.grant = LeaseState(token, worker, state.now, Instant(state.now + timeout), dead_reason)
        if item.first_leased_at is None:
            item.first_leased_at = state.now
    if counts_leases(queue.value.gates):
        queue.value = msgspec.structs.replace(queue.value, gates=count_leases(queue.value.gates, (item.id,)))
    append_event(state, FeedKind.LEASED, item.queue, item)
    return item.to_lease()
