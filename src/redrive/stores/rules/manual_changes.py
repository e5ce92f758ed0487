"""Manual changes, which need no token; hold and unhold."""

from __future__ import annotations

from redrive.contract.admin_calls import Hold, ManualChange, ManualTarget, Unhold
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.item_calls import StaleSettings, check_times, ready_instant
from redrive.errors import InvalidInput, RedriveError
from redrive.model.feed import FeedKind
from redrive.model.holder import add_holder, remove_holder
from redrive.model.ids import ItemId
from redrive.model.item import WAITING_STATUSES, HistoryEvent, Settled, Status
from redrive.model.judge import OutcomeKind
from redrive.model.limits import check_instant
from redrive.model.manual_change import ManualAction, check_manual_change, check_verb
from redrive.model.state_machine import Verb
from redrive.stores.rules.archive import archive, drop, restore
from redrive.stores.rules.damage import check_damage
from redrive.stores.rules.leases import make_ready
from redrive.stores.rules.record import Record
from redrive.stores.rules.redrive import move, redrive, retry, undo
from redrive.stores.rules.replies import apply_verdict
from redrive.stores.rules.settle import complete_item
from redrive.stores.rules.state import State
from redrive.stores.rules.verdicts import action_entry, append_action_event, check_verdict


def change(state: State, call: ManualChange) -> tuple[Settled | StaleSettings | RedriveError, ...]:
    """Change each target independently. One audit row has the former ids of changed items, if there are any."""
    check_verb(call.verb)
    action = ManualAction(call.verb, call.actor, call.note, call.to, call.force)
    results: list[Settled | StaleSettings | RedriveError] = []
    ids: list[ItemId] = []
    queues: set[str] = set()
    for target in call.targets:
        try:
            item = state.item(target.id)
            id, queue = item.id, item.queue
            result = change_one(state, action, target, item)
        except RedriveError as refusal:
            results.append(refusal)
            continue
        results.append(result)
        if isinstance(result, Settled):
            ids.append(id)
            queues.add(queue)
    if ids:
        queue_of_all = queues.pop() if len(queues) == 1 else None
        state.write_audit(call.actor, str(call.verb), queue_of_all, tuple(ids), len(ids), call.note)
    return tuple(results)


def change_one(state: State, action: ManualAction, target: ManualTarget, item: Record) -> Settled | StaleSettings:
    """Change one item. Raises refusals; a refused change changed nothing."""
    check_damage(state.store, item, action.verb)
    snapshot = item.snapshot(with_last=action.verb is Verb.UNDO)
    check_manual_change(action.verb, snapshot, force=action.force, undoes=action.undoes)
    match action.verb:
        case Verb.FAIL | Verb.BURY:
            return _judged(state, action, target, item)
        case Verb.RETRY:
            return retry(state, action, item, snapshot)
        case Verb.REDRIVE:
            return redrive(state, action, target, item, snapshot)
        case Verb.UNDO:
            return undo(state, action, item)
        case Verb.MOVE:
            return move(state, action, item, snapshot)
        case Verb.RESCHEDULE:
            return _reschedule(state, action, target, item)
        case Verb.DONE:
            settled = complete_item(state, item, action.verb, forced=action.force)
            append_action_event(state, action, FeedKind.DONE, item.queue, item)
            return settled
        case Verb.DROP:
            return drop(state, action, item)
        case Verb.PURGE:
            state.remove(item, action.verb)
            append_action_event(state, action, FeedKind.REMOVED, item.queue, item)
            return item.to_settled(removed=True)
        case Verb.ARCHIVE:
            return archive(state, action, item)
        case Verb.RESTORE:
            return restore(state, action, item)
    raise AssertionError(action.verb)


def _judged(state: State, action: ManualAction, target: ManualTarget, item: Record) -> Settled | StaleSettings:
    queue = state.queues[item.queue].value
    if target.verdict is None:
        raise InvalidInput(f"a manual {action.verb} needs a verdict")
    if target.version != queue.version:
        return StaleSettings(queue)
    outcome_kind = OutcomeKind.FAILED if action.verb is Verb.FAIL else OutcomeKind.BURIED
    check_verdict(state, item.queue, outcome_kind, target.verdict, was_dead=item.was_dead)
    return apply_verdict(
        state,
        item,
        outcome_kind,
        target.verdict,
        failure=target.failure,
        note=action.note,
        actor=action.actor,
        operation=action.operation,
        forced=action.force,
    )


def _reschedule(state: State, action: ManualAction, target: ManualTarget, item: Record) -> Settled:
    now, held = state.now, bool(item.holders)
    at = ready_instant(now, check_times(target).delay, target.enqueue_at)
    check_instant("delay", at)
    entry = action_entry(state, action, HistoryEvent.RESCHEDULED, item)
    status = Status.PENDING if at <= now and not held else item.status
    with state.change(item, action.verb, status):
        if at > now or item.ready_at > now:
            state.to_tail(item, at - now)
        item.history.add(entry)
    return item.to_settled()


def hold(state: State, call: Hold) -> int | StaleSettings:
    """Hold items and return how many. Items with this holder, or with too many, do not count."""
    if call.queue_version is not None:
        name, version = call.queue_version
        queue = state.queue(name).value
        if queue.version != version:
            return StaleSettings(queue)
    count = 0
    for id in call.ids:
        item = state.find(id)
        if item is None or item.status not in WAITING_STATUSES or item.damage is not None:
            continue
        holders = add_holder(item.holders, call.held_by, is_lasting=call.lasting)
        if holders != item.holders:
            with state.reindex(item):
                item.holders = holders
            count += 1
    return count


def unhold(state: State, call: Unhold) -> int:
    """Remove a holder from items and return how many. An item without holders that is due is ready at its position."""
    ids = call.ids
    if ids is None:
        ids = tuple(state.held_ids(call.held_by, MAINTENANCE_BATCH))
    count = 0
    for id in ids:
        item = state.find(id)
        holders = () if item is None else remove_holder(item.holders, call.held_by)
        if item is None or not item.is_found_by_holder or holders == item.holders or item.damage is not None:
            continue
        with state.reindex(item):
            item.holders = holders
        if not holders and item.status is Status.FAILED and item.ready_at <= state.now:
            make_ready(state, item)
        count += 1
    return count
