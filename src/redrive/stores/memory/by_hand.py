"""Changes by hand, without a token: retry, redrive, done, drop, archive, restore, fail, bury; hold and unhold."""

from __future__ import annotations

from itertools import islice

from redrive.clock import Instant
from redrive.errors import InvalidInput, QueueFull, RedriveError
from redrive.model.by_hand import check_change, check_verb, redrive_queue, stays_dead_letter
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Event, HistoryEntry, Settled, Status
from redrive.model.judge import Ending
from redrive.model.transitions import Verb
from redrive.store import STEP_LIMIT, Change, Hold, Stale, Target, Unhold
from redrive.stores.memory.leases import make_ready
from redrive.stores.memory.record import WORK, Record
from redrive.stores.memory.settles import finish
from redrive.stores.memory.state import State
from redrive.stores.memory.verdicts import carry_out, check_verdict


def change(state: State, call: Change) -> tuple[Settled | Stale | RedriveError, ...]:
    """Each target stands for itself. The audit names the ids that items had before, and nothing if none changed."""
    check_verb(call.verb)
    results: list[Settled | Stale | RedriveError] = []
    ids: list[ItemId] = []
    queues: set[str] = set()
    for target in call.targets:
        try:
            item = state.item(target.id)
            check_change(call.verb, item.standing, force=call.force)
            id, queue = item.id, item.queue
            result = _change(state, call, target, item)
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


def _change(state: State, call: Change, target: Target, item: Record) -> Settled | Stale:
    match call.verb:
        case Verb.FAIL | Verb.BURY:
            return _judged(state, call, target, item)
        case Verb.RETRY:
            return _again(state, call, item, item.queue)
        case Verb.REDRIVE:
            return _again(state, call, item, state.queue(redrive_queue(item.deaths[-1].queue, call.to)).name)
        case Verb.DONE:
            return finish(state, item, call.verb, forced=call.force)
        case Verb.DROP:
            state.remove(item, call.verb, forced=call.force)
            return item.to_settled(removed=True)
        case Verb.ARCHIVE:
            return _archive(state, call, item)
        case Verb.RESTORE:
            return _restore(state, item)
    raise AssertionError(call.verb)


def _judged(state: State, call: Change, target: Target, item: Record) -> Settled | Stale:
    queue = state.queues[item.queue].value
    if target.verdict is None:
        raise InvalidInput(f"{call.verb} by hand needs a verdict")
    if target.version != queue.version:
        return Stale(queue)
    ending = Ending.FAILED if call.verb is Verb.FAIL else Ending.BURIED
    check_verdict(state, item.queue, ending, target.verdict)
    return carry_out(
        state,
        item,
        ending,
        target.verdict,
        failure=target.failure,
        note=call.note,
        actor=call.actor,
        forced=call.force,
    )


def _again(state: State, call: Change, item: Record, to: str) -> Settled:
    """Back to work with fresh counters, held by nobody: in place, or in another queue under a new id."""
    before, moved = item.counters, to != item.queue
    still_dead_letter = stays_dead_letter(call.verb, item.standing)
    entry = HistoryEntry(state.now, Event.REDRIVEN, item.queue, before.deliveries, actor=call.actor, note=call.note)
    with state.change(item, call.verb, Status.PENDING, forced=call.force):
        item.counters = Counters(deliveries=before.deliveries, redrives=before.redrives + 1)
        item.history.add(entry)
        item.held_by = None
        item.came_by_death = still_dead_letter
        if moved:
            state.move(item, to)
        else:
            state.to_tail(item)
        item.expire_deadline = _expire_deadline(state, item)
    return item.to_settled(moved=moved)


def _expire_deadline(state: State, item: Record) -> Instant | None:
    """Set anew. What still lies in a dead queue does not expire."""
    own, general = item.expire_timeout, state.queues[item.queue].value.settings.expire_timeout
    timeout = general if own is None else own
    return None if timeout is None or item.came_by_death else Instant(state.now + timeout)


def _archive(state: State, call: Change, item: Record) -> Settled:
    before = Status.PENDING if item.status is Status.ACTIVE else item.status
    with state.change(item, call.verb, Status.ARCHIVED, forced=call.force):
        item.archived_from = before
    return item.to_settled(reason=item.deaths[-1].reason)


def _restore(state: State, item: Record) -> Settled:
    """To the place it had. Only a status that max_size counts needs room."""
    assert item.archived_from is not None
    queue = state.queues[item.queue]
    max_size = queue.value.settings.max_size
    if item.archived_from in WORK and max_size is not None and queue.size >= max_size:
        raise QueueFull(queue.name, queue.size, max_size)
    with state.change(item, Verb.RESTORE, item.archived_from):
        item.archived_from = None
    return item.to_settled(reason=item.deaths[-1].reason if item.status is Status.DEAD else None)


def hold(state: State, call: Hold) -> int:
    """An item that is held already stays with who holds it, and does not count."""
    count = 0
    for id in call.ids:
        item = state.find(id)
        if item is not None and item.status in WORK and item.held_by is None:
            with state.refile(item):
                item.held_by = call.held_by
            count += 1
    return count


def unhold(state: State, call: Unhold) -> int:
    """What is due is ready at once, in its place."""
    ids = call.ids
    if ids is None:
        ids = tuple(islice(state.held.get(call.held_by, ()), STEP_LIMIT))
    count = 0
    for id in ids:
        item = state.find(id)
        if item is None or item.status not in WORK or item.held_by != call.held_by:
            continue
        with state.refile(item):
            item.held_by = None
        if item.status is Status.FAILED and item.ready_at <= state.now:
            make_ready(state, item)
        count += 1
    return count
