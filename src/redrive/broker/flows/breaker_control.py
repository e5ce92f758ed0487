"""Control of breakers by an operator: list those that are not closed, open one, close one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from redrive.broker.breaker_monitor import BreakerHook
from redrive.broker.flow import Flow, run_query
from redrive.broker.flows.breakers import (
    change_breakers,
    close,
    enforce,
    queue_gate,
    rule_for,
)
from redrive.broker.flows.inspection import count_all
from redrive.broker.flows.queues import get
from redrive.broker.flows.stale_settings import judge_until_current
from redrive.broker.validation import check_note, check_positive
from redrive.contract.item_calls import StaleSettings
from redrive.contract.queries import GetStats, ListQueues
from redrive.errors import BreakerNotOpen, InvalidInput, short_repr
from redrive.model.breaker import (
    FINGERPRINT,
    MAX_FINGERPRINT_BREAKERS,
    MAX_REASON_BYTES,
    Breaker,
    BreakerStatus,
    breaker_gate,
    check_kind,
    fingerprint_kind,
    open_breaker,
    rule_key,
)
from redrive.model.caller_input import checking_input
from redrive.model.duration import DurationInput
from redrive.model.filter import Filter
from redrive.model.gate import Gate
from redrive.model.group import Group
from redrive.model.limits import check_name
from redrive.model.queue import Queue, QueueStats
from redrive.model.text import clean_text

if TYPE_CHECKING:
    from redrive.broker.core import Core

_Change = Callable[[Queue, "Breaker | None"], "tuple[Breaker | None, Gate | None]"]


def list_breakers(core: Core, queue: str | None) -> Flow[tuple[BreakerStatus, ...]]:
    """List breakers that are not closed, of one queue or all, by queue and kind."""
    queues: tuple[Queue, ...] = (
        (yield from run_query(ListQueues())) if queue is None else ((yield from get(core, queue)),)
    )
    found: list[BreakerStatus] = []
    for each, breaker in _not_closed(queues):
        found.append((yield from breaker_status(core, each, breaker)))
    return tuple(found)


def _not_closed(queues: Iterable[Queue]) -> Iterator[tuple[Queue, Breaker]]:
    for queue in queues:
        yield from ((queue, breaker) for breaker in sorted(queue.breakers, key=lambda breaker: breaker.kind))


def list_group_breakers(core: Core, groups: Sequence[Group]) -> Flow[dict[str, tuple[BreakerStatus, ...]]]:
    """Return the breakers that are not closed for the cause of each group of dead letters, by its fingerprint.

    A breaker of an error class is one of them if letters of the group are in its queue, or in a dead queue of it.
    """
    queues: tuple[Queue, ...] = yield from run_query(ListQueues())
    found: dict[str, tuple[BreakerStatus, ...]] = {}
    for queue, breaker in _not_closed(queues):
        of_cause = [group.fingerprint for group in groups if _is_cause(queue, breaker, group)]
        if of_cause:
            status = yield from breaker_status(core, queue, breaker)
            found |= {each: (*found.get(each, ()), status) for each in of_cause}
    return found


def _is_cause(queue: Queue, breaker: Breaker, group: Group) -> bool:
    if breaker.kind == fingerprint_kind(group.fingerprint):
        return True
    places = {queue.name, *queue.settings.dead_queues()}
    return breaker.kind == group.error_class and not places.isdisjoint(group.queues)


def open_by_hand(
    core: Core, queue: str, kind: str, open_for: DurationInput | None, note: str | None, actor: str | None
) -> Flow[BreakerStatus]:
    """Open a breaker, or leave it open. It lets a probe through after `open_for`, by default that of its rule."""
    kind, name = check_kind(kind), core.actor(actor)
    note = check_note("note", note)
    duration = None if open_for is None else check_positive("open_for", open_for)

    def change(found: Queue, present: Breaker | None) -> tuple[Breaker | None, Gate | None]:
        gate = queue_gate(found)
        if present is not None and not present.is_closing:
            return present, gate
        if present is None and rule_key(kind) == FINGERPRINT:
            _check_room(found)
        rule = rule_for(found, kind)
        reason = clean_text(note or "opened by an operator", MAX_REASON_BYTES)
        breaker = open_breaker(kind, rule, reason, core.clock.now(), open_for=duration, opened_by=name)
        return breaker, gate if breaker.holds else breaker_gate(breaker, rule)

    changed = yield from _change(core, queue, kind, change, name, note)
    breaker = next(each for each in changed.breakers if each.kind == kind)
    yield from enforce(core, changed, (breaker,))
    return (yield from breaker_status(core, changed, breaker))


def _check_room(queue: Queue) -> None:
    if sum(rule_key(each.kind) == FINGERPRINT for each in queue.breakers) >= MAX_FINGERPRINT_BREAKERS:
        limit = f"{MAX_FINGERPRINT_BREAKERS} breakers for fingerprints that are not closed"
        raise InvalidInput(f"queue '{queue.name}' has {limit}, and that is the limit; close some of them")


def close_by_hand(core: Core, queue: str, kind: str, note: str | None, actor: str | None) -> Flow[int]:
    """Close a breaker. Returns how many items were released."""
    kind, name = check_kind(kind), core.actor(actor)

    def change(found: Queue, present: Breaker | None) -> tuple[Breaker | None, Gate | None]:
        if present is None:
            raise BreakerNotOpen(found.name, kind)
        return close(present, queue_gate(found))

    changed = yield from _change(core, queue, kind, change, name, check_note("note", note))
    released = 0
    while breaker := next((each for each in changed.breakers if each.kind == kind and each.is_closing), None):
        released += yield from enforce(core, changed, (breaker,))
        changed = yield from get(core, changed.name)
    return released


def add_hook(core: Core, hook: BreakerHook) -> BreakerHook:
    """Call a function when a breaker opens or closes."""
    with checking_input("hook"):
        is_function = callable(hook) and not inspect.iscoroutinefunction(hook)
    if not is_function:
        raise InvalidInput(f"a hook is a function that is not async, not {short_repr(hook, 60)}")
    core.breakers.hooks.append(hook)
    return hook


def _change(core: Core, name: str, kind: str, change: _Change, actor: str, note: str | None) -> Flow[Queue]:
    """Change one breaker of a queue, by its newest state."""
    name = check_name("queue", name)
    yield from get(core, name)

    def change_once() -> Flow[Queue | StaleSettings]:
        queue = yield from core.queue(name)
        present = next((each for each in queue.breakers if each.kind == kind), None)
        breaker, gate = change(queue, present)
        others = [each for each in queue.breakers if each.kind != kind]
        breakers = others if breaker is None else [*others, breaker]
        return (yield from change_breakers(core, queue, breakers, gate, actor, note))

    changed: Queue = yield from judge_until_current(core, change_once)
    core.wake_maintenance()
    return changed


def breaker_status(core: Core, queue: Queue, breaker: Breaker) -> Flow[BreakerStatus]:
    """Return the status of a breaker: with its current state, and the number of items that wait for it."""
    if breaker.holds:
        waiting = yield from count_all(Filter(queue=queue.name, status=None, held_by=breaker.holder(queue.name)))
    else:
        stats: QueueStats = yield from run_query(GetStats(queue.name))
        waiting = stats.pending + stats.failed
    return BreakerStatus(
        queue.name,
        breaker.kind,
        breaker.state(core.clock.now()),
        breaker.opened_at,
        breaker.reason,
        breaker.until,
        waiting,
        breaker.opened_by,
    )
