"""Operations: flows to start, plan, inspect, control and run changes of many items."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from redrive.broker.flow import Flow, commit_call, run_query, wait_until
from redrive.broker.flows.canaries import watch
from redrive.broker.flows.inspection import build_filter, count_all, parse_choice
from redrive.broker.flows.moves import target_of
from redrive.broker.flows.registrations import workers
from redrive.broker.flows.stale_settings import judge_until_current
from redrive.broker.redaction import redaction_for, rules_of
from redrive.broker.validation import check_integer, check_note, check_progress
from redrive.clock import Instant
from redrive.contract.admin_calls import SetOperation, StartOperation, StepOperation
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.queries import (
    FindPlanSubjects,
    GetIdempotencyOwners,
    GetOperation,
    GetStats,
    ListOperations,
    ListQueues,
    PlanPage,
)
from redrive.errors import ConfirmationMismatch, InvalidInput, short_repr
from redrive.model.caller_input import checking_input, exact_str, flag
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND, DurationInput, parse_duration
from redrive.model.filter import Filter
from redrive.model.ids import MAX_NUMBER
from redrive.model.item import Status
from redrive.model.judge import Verdict, dead_verdict
from redrive.model.limits import MAX_BATCH, MAX_COUNT, check_label, is_remote
from redrive.model.operation import BULK_VERBS, Operation, OperationStatus
from redrive.model.operation_plan import OperationPlan, OperationPlanner
from redrive.model.options import MAX_CANARIES, MAX_RATE, Conditions, OperationOptions, PlanOptions
from redrive.model.queue import Queue, QueueStats
from redrive.model.state_machine import REVIVING_VERBS, VERBS_WITH_TARGET, Verb
from redrive.model.worker_info import handlers_by_queue

if TYPE_CHECKING:
    from redrive.broker.core import Core

BATCH_SIZE = 250
"""Items of one step. With more, an operation is slightly faster, and a concurrent put waits longer."""
STEPS_PER_SECOND = 10
"""Approximate number of steps per second of an operation with a rate."""
LONGEST_WAIT = SECOND
"""Maximum time between two reads of an operation, which notice a pause or another rate."""
_MOVING = frozenset({Verb.REDRIVE, Verb.MOVE, Verb.BURY})
"""Verbs after which items may be moving to another store."""
_TO_WORK = frozenset({Verb.REDRIVE, Verb.RETRY, Verb.MOVE})
"""Verbs after which workers get the items."""
_OF_START = OperationOptions.__annotations__.keys() - PlanOptions.__annotations__.keys()
# The status that conditions without one select.
_STATUS = {
    Verb.REDRIVE: Status.DEAD,
    Verb.RETRY: Status.DEAD,
    Verb.ARCHIVE: Status.DEAD,
    Verb.RESTORE: Status.ARCHIVED,
    Verb.PURGE: Status.ARCHIVED,
    Verb.UNDO: Status.PENDING,
    Verb.BURY: Status.PENDING,
    Verb.MOVE: Status.PENDING,
}
REVERSE = {
    Verb.REDRIVE: (Verb.UNDO, Status.PENDING),
    Verb.RETRY: (Verb.UNDO, Status.PENDING),
    Verb.ARCHIVE: (Verb.RESTORE, Status.ARCHIVED),
    Verb.RESTORE: (Verb.ARCHIVE, None),
    Verb.BURY: (Verb.REDRIVE, Status.DEAD),
}
"""Verbs that can be undone, with the verb that does it and the status in which it finds the items."""

Progress = Callable[[Operation], object]


def start_operation(
    core: Core,
    verb: str,
    where: Filter | None,
    *,
    to: str | None = None,
    limit: int | None = None,
    rate: float | None = None,
    canary: int = 0,
    canary_success_ratio: float = 1.0,
    confirm: int | None = None,
    note: str | None = None,
    actor: str | None = None,
    paused: bool = False,
    **conditions: Unpack[Conditions],
) -> Flow[Operation]:
    """Count the items that match, and start the operation, which the maintenance then runs."""
    wanted, filter, target = yield from _meant(core, verb, where, conditions, to)
    call = StartOperation(
        verb=wanted,
        where=filter,
        actor=core.actor(actor),
        to=target,
        note=check_note("note", note),
        limit=limit,
        rate=rate,
        canary=canary,
        canary_success_ratio=canary_success_ratio,
        paused=flag("paused", paused),
    )
    check_start(call)
    if confirm is not None:
        if wanted is not Verb.PURGE:
            raise InvalidInput(f"confirm is for purge, which cannot be undone; leave it out of {wanted}")
        check_integer("confirm", confirm, 0, MAX_NUMBER)
    matched = yield from count_all(filter)
    expected = matched if limit is None else min(matched, limit)
    if wanted is Verb.PURGE and confirm != expected:
        raise ConfirmationMismatch("this purge", confirm, expected)
    speed = None if rate is None else float(rate)
    ratio = float(canary_success_ratio)
    call = msgspec.structs.replace(call, expected=expected, rate=speed, canary_success_ratio=ratio)
    return (yield from _started(core, call))


def undo_operation(core: Core, id: str, actor: str | None) -> Flow[Operation]:
    """Start the operation that reverses another one, for the items that it changed."""
    done: Operation = yield from run_query(GetOperation(_checked(id)))
    if done.to is not None and is_remote(done.to):
        raise InvalidInput(f"operation {id} took items to {done.to}, and nothing can be undone in another store")
    if done.verb not in REVERSE:
        raise InvalidInput(f"{done.verb} cannot be undone; {', '.join(sorted(REVERSE))} can")
    if not done.ended:
        raise InvalidInput(f"operation {id} is {done.status}; cancel it first, then undo what it did")
    verb, status = REVERSE[done.verb]
    filter = Filter(status=status, operation=done.id)
    expected = yield from count_all(filter)
    note = f"undoes operation {done.id}"
    call = StartOperation(verb=verb, where=filter, actor=core.actor(actor), note=note, expected=expected)
    return (yield from _started(core, call))


def plan_operation(
    core: Core,
    verb: str,
    where: Filter | None,
    *,
    to: str | None = None,
    limit: int | None = None,
    **conditions: Unpack[Conditions],
) -> Flow[OperationPlan]:
    """Read every item that matches, and return the outcome that the operation would have for it."""
    check_limit(limit)
    if options := _OF_START.intersection(conditions):
        raise InvalidInput(f"{' and '.join(sorted(options))} can only be given to start; leave it out of the plan")
    wanted, filter, target = yield from _meant(core, verb, where, conditions, to)
    queues: tuple[Queue, ...] = yield from run_query(ListQueues())
    sizes = yield from _sizes(queues)
    by_name = {queue.name: queue for queue in queues}
    handlers = handlers_by_queue((yield from workers())) if wanted in _TO_WORK else {}
    planning = OperationPlanner(
        wanted, target, by_name, sizes, core.store.namespace, filter.operation, core.store.name, handlers, limit
    )
    cursor = None
    while True:
        page: PlanPage = yield from run_query(FindPlanSubjects(filter, planning.needs_last_entries, MAX_BATCH, cursor))
        for queue, keys in planning.keys_to_know(page.items).items():
            planning.know(queue, (yield from run_query(GetIdempotencyOwners(queue, tuple(keys)))))
        for item in page.items:
            planning.add(item)
        cursor = page.cursor
        if cursor is None:
            return core.redaction.knowing(rules_of(queues)).plan(planning.result())


def get(core: Core, id: str) -> Flow[Operation]:
    """Read an operation."""
    operation: Operation = yield from run_query(GetOperation(_checked(id)))
    return (yield from _shown(core, operation))


def list_all(core: Core, unfinished: bool, limit: int) -> Flow[tuple[Operation, ...]]:
    """Read operations, newest first."""
    check_integer("limit", limit, 1, MAX_BATCH)
    found = yield from run_query(ListOperations(flag("unfinished", unfinished), limit))
    view = yield from redaction_for(core, (each.where.queue for each in found if each.note or each.problem))
    return tuple(map(view.operation, found))


def pause(core: Core, id: str, actor: str | None) -> Flow[Operation]:
    """Pause an operation: no more steps until it is resumed."""
    return (yield from _set(core, SetOperation(_checked(id), core.actor(actor), OperationStatus.PAUSED)))


def resume(core: Core, id: str, skip_canaries: bool, actor: str | None) -> Flow[Operation]:
    """Resume an operation where it was paused. It waits for its canaries again, unless these are skipped."""
    id, regardless = _checked(id), flag("skip_canaries", skip_canaries)
    operation: Operation = yield from run_query(GetOperation(id))
    go_on = SetOperation(id, core.actor(actor), OperationStatus.RUNNING)
    if operation.status not in (OperationStatus.RUNNING, OperationStatus.WATCHING):
        operation = yield from _set(core, go_on)
    if operation.status is OperationStatus.WATCHING and regardless:
        return (yield from _set(core, msgspec.structs.replace(go_on, steps=operation.steps)))
    return (yield from _shown(core, operation))


def cancel(core: Core, id: str, actor: str | None) -> Flow[Operation]:
    """Cancel an operation: no more steps. Items that it has changed stay changed."""
    return (yield from _set(core, SetOperation(_checked(id), core.actor(actor), OperationStatus.CANCELLED)))


def set_operation_rate(core: Core, id: str, rate: float, actor: str | None) -> Flow[Operation]:
    """Set the maximum rate of an operation, in items per second."""
    check_rate(rate)
    if rate is None:
        raise InvalidInput(f"a rate is a number of items per second; {MAX_RATE:,} is as good as none")
    return (yield from _set(core, SetOperation(_checked(id), core.actor(actor), rate=float(rate))))


def run_operation(
    core: Core, id: str, wait: DurationInput | None, progress: Progress | None, at_once: int = BATCH_SIZE
) -> Flow[Operation]:
    """Run the steps of an operation here, until it has ended, is paused, or waits for canaries beyond `wait`."""
    id = _checked(id)
    check_integer("at_once", at_once, 1, MAINTENANCE_BATCH)
    check_progress(progress)
    end = None if wait is None else Instant(core.clock.now() + parse_duration(wait, "wait"))
    while True:
        operation: Operation = yield from run_query(GetOperation(id))
        if operation.status is OperationStatus.WATCHING:
            operation = yield from watch(operation)
        now = core.clock.now()
        watching = operation.status is OperationStatus.WATCHING and end is not None
        if not (watching or operation.status is OperationStatus.RUNNING) or (end is not None and now >= end):
            return (yield from _shown(core, operation))
        if watching or operation.next_at > now:
            longest = Instant(now + LONGEST_WAIT)
            until = longest if watching else min(operation.next_at, longest)
            yield from wait_until(core, until if end is None else min(until, end))
            continue
        operation = yield from step(core, operation, at_once)
        if progress is not None:
            progress((yield from _shown(core, operation)))


def step(core: Core, operation: Operation, limit: int = BATCH_SIZE) -> Flow[Operation]:
    """Make one step of at most `limit` items. Does nothing if another process made it concurrently."""
    if operation.rate is not None:
        limit = max(1, min(limit, int(operation.rate / STEPS_PER_SECOND)))

    def step_once() -> Flow[Any]:
        verdicts = (yield from _verdicts(core, operation)) if operation.verb is Verb.BURY else {}
        return (yield from commit_call(StepOperation(operation.id, operation.steps, limit, verdicts)))

    stepped: Operation = yield from judge_until_current(core, step_once)
    if core.meter is not None:
        core.meter.operated(operation, stepped)
    if stepped.verb in _MOVING:
        core.wake_movers()
    return stepped


def _shown(core: Core, operation: Operation) -> Flow[Operation]:
    named = operation.note or operation.problem
    return (yield from redaction_for(core, (operation.where.queue,) if named else ())).operation(operation)


def _started(core: Core, call: StartOperation) -> Flow[Operation]:
    operation: Operation = yield from commit_call(call)
    core.wake_maintenance()
    return (yield from _shown(core, operation))


def _set(core: Core, call: SetOperation) -> Flow[Operation]:
    operation: Operation = yield from commit_call(call)
    core.wake_maintenance()
    return (yield from _shown(core, operation))


def _meant(
    core: Core, verb: str, where: Filter | None, conditions: Mapping[str, Any], to: str | None
) -> Flow[tuple[Verb, Filter, str | None]]:
    """Return the verb, the filter and the target queue, checked."""
    with checking_input("verb"):
        known = isinstance(verb, str) and exact_str(verb) in tuple(BULK_VERBS)
    if not known:
        raise InvalidInput(f"an operation can be one of {', '.join(sorted(BULK_VERBS))}, not {short_repr(verb, 40)}")
    wanted = parse_choice("verb", Verb, verb)
    check_target(wanted, to)
    target = None if to is None else (yield from target_of(core, to))
    return wanted, build_filter(where, conditions, core.clock.now(), _STATUS[wanted]), target


def _sizes(queues: tuple[Queue, ...]) -> Flow[dict[str, int]]:
    """Return the number of items in each queue that has a max_size."""
    sizes: dict[str, int] = {}
    for queue in queues:
        if queue.settings.max_size is not None:
            stats: QueueStats = yield from run_query(GetStats(queue.name))
            sizes[queue.name] = stats.pending + stats.failed + stats.active
    return sizes


def _verdicts(core: Core, operation: Operation) -> Flow[Mapping[str, tuple[Verdict, int]]]:
    """Return the verdict on buried items and the version of the settings, for each queue that the filter may match."""
    queues: tuple[Queue, ...] = yield from run_query(ListQueues())
    only = operation.where.queue
    return {
        queue.name: (dead_verdict(queue.settings, DeadReason.BURIED), queue.version)
        for queue in map(core.cache_queue, queues)
        if only is None or queue.name == only
    }


def check_target(verb: Verb, to: str | None) -> None:
    """Raise if a target queue is named for a verb that takes none, or missing for a move."""
    if to is not None and verb not in VERBS_WITH_TARGET:
        raise InvalidInput(f"{verb} takes items to no queue that one could name; leave `to` out")
    if to is None and verb is Verb.MOVE:
        raise InvalidInput("a move needs the queue that items go to: to='…'")


def check_start(call: StartOperation) -> None:
    """Raise unless the options of an operation fit its verb and each other."""
    check_limit(call.limit)
    check_rate(call.rate)
    check_canary(call.verb, call.canary, call.canary_success_ratio)
    if call.limit is not None and call.limit <= call.canary:
        raise InvalidInput(
            f"{call.canary} canaries and a limit of {call.limit:,} leave no rest to wait; leave canary out"
        )
    if call.canary and call.to is not None and is_remote(call.to):
        raise InvalidInput(f"how canaries end in {call.to} is not seen from here; leave canary out")
    if call.verb is Verb.PURGE and call.where.status is not Status.ARCHIVED:
        raise InvalidInput("purge is for archived items: archive them first, and leave the status out")


def check_limit(limit: object) -> None:
    """Raise unless it is a number of items, or None."""
    if limit is not None:
        check_integer("limit", limit, 1, MAX_COUNT)


def check_rate(rate: object) -> None:
    """Raise unless it is a number of items per second, or None."""
    if rate is None:
        return
    with checking_input("rate"):
        number = isinstance(rate, int | float) and not isinstance(rate, bool) and math.isfinite(rate)
        fits = number and 0 < rate <= MAX_RATE  # type: ignore[operator]
    if not fits:
        raise InvalidInput(f"a rate is a number of items per second, up to {MAX_RATE:,}, not {short_repr(rate, 40)}")


def check_canary(verb: Verb, canary: object, share: object) -> None:
    """Raise unless the number of canaries and their required success ratio are valid for the verb."""
    check_integer("canary", canary, 0, MAX_CANARIES)
    if canary and verb not in REVIVING_VERBS:
        raise InvalidInput(f"a canary is for {' and '.join(sorted(REVIVING_VERBS))}: what {verb} changes runs nowhere")
    with checking_input("canary_success_ratio"):
        fits = isinstance(share, int | float) and not isinstance(share, bool) and 0 < share <= 1
    if not fits:
        raise InvalidInput(f"canary_success_ratio is more than 0 and at most 1, not {short_repr(share, 40)}")


def _checked(id: object) -> str:
    if type(id) is Operation:
        raise InvalidInput("an operation is named by its id; pass operation.id")
    return check_label("operation id", id)
