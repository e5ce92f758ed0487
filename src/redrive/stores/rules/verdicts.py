"""Application of verdicts and manual changes to an item, its history, deaths and feed. The store never judges."""

from __future__ import annotations

from redrive.contract.base import DROP_ACTOR
from redrive.model import judge
from redrive.model.arrival import MoveRoute
from redrive.model.death import EXHAUSTED_REASONS, cause_of
from redrive.model.delivery_end import DELIVERY_ENDS, FEED_KIND_BY_EVENT
from redrive.model.failure import Failure
from redrive.model.feed import FeedKind
from redrive.model.holder import add_lasting, lasting_holders
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Death, HistoryEntry, HistoryEvent, Settled, Status
from redrive.model.judge import Dead, OutcomeKind, Verdict, count_outcome
from redrive.model.limits import is_remote
from redrive.model.manual_change import ManualAction
from redrive.model.state_machine import Verb
from redrive.stores.rules.feed import append_event
from redrive.stores.rules.record import Record
from redrive.stores.rules.state import State
from redrive.telemetry import events

_log = events.logger("redrive.store")


def check_verdict(
    state: State, queue: str, outcome_kind: OutcomeKind, verdict: Verdict, *, was_dead: bool = False
) -> None:
    """Raise unless the verdict is applicable to an item of that queue whose delivery has this outcome."""
    judge.check_verdict(queue, outcome_kind, verdict, was_dead=was_dead)
    if isinstance(verdict, Dead) and verdict.to is not None and not is_remote(verdict.to) and not was_dead:
        state.queue(verdict.to)


def apply_verdict(
    state: State,
    item: Record,
    outcome_kind: OutcomeKind,
    verdict: Verdict,
    *,
    failure: Failure | None = None,
    worker: str | None = None,
    note: str | None = None,
    actor: str | None = None,
    operation: str | None = None,
    forced: bool = False,
) -> Settled:
    """Count the outcome, record it, and apply a verdict that was checked before.

    An item that was leased although it is dead is dead again, regardless of the verdict. `worker` names the worker if
    it held no lease.
    """
    entry = HistoryEntry(
        at=state.now,
        event=DELIVERY_ENDS[outcome_kind].event,
        queue=item.queue,
        delivery=item.counters.deliveries,
        failure=failure,
        worker=item.worker if worker is None else worker,
        actor=actor,
        note=note,
        operation=operation,
    )
    queue = state.queues[item.queue]
    counters = count_outcome(item.counters, outcome_kind)
    if item.was_dead:
        settled = _die_again(state, item, outcome_kind, counters, entry, forced)
    elif isinstance(verdict, Dead):
        settled = _apply_death(state, item, outcome_kind, counters, verdict, entry, forced)
        queue.dead_total += 1
        queue.exhausted_total += verdict.reason in EXHAUSTED_REASONS
    else:
        with state.change(item, DELIVERY_ENDS[outcome_kind].verb, verdict.status, forced=forced):
            item.counters = counters
            item.history.add(entry)
            item.holders = add_lasting(item.holders, verdict.held_by)
            state.to_tail(item, verdict.delay)
        settled = item.to_settled()
        _append_ending(state, item, entry)
    queue.failed_total += outcome_kind.is_failure
    return settled


def return_to_dead(state: State, item: Record) -> Settled:
    """Return the result of a delivery of a dead item, which is dead again, and wake callers that await it."""
    state.wake_awaiting(item)
    return item.to_settled(reason=item.deaths[-1].reason)


def _die_again(
    state: State, item: Record, outcome_kind: OutcomeKind, counters: Counters, entry: HistoryEntry, forced: bool
) -> Settled:
    """Make the item dead again, with the same death and position and no second answer; count the delivery."""
    with state.change(item, DELIVERY_ENDS[outcome_kind].verb, Status.DEAD, forced=forced):
        item.counters = counters
        item.history.add(entry)
    _append_ending(state, item, entry)
    return return_to_dead(state, item)


def _append_ending(state: State, item: Record, entry: HistoryEntry) -> None:
    """Record the end of a delivery that caused no death in the feed."""
    kind = FEED_KIND_BY_EVENT.get(entry.event)
    if kind is None:
        return
    title = entry.note if entry.failure is None else entry.failure.title
    append_event(
        state, kind, item.queue, item, title=title, actor=entry.actor, operation=entry.operation, failure=entry.failure
    )


def _apply_death(
    state: State,
    item: Record,
    outcome_kind: OutcomeKind,
    counters: Counters,
    verdict: Dead,
    entry: HistoryEntry,
    forced: bool,
) -> Settled:
    verb = DELIVERY_ENDS[outcome_kind].verb
    death = Death(
        at=state.now,
        reason=verdict.reason,
        queue=item.queue,
        namespace=state.namespace,
        store=state.store,
        id=item.id,
        counters=counters,
        cause=cause_of(verdict.reason, entry.failure, entry.note),
        first_leased_at=item.first_leased_at,
    )
    state.wake_awaiting(item)
    left = item.queue
    elsewhere = verdict.to is not None and is_remote(verdict.to)
    if elsewhere:
        assert verdict.to is not None
        with state.change(item, verb, Status.MOVING, forced=forced):
            item.history.add(entry)
            item.deaths.append(death)
            item.is_in_dead_queue, item.holders = True, ()
            item.route = MoveRoute(verdict.to, state.now, FeedKind.DEAD, Status.PENDING)
            mark_dead(state, item)
            item.counters = Counters(deliveries=counters.deliveries, redrives=counters.redrives)
            item.expire_deadline = None
    elif verdict.to is not None:
        state.queues[verdict.to].mark_dead_queue()
        with state.change(item, verb, Status.PENDING, forced=forced):
            item.history.add(entry)
            item.deaths.append(death)
            state.move(item, verdict.to)
            item.ready_at, item.holders = state.now, lasting_holders(item.holders)
            item.is_in_dead_queue, item.home_store = True, None
            mark_dead(state, item)
            item.counters = Counters(deliveries=counters.deliveries, redrives=counters.redrives)
            item.expire_deadline = None
    elif verdict.drops:
        state.remove(item, verb, forced=forced)
        item.counters = counters
        state.write_audit(DROP_ACTOR, str(Verb.DROP), item.queue, (item.id,), 1, str(verdict.reason))
        _log.warning("item_dropped", item=item.id, queue=item.queue, reason=verdict.reason)
    else:
        with state.change(item, verb, Status.DEAD, forced=forced):
            item.is_in_dead_queue = False
            item.counters = counters
            item.history.add(entry)
            item.deaths.append(death)
            mark_dead(state, item)
    moved = verdict.to is not None and not elsewhere
    append_event(
        state,
        FeedKind.DEAD,
        left,
        item,
        source_id=item.source_id if moved else None,
        title=death.cause.title,
        reason=verdict.reason,
        actor=entry.actor,
        operation=entry.operation,
        failure=entry.failure,
    )
    return item.to_settled(removed=verdict.drops, moved=moved, reason=verdict.reason)


def mark_dead(state: State, item: Record) -> None:
    """Make the item the last dead letter, and index its words if its queue has search. Call it within a change."""
    item.death_number = state.draw_number()
    item.words = frozenset()
    if state.queues[item.queue].value.settings.search:
        state.index_words(item)


def action_entry(
    state: State, action: ManualAction, event: HistoryEvent, item: Record, *, to: str | None = None
) -> HistoryEntry:
    """Return the history entry of a manual change, before the item is changed. `to` is a target in another store."""
    before = item.status_without_lease
    return action.history_entry(state.now, event, item.queue, item.counters.deliveries, before, to=to)


def append_action_event(
    state: State, action: ManualAction, kind: FeedKind, queue: str, item: Record, source_id: ItemId | None = None
) -> None:
    """Record a manual change in the feed of the queue in which it happened."""
    append_event(state, kind, queue, item, source_id=source_id, actor=action.actor, operation=action.operation)
