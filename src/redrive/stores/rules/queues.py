"""Queues: create, update, pause, breakers, delete."""

from __future__ import annotations

import msgspec

from redrive.contract.admin_calls import CreateQueue, DeleteQueue, SetBreakers, SetPaused, SetSourceQueue, UpdateQueue
from redrive.contract.item_calls import StaleSettings
from redrive.errors import ConfirmationMismatch, ItemActive, QueueExists, QueueInUse
from redrive.model.breaker import breaker_changes, change_record
from redrive.model.dead_queue import (
    check_dead_queues,
    check_source_queue,
    local_dead_queues,
    source_queues_after,
    source_queues_of,
)
from redrive.model.gate import BREAKER_GATE, gate_named, lease_limit, set_gate
from redrive.model.queue import Queue, QueueSettings
from redrive.stores.rules.feed import append_queue_event
from redrive.stores.rules.queue_state import QueueState
from redrive.stores.rules.state import State


def create_queue(state: State, call: CreateQueue) -> Queue:
    """Create a queue. If it exists with the same settings, return it."""
    there = state.queues.get(call.name)
    if there is not None:
        if there.value.settings != call.settings:
            raise QueueExists(call.name)
        return there.value
    check_dead_queues(call.name, call.settings, state.settings())
    queue = QueueState(
        Queue(call.name, call.settings, state.next_version(), paused=False, created_at=state.now, is_dead_queue=False)
    )
    state.queues[call.name] = queue
    _mark_dead_queues(state, call.settings)
    return queue.value


def update_queue(state: State, call: UpdateQueue) -> Queue | StaleSettings:
    """Replace the settings. Every update makes a new version, even without a change."""
    queue = state.queue(call.name)
    if call.version != queue.value.version:
        return StaleSettings(queue.value)
    check_dead_queues(call.name, call.settings, state.settings(), queue.value.source_queues)
    queue.value = msgspec.structs.replace(queue.value, settings=call.settings, version=state.next_version())
    _mark_dead_queues(state, call.settings)
    state.write_audit(call.actor, "update_queue", call.name, (), 0)
    return queue.value


def set_paused(state: State, call: SetPaused) -> Queue:
    """Pause or resume a queue. The version stays: no verdict depends on it. Ready items of a resumed queue are
    arrivals."""
    queue = state.queue(call.name)
    if call.paused != queue.value.paused:
        queue.value = msgspec.structs.replace(queue.value, paused=call.paused)
        if not call.paused:
            state.arrivals[call.name] += queue.count_ready()
            state.retimed.add(call.name)  # callers that waited on the paused queue know no next time
        state.write_audit(call.actor, "pause_queue" if call.paused else "resume_queue", call.name, (), 0)
    return queue.value


def set_breakers(state: State, call: SetBreakers) -> Queue | StaleSettings:
    """Set the breakers. Every change makes a new version: verdicts depend on which breakers are open."""
    queue = state.queue(call.name)
    before = queue.value
    if call.version != before.version or call.former_gate != gate_named(before.gates, BREAKER_GATE):
        return StaleSettings(before)
    gates = set_gate(before.gates, BREAKER_GATE, call.gate)
    queue.value = msgspec.structs.replace(before, breakers=call.breakers, gates=gates, version=state.next_version())
    if call.gate != call.former_gate:
        state.arrivals[call.name] += lease_limit(gates, state.now, queue.count_ready())
        state.retimed.add(call.name)
    for opened, breaker in breaker_changes(before.breakers, call.breakers):
        kind, verb, why = change_record(opened, breaker, call.note)
        append_queue_event(state, kind, call.name, title=why, actor=call.actor, breaker=breaker.kind)
        state.write_audit(call.actor, verb, call.name, (), 0, f"{breaker.kind}: {why}")
    return queue.value


def set_source_queue(state: State, call: SetSourceQueue) -> Queue:
    """Record whether a queue of another store uses this one as its dead queue."""
    queue = state.queue(call.name)
    if call.used:
        check_source_queue(call.name, queue.value.settings)
        queue.mark_dead_queue()
    source_queues = source_queues_after(queue.value.source_queues, call.user, used=call.used)
    if source_queues != queue.value.source_queues:
        queue.value = msgspec.structs.replace(queue.value, source_queues=source_queues)
    return queue.value


def delete_queue(state: State, call: DeleteQueue) -> int:
    """Delete a queue with its idempotency keys and source ids."""
    queue = state.queue(call.name)
    if users := (*source_queues_of(call.name, state.settings()), *queue.value.source_queues):
        raise QueueInUse(call.name, users)
    count = queue.counts.total()
    if (call.confirm or 0) != count:
        raise ConfirmationMismatch(f"deleting queue '{call.name}'", call.confirm, count)
    if active := queue.leases.first():
        raise ItemActive(active, state.items[active].worker)
    state.remove_all(call.name)
    state.forget_open_moves(call.name)
    del state.queues[call.name]
    state.write_audit(call.actor, "delete_queue", call.name, (), count)
    return count


def _mark_dead_queues(state: State, settings: QueueSettings) -> None:
    for name in local_dead_queues(settings):
        state.queues[name].mark_dead_queue()
