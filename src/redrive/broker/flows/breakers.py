"""Circuit breakers: judge from the feed which open, hold what waits for them, let probes through, close.

The state of a queue's breakers is part of the queue and changed by its version, so that of many processes one makes
each change. What follows from a state (holds, releases) is done by any process that sees it, and may be done twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from redrive.broker.failure_counts import COUNTED_KINDS, FailureCounts
from redrive.broker.flow import Flow, commit_call, run_query
from redrive.clock import Instant
from redrive.contract.admin_calls import Hold, SetBreakers, Unhold
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.item_calls import StaleSettings
from redrive.contract.queries import FeedPage, FindItems, GetItems, ListQueues, ListStats, Page, ReadFeed
from redrive.model.breaker import (
    DEFAULT_RULE,
    Breaker,
    BreakerRule,
    BreakerState,
    ProbeOutcome,
    breaker_changes,
    breaker_gate,
    open_breaker,
    probe_outcome,
    reopen,
    rule_key,
)
from redrive.model.duration import SECOND
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.filter import Filter, Order
from redrive.model.gate import BREAKER_GATE, Gate, gate_named
from redrive.model.ids import MAX_NUMBER, ItemId
from redrive.model.item import WAITING_STATUSES, Item, Status
from redrive.model.queue import Queue
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.broker.core import Core

ACTOR = "breaker"
"""Who opens and closes, in the audit, where no person does."""
JUDGE_EVERY = SECOND
"""Breakers are judged no more often."""
_PAGE = 100
_PAGES = 20
"""Pages of items that a step reads for one breaker."""
_FEED_PAGE = 1_000
_CHANGES = (FeedKind.BREAKER_OPENED, FeedKind.BREAKER_CLOSED)
_ENDS = (FeedKind.DEAD, FeedKind.DROPPED, FeedKind.REMOVED)
_log = events.logger("redrive.breaker")

BreakerHook = Callable[[FeedEntry], object]
"""Is given the entry of the feed about a breaker that has opened or closed."""


class BreakerMonitor:
    """What one process knows of breakers beside their state in the store."""

    def __init__(self) -> None:
        self.counts = FailureCounts()
        self.judged_at: Instant | None = None
        self.sweeps: dict[tuple[str, str, Instant], Sweep] = {}
        """By queue, kind and opening."""
        self.hooks: list[BreakerHook] = []

    def forget(self, guarded: Sequence[Queue], now: Instant) -> None:
        """Forget what is about other queues, and about breakers that have closed."""
        self.counts.forget({queue.name for queue in guarded}, now)
        present = {(queue.name, each.kind, each.opened_at) for queue in guarded for each in queue.breakers}
        self.sweeps = {key: sweep for key, sweep in self.sweeps.items() if key in present}

    def call_hooks(self, change: FeedEntry) -> None:
        """Call the program's functions, in separate threads: the maintenance waits for none of them."""
        for hook in self.hooks:
            threading.Thread(target=_call_hook, args=(hook, change), name="redrive-breaker-hook", daemon=True).start()


def _call_hook(hook: BreakerHook, change: FeedEntry) -> None:
    try:
        hook(change)
    except BaseException:
        _log.exception("breaker_hook_failed", queue=change.queue, breaker=change.breaker)


class Sweep:
    """The search for items that failed before a breaker opened: failed ones, then pending ones, page by page."""

    def __init__(self) -> None:
        self.statuses = list(WAITING_STATUSES)
        self.cursor: str | None = None

    def advance(self, cursor: str | None) -> None:
        """Go on with the next page, or the next status."""
        self.cursor = cursor
        if cursor is None:
            self.statuses.pop()


def step(core: Core) -> Flow[int]:
    """Judge the breakers of all queues, at most once a second. Returns how many items were held or released."""
    monitor, now = core.breakers, core.clock.now()
    if monitor.judged_at is not None and 0 <= now - monitor.judged_at < JUDGE_EVERY:
        return 0
    monitor.judged_at = now
    queues: tuple[Queue, ...] = yield from run_query(ListQueues())
    guarded = [queue for queue in queues if queue.settings.breakers or queue.breakers]
    if not guarded:
        monitor.counts, monitor.sweeps = FailureCounts(), {}
        return 0
    monitor.forget(guarded, now)
    yield from _read_feed(monitor)
    yield from _read_completions(monitor.counts, guarded)
    changed = 0
    for queue in guarded:
        changed += yield from _step_queue(core, queue)
    if changed >= MAINTENANCE_BATCH:
        monitor.judged_at = None  # there is probably more to hold or release
    return changed


def _read_feed(monitor: BreakerMonitor) -> Flow[None]:
    """Count what was added to the feed since the last time; at first, what is newest in it."""
    counts, kinds = monitor.counts, (*COUNTED_KINDS, *_CHANGES)
    page: FeedPage
    if counts.position is None:
        page = yield from run_query(ReadFeed(before=MAX_NUMBER, limit=_FEED_PAGE, kinds=kinds))
        for entry in page.entries:
            counts.add(entry)
        counts.position = page.last
        return
    for _ in range(_PAGES):
        page = yield from run_query(ReadFeed(after=counts.position, limit=_FEED_PAGE, kinds=kinds))
        for entry in page.entries:
            counts.add(entry)
            if entry.kind in _CHANGES:
                monitor.call_hooks(entry)
        counts.position = page.last
        if not page.more:
            return


def _read_completions(counts: FailureCounts, queues: Iterable[Queue]) -> Flow[None]:
    """Note how many deliveries succeeded, where a rule asks for that."""
    names = [queue.name for queue in queues if any(rule.share for rule in queue.settings.breakers.values())]
    for start in range(0, len(names), _PAGE):
        for stats in (yield from run_query(ListStats(tuple(names[start : start + _PAGE])))):
            counts.add_stats(stats)


def _step_queue(core: Core, queue: Queue) -> Flow[int]:
    """Advance the breakers of one queue, open others, and do what follows from their states."""
    now = core.clock.now()
    gate = queue_gate(queue)
    breakers: list[Breaker] = []
    for breaker in queue.breakers:
        advanced, gate = yield from _advance(core, queue, breaker, gate)
        breakers += [] if advanced is None else [advanced]
    for kind, reason in core.breakers.counts.openings(queue, now):
        rule = rule_for(queue, kind)
        opened = open_breaker(kind, rule, reason, now, mark=core.breakers.counts.position or 0)
        gate = gate if opened.holds else breaker_gate(opened, rule)
        breakers.append(opened)
    changed = yield from change_breakers(core, queue, breakers, gate)
    if changed is None:
        return 0  # another process was first
    count = 0
    for breaker in changed.breakers:
        count += yield from enforce(core, changed, breaker)
    return count


def rule_for(queue: Queue, kind: str) -> BreakerRule:
    """The rule of a breaker; the default if a person opened one that has none."""
    return queue.settings.breakers.get(rule_key(kind), DEFAULT_RULE)


def queue_gate(queue: Queue) -> Gate | None:
    """The gate of the queue's breaker."""
    return gate_named(queue.gates, BREAKER_GATE)


def change_breakers(
    core: Core,
    queue: Queue,
    breakers: Sequence[Breaker],
    gate: Gate | None,
    actor: str = ACTOR,
    note: str | None = None,
) -> Flow[Queue | None]:
    """Write the breakers of a queue if they differ from those it has. None: the queue has changed since it was read."""
    if tuple(breakers) == queue.breakers and gate == queue_gate(queue):
        return queue
    call = SetBreakers(queue.name, tuple(breakers), queue.version, actor, note, queue_gate(queue), gate)
    result: Queue | StaleSettings = yield from commit_call(call)
    changed = result.queue if isinstance(result, StaleSettings) else result
    core.cache_queue(changed)
    if isinstance(result, StaleSettings):
        return None
    _report_changes(core, queue, changed, actor)
    return changed


def _report_changes(core: Core, before: Queue, after: Queue, actor: str) -> None:
    """Log and count what opened and closed. What an operator does is no warning to that operator."""
    for opened, breaker in breaker_changes(before.breakers, after.breakers):
        event = "breaker_opened" if opened else "breaker_closed"
        fields = {"queue": after.name, "breaker": breaker.kind, "reason": breaker.reason, "actor": actor}
        if actor == ACTOR:
            _log.warning(event, **fields)
        else:
            _log.info(event, **fields)
        if core.meter is not None:
            core.meter.breaker_changed(after.name, breaker, opened=opened)


def _advance(core: Core, queue: Queue, breaker: Breaker, gate: Gate | None) -> Flow[tuple[Breaker | None, Gate | None]]:
    """The breaker and the queue's gate from now on: by time, and by the outcomes of its probes."""
    now, rule = core.clock.now(), rule_for(queue, breaker.kind)
    if breaker.opened_by is None and rule_key(breaker.kind) not in queue.settings.breakers:
        return close(breaker, gate)  # its rule was removed
    if breaker.state(now) is not BreakerState.HALF_OPEN:
        return breaker, gate
    leased = () if gate is None else gate.leased
    outcomes = yield from _outcomes(breaker, breaker.probes if breaker.holds else leased)
    running = _ids_with(outcomes, ProbeOutcome.RUNNING)
    if ProbeOutcome.FAILED in outcomes.values():
        breaker = reopen(breaker, now, running if breaker.holds else ())
        return breaker, gate if breaker.holds else breaker_gate(breaker, rule, running)
    if len(_ids_with(outcomes, ProbeOutcome.PASSED)) >= rule.probes:
        return close(breaker, gate)
    if not breaker.holds:  # the allowance of a probe that no worker has is given again
        return breaker, breaker_gate(breaker, rule, _ids_with(outcomes, ProbeOutcome.PASSED, ProbeOutcome.RUNNING))
    kept = _ids_with(outcomes, ProbeOutcome.PASSED, ProbeOutcome.RUNNING, ProbeOutcome.WAITING)
    chosen = yield from _choose(queue, breaker, rule.probes - len(kept))
    if chosen:
        mark = core.breakers.counts.position or 0
        return msgspec.structs.replace(breaker, probes=(*kept, *chosen), probing_since=now, mark=mark), gate
    if len(_ids_with(outcomes, ProbeOutcome.PASSED)) == len(kept):
        return close(breaker, gate)  # nothing waits for it
    return breaker, gate


def close(breaker: Breaker, gate: Gate | None) -> tuple[Breaker | None, Gate | None]:
    """What is left of a breaker that closes: what it holds is to be released."""
    return (msgspec.structs.replace(breaker, is_closing=True, probes=()), gate) if breaker.holds else (None, None)


def _outcomes(breaker: Breaker, probes: tuple[ItemId, ...]) -> Flow[dict[ItemId, ProbeOutcome]]:
    outcomes: dict[ItemId, ProbeOutcome] = {}
    items = yield from _items(probes)
    for id, item in zip(probes, items, strict=True):
        outcomes[id] = (yield from _removed_outcome(breaker, id)) if item is None else probe_outcome(breaker, item)
    return outcomes


def _items(ids: tuple[ItemId, ...]) -> Flow[list[Item | None]]:
    found: list[Item | None] = []
    while len(found) < len(ids):
        found += yield from run_query(GetItems(ids[len(found) :]))
    return found


def _removed_outcome(breaker: Breaker, id: ItemId) -> Flow[ProbeOutcome]:
    """A probe that is gone was completed, unless the feed has another end of it."""
    after = breaker.mark
    while True:
        page: FeedPage = yield from run_query(ReadFeed(after=after, id=id, kinds=_ENDS))
        for entry in page.entries:
            if entry.kind is not FeedKind.DEAD:
                return ProbeOutcome.GONE
            return ProbeOutcome.FAILED if breaker.counts(entry) else ProbeOutcome.PASSED
        if not page.more:
            return ProbeOutcome.PASSED
        after = page.last


def _ids_with(outcomes: dict[ItemId, ProbeOutcome], *wanted: ProbeOutcome) -> tuple[ItemId, ...]:
    return tuple(id for id, outcome in outcomes.items() if outcome in wanted)


def _choose(queue: Queue, breaker: Breaker, count: int) -> Flow[tuple[ItemId, ...]]:
    """Items to be released as probes: of those that have waited longest, the ones that are due first."""
    found: list[Item] = []
    for status in WAITING_STATUSES if count > 0 else ():
        where = Filter(queue=queue.name, status=status, held_by=breaker.holder(queue.name))
        page: Page = yield from run_query(FindItems(where, Order.OLDEST, _PAGE))
        found += page.items
    found.sort(key=lambda item: item.ready_at or item.put_at)
    return tuple(item.id for item in found[:count])


def enforce(core: Core, queue: Queue, breaker: Breaker) -> Flow[int]:
    """Do what follows from the state of a breaker that holds items. Returns how many items were held or released."""
    if not breaker.holds:
        return 0
    if breaker.is_closing:
        return (yield from _release_all(core, queue, breaker))
    return (yield from _release_probes(queue, breaker)) + (yield from _sweep(core, queue, breaker))


def _release_all(core: Core, queue: Queue, breaker: Breaker) -> Flow[int]:
    """Release what a closing breaker holds. It is closed once nothing is left."""
    released: int = yield from commit_call(Unhold(breaker.holder(queue.name)))
    if released < MAINTENANCE_BATCH:
        others = [each for each in queue.breakers if each.kind != breaker.kind]
        yield from change_breakers(core, queue, others, queue_gate(queue))
    return released


def _release_probes(queue: Queue, breaker: Breaker) -> Flow[int]:
    holder = breaker.holder(queue.name)
    held = tuple(
        item.id
        for item in (yield from _items(breaker.probes))
        if item and holder in item.held_by and probe_outcome(breaker, item) is ProbeOutcome.WAITING
    )
    released: int = (yield from commit_call(Unhold(holder, held))) if held else 0
    return released


def _sweep(core: Core, queue: Queue, breaker: Breaker) -> Flow[int]:
    """Hold items whose last failure is of the breaker's kind. Each process searches for them once after an opening."""
    sweep = core.breakers.sweeps.setdefault((queue.name, breaker.kind, breaker.opened_at), Sweep())
    holder, held = breaker.holder(queue.name), 0
    for _ in range(_PAGES):
        if not sweep.statuses:
            break
        status = sweep.statuses[-1]
        where = Filter(queue=queue.name, status=status, min_attempts=1 if status is Status.PENDING else None)
        page: Page = yield from run_query(FindItems(where, Order.OLDEST, _PAGE, sweep.cursor))
        ids = tuple(
            item.id
            for item in page.items
            if breaker.matches(item.last_failure) and holder not in item.held_by and item.id not in breaker.probes
        )
        if ids:
            call = Hold(ids, holder, lasting=True, queue_version=(queue.name, queue.version))
            result: int | StaleSettings = yield from commit_call(call)
            if isinstance(result, StaleSettings):
                break
            held += result
        sweep.advance(page.cursor)
    return held
