"""Circuit breakers: they open by the failures in the feed, hold items that wait for them, let probes through, close.

The state of a queue's breakers is part of the queue and changed by its version, so that exactly one of many processes
makes each change. The effects of a state (holds, releases) are idempotent, and applied by any process that reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from redrive.broker.breaker_monitor import BreakerMonitor, Sweep
from redrive.broker.failure_counts import COUNTED_KINDS, FailureCounts
from redrive.broker.flow import Flow, commit_call, run_query
from redrive.clock import Instant
from redrive.contract.admin_calls import Hold, SetBreakers, Unhold
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.item_calls import StaleSettings
from redrive.contract.queries import FeedPage, FindItems, GetItems, ListQueues, ListStats, Page, ReadFeed
from redrive.model.breaker import (
    DEFAULT_RULE,
    LONGEST_WINDOW,
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
"""The actor in the audit when breakers open and close automatically."""
JUDGE_EVERY = SECOND
"""Minimum time between two rounds of judging."""
_PAGE = 100
_PAGES = 20
"""Maximum number of pages that a step reads of the feed, or of items for one breaker."""
_FEED_PAGE = 1_000
_CHANGES = (FeedKind.BREAKER_OPENED, FeedKind.BREAKER_CLOSED)
_ENDS = (FeedKind.DEAD, FeedKind.DROPPED, FeedKind.REMOVED)
_log = events.logger("redrive.breaker")


def step(core: Core) -> Flow[int]:
    """Judge the breakers of all queues, at most once a second, or after failures of this process that may open one.

    Returns how many items were held or released.
    """
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
    yield from _read_feed(monitor, now)
    yield from _read_completions(monitor.counts, guarded)
    changed = 0
    for queue in guarded:
        changed += yield from _step(core, queue)
    if changed >= MAINTENANCE_BATCH:
        monitor.judged_at = None  # there is probably more to hold or release
    return changed


def _read_feed(monitor: BreakerMonitor, now: Instant) -> Flow[None]:
    """Count the entries that were added to the feed since the last call; at the first call, those of the window."""
    counts, kinds = monitor.counts, (*COUNTED_KINDS, *_CHANGES)
    page: FeedPage
    if counts.position is None:
        yield from _read_window(counts, kinds, now)
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


def _read_window(counts: FailureCounts, kinds: tuple[FeedKind, ...], now: Instant) -> Flow[None]:
    """Count the feed's entries within the longest window: read page by page from its end, then counted in order."""
    found: list[FeedEntry] = []
    before, position = MAX_NUMBER, None
    for _ in range(_PAGES):
        page: FeedPage = yield from run_query(ReadFeed(before=before, limit=_FEED_PAGE, kinds=kinds))
        position = page.last if position is None else position
        found += reversed(page.entries)
        if not page.more or not page.entries or page.entries[0].at < now - LONGEST_WINDOW:
            break
        before = page.entries[0].number
    for entry in reversed(found):
        counts.add(entry)
    counts.position = position


def _read_completions(counts: FailureCounts, queues: Iterable[Queue]) -> Flow[None]:
    """Record how many deliveries completed, for queues with a rule that needs it."""
    names = [queue.name for queue in queues if any(rule.share for rule in queue.settings.breakers.values())]
    for start in range(0, len(names), _PAGE):
        for stats in (yield from run_query(ListStats(tuple(names[start : start + _PAGE])))):
            counts.add_stats(stats)


def _step(core: Core, queue: Queue) -> Flow[int]:
    """Advance the breakers of one queue, open others, and apply the effects of their states."""
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
    if isinstance(changed, StaleSettings):
        return 0  # another process was first
    return (yield from enforce(core, changed, changed.breakers))


def rule_for(queue: Queue, kind: str) -> BreakerRule:
    """Return the rule of a breaker; the default one if an operator opened a breaker without a rule."""
    return queue.settings.breakers.get(rule_key(kind), DEFAULT_RULE)


def queue_gate(queue: Queue) -> Gate | None:
    """Return the gate of the queue's breaker."""
    return gate_named(queue.gates, BREAKER_GATE)


def change_breakers(
    core: Core,
    queue: Queue,
    breakers: Sequence[Breaker],
    gate: Gate | None,
    actor: str = ACTOR,
    note: str | None = None,
) -> Flow[Queue | StaleSettings]:
    """Write the breakers of a queue if they differ from its current ones, and it has not changed since it was read."""
    if tuple(breakers) == queue.breakers and gate == queue_gate(queue):
        return queue
    call = SetBreakers(queue.name, tuple(breakers), queue.version, actor, note, queue_gate(queue), gate)
    result: Queue | StaleSettings = yield from commit_call(call)
    changed = core.cache_queue(result.queue if isinstance(result, StaleSettings) else result)
    if changed is result:
        _report_changes(core, queue, changed, actor)
    return result


def _report_changes(core: Core, before: Queue, after: Queue, actor: str) -> None:
    """Log and count the breakers that opened or closed. A change by an operator is logged as info, not as a warning."""
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
    """Return the next state of the breaker and of the queue's gate, by time and by the outcomes of its probes."""
    now, rule = core.clock.now(), rule_for(queue, breaker.kind)
    if breaker.opened_by is None and rule_key(breaker.kind) not in queue.settings.breakers:
        return close(breaker, gate)  # its rule was removed
    if breaker.state(now) is not BreakerState.HALF_OPEN:
        return breaker, gate
    leased = () if gate is None else gate.leased
    outcomes = yield from _outcomes(queue, breaker, breaker.probes if breaker.holds else leased)
    running = _with(outcomes, ProbeOutcome.RUNNING)
    if ProbeOutcome.FAILED in outcomes.values():
        breaker = reopen(breaker, now, running if breaker.holds else ())
        return breaker, gate if breaker.holds else breaker_gate(breaker, rule, running)
    if len(_with(outcomes, ProbeOutcome.PASSED)) >= rule.probes:
        return close(breaker, gate)
    if not breaker.holds:  # a probe that is neither passed nor running frees its place for another
        return breaker, breaker_gate(breaker, rule, _with(outcomes, ProbeOutcome.PASSED, ProbeOutcome.RUNNING))
    kept = _with(outcomes, ProbeOutcome.PASSED, ProbeOutcome.RUNNING, ProbeOutcome.WAITING)
    chosen = yield from _choose(queue, breaker, rule.probes - len(kept))
    if chosen:
        mark = core.breakers.counts.position or 0
        return msgspec.structs.replace(breaker, probes=(*kept, *chosen), probing_since=now, mark=mark), gate
    if len(_with(outcomes, ProbeOutcome.PASSED)) == len(kept):
        return close(breaker, gate)  # nothing waits for it
    return breaker, gate


def close(breaker: Breaker, gate: Gate | None) -> tuple[Breaker | None, Gate | None]:
    """Return the breaker and the gate after a close. A breaker that holds items is closing until their release."""
    return (msgspec.structs.replace(breaker, is_closing=True, probes=()), gate) if breaker.holds else (None, None)


def _outcomes(queue: Queue, breaker: Breaker, probes: tuple[ItemId, ...]) -> Flow[dict[ItemId, ProbeOutcome]]:
    outcomes: dict[ItemId, ProbeOutcome] = {}
    items = yield from _items(probes)
    for id, item in zip(probes, items, strict=True):
        if item is None:
            outcomes[id] = yield from _last_words(breaker, id)
        else:
            outcome = probe_outcome(breaker, item)
            is_lost = outcome is ProbeOutcome.WAITING and not _can_be_probe(queue, item)
            outcomes[id] = ProbeOutcome.GONE if is_lost else outcome
    return outcomes


def _can_be_probe(queue: Queue, item: Item) -> bool:
    """Return whether only breakers of this queue hold an item of it. Another holder may never release it."""
    return item.queue == queue.name and {breaker.holder(queue.name) for breaker in queue.breakers}.issuperset(
        item.held_by
    )


def _items(ids: tuple[ItemId, ...]) -> Flow[list[Item | None]]:
    found: list[Item | None] = []
    while len(found) < len(ids):
        found += yield from run_query(GetItems(ids[len(found) :]))
    return found


def _last_words(breaker: Breaker, id: ItemId) -> Flow[ProbeOutcome]:
    """Return the outcome of a deleted probe: passed, unless the feed has its death or its deletion."""
    after = breaker.mark
    while True:
        page: FeedPage = yield from run_query(ReadFeed(after=after, id=id, kinds=_ENDS))
        for entry in page.entries:
            if entry.at < breaker.probed_since:
                continue  # an end from before it was redriven as a probe
            if entry.kind is not FeedKind.DEAD:
                return ProbeOutcome.GONE
            return ProbeOutcome.FAILED if breaker.counts(entry) else ProbeOutcome.PASSED
        if not page.more:
            return ProbeOutcome.PASSED
        after = page.last


def _with(outcomes: dict[ItemId, ProbeOutcome], *wanted: ProbeOutcome) -> tuple[ItemId, ...]:
    return tuple(id for id, outcome in outcomes.items() if outcome in wanted)


def _choose(queue: Queue, breaker: Breaker, count: int) -> Flow[tuple[ItemId, ...]]:
    """Choose items to release as probes: first those that the fewest other breakers hold, then by due time.

    So two breakers that hold the same items choose the same probe, and do not wait for each other.
    """
    found: list[Item] = []
    for status in WAITING_STATUSES if count > 0 else ():
        where = Filter(queue=queue.name, status=status, held_by=breaker.holder(queue.name))
        found += yield from _find_probes(queue, where, count)
    others = {each.holder(queue.name): each.probes for each in queue.breakers if each.kind != breaker.kind}
    found.sort(
        key=lambda item: (
            sum(name in others and item.id not in others[name] for name in item.held_by),
            item.ready_at or item.put_at,
        )
    )  # a stable sort: of items with the same due time, the oldest is first
    return tuple(item.id for item in found[:count])


def _find_probes(queue: Queue, where: Filter, count: int) -> Flow[list[Item]]:
    found: list[Item] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page: Page = yield from run_query(FindItems(where, Order.OLDEST, _PAGE, cursor))
        found += (item for item in page.items if _can_be_probe(queue, item))
        cursor = page.cursor
        if cursor is None or len(found) >= count:
            break
    return found


def enforce(core: Core, queue: Queue, breakers: Iterable[Breaker]) -> Flow[int]:
    """Apply the effects of the states of these breakers. Returns how many items were held or released."""
    count, done = 0, set[str]()
    holding = [breaker for breaker in breakers if breaker.holds and not breaker.is_closing]
    for breaker in holding:
        count += yield from _release_probes(core, queue, breaker)
    count += yield from _sweep(core, queue, holding)
    for breaker in (each for each in breakers if each.is_closing):
        released: int = yield from commit_call(Unhold(breaker.holder(queue.name)))
        count += released
        if released < MAINTENANCE_BATCH:
            done.add(breaker.kind)
    others = [each for each in queue.breakers if each.kind not in done]
    yield from change_breakers(core, queue, others, queue_gate(queue))
    return count


def _release_probes(core: Core, queue: Queue, breaker: Breaker) -> Flow[int]:
    if breaker.state(core.clock.now()) is not BreakerState.HALF_OPEN:
        return 0
    holder = breaker.holder(queue.name)
    held = tuple(
        item.id
        for item in (yield from _items(breaker.probes))
        if item and holder in item.held_by and probe_outcome(breaker, item) is ProbeOutcome.WAITING
    )
    return (yield from commit_call(Unhold(holder, held))) if held else 0


def _sweep(core: Core, queue: Queue, breakers: Sequence[Breaker]) -> Flow[int]:
    """Hold items whose last failure is of a breaker's kind. Each process searches for them once per opening."""
    sweeps, fresh = core.breakers.sweeps, Sweep()
    by_sweep: defaultdict[Sweep, list[Breaker]] = defaultdict(list)
    for breaker in breakers:
        by_sweep[sweeps.setdefault((queue.name, breaker.kind, breaker.opened_at), fresh)].append(breaker)
    held = 0
    for sweep, opened in by_sweep.items():
        for _ in range(_PAGES):
            found = yield from _hold_page(queue, opened, sweep)
            if found is None:
                break
            held += found
    return held


def _hold_page(queue: Queue, breakers: Sequence[Breaker], sweep: Sweep) -> Flow[int | None]:
    """Hold the items of the next page that wait for these breakers. None: no page is left, or the queue has changed."""
    if (place := sweep.place) is None:
        return None
    (status, cursor), held = place, 0
    where = Filter(queue=queue.name, status=status, min_attempts=1 if status is Status.PENDING else None)
    page: Page = yield from run_query(FindItems(where, Order.OLDEST, _PAGE, cursor))
    for breaker in breakers:
        holder = breaker.holder(queue.name)
        ids = tuple(
            item.id
            for item in page.items
            if breaker.matches(item.last_failure) and holder not in item.held_by and item.id not in breaker.probes
        )
        if ids:
            call = Hold(ids, holder, lasting=True, queue_version=(queue.name, queue.version))
            result: int | StaleSettings = yield from commit_call(call)
            if isinstance(result, StaleSettings):
                return None
            held += result
    sweep.turn(place, page.cursor)
    return held
