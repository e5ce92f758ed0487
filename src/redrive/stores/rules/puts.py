"""Puts: planned and checked in full before the first item is written."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from redrive.clock import Instant
from redrive.contract.base import ENDED_KEY_RETENTION, LEDGER_RETENTION, SAME_CALL
from redrive.contract.item_calls import (
    NewItem,
    Put,
    StaleSettings,
    check_failure,
    has_stale_verdict,
    ready_instant,
    takes_failure,
)
from redrive.errors import IdempotencyConflict, PayloadTooLarge, QueueFull
from redrive.model.arrival import ledger_key
from redrive.model.feed import FeedKind
from redrive.model.holder import ItemHolder
from redrive.model.ids import ItemId
from redrive.model.item import WAITING_STATUSES, HistoryEntry, HistoryEvent, Receipt, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict, count_outcome
from redrive.model.queue import WITH_ITEM
from redrive.stores.rules.feed import append_event
from redrive.stores.rules.queue_state import IdempotencyEntry, QueueState, SourceEntry
from redrive.stores.rules.record import Record
from redrive.stores.rules.state import State
from redrive.stores.rules.verdicts import apply_verdict, check_verdict


def put(state: State, call: Put) -> tuple[Receipt, ...] | StaleSettings:
    """Put all items, or none."""
    queue = state.queue(call.queue).value
    if has_stale_verdict(call, queue):
        return StaleSettings(queue)
    plan = PutPlan(state, alone=True)
    plan.add(call)
    return plan.apply()


def known_source(state: State, queue: QueueState, source_id: ItemId) -> ItemId | None:
    """Return the item that came to a queue with this source_id: while the item is there, and for some time after."""
    received = queue.sources.get(ledger_key(source_id))
    if received is not None and received.until > state.now:
        return received.id
    source = queue.sources.get(source_id)
    if source is None:
        return None
    item = state.items.get(source.id)
    there = item is not None and item.id == source.id and item.queue == queue.name
    return source.id if there or source.until > state.now else None


def remember_source(state: State, queue: QueueState, source_id: ItemId, id: ItemId) -> None:
    """Record that an item came with this source_id."""
    until = Instant(state.now + LEDGER_RETENTION)
    queue.sources[source_id] = SourceEntry(id, until)
    queue.sources_until.add(source_id, (until,))


def living_item(state: State, known: IdempotencyEntry) -> Record | None:
    """Return the item of a key, in any queue, unless it is completed."""
    item = state.items.get(known.id)
    return None if item is None or item.status is Status.COMPLETED else item


class _Step(NamedTuple):
    """One item of a plan. A duplicate has the id of the existing item."""

    queue: QueueState
    new: NewItem
    id: ItemId
    number: int
    duplicate: bool
    ignored: bool
    """True for a duplicate by its source_id: not even a failure is added."""


class PutPlan:
    """The effects of one or more puts. `add` checks, and changes nothing except the allocated numbers; `apply` cannot
    fail.

    Only puts that are `alone`, not part of another call, bring failures. An item that is `passing` leaves its queue in
    the same transaction, so the limits of the queue do not apply.
    """

    def __init__(
        self,
        state: State,
        *,
        alone: bool = False,
        passing: bool = False,
        leaving: str | None = None,
        completes: Record | None = None,
    ) -> None:
        self._state = state
        self._alone = alone
        self._passing = passing
        self._completes = completes
        self._steps: list[_Step] = []
        self._growth: defaultdict[str, int] = defaultdict(int)
        if leaving is not None:
            self._growth[leaving] = -1
        self._keys: dict[tuple[str, str], IdempotencyEntry] = {}
        self._sources: dict[tuple[str, ItemId], ItemId] = {}
        self._dropped: set[ItemId] = set()
        """Items of the plan that are removed as soon as they are put."""

    def add(self, put: Put) -> None:
        """Check a put, together with those added before."""
        queue = self._state.queue(put.queue)
        adding = sum(self._add(queue, new) for new in put.items)
        max_size = queue.value.settings.max_size
        if adding and max_size is not None and not self._passing:
            size = queue.size + self._growth[queue.name]
            if size + adding > max_size:
                raise QueueFull(queue.name, size, max_size, adding)
        self._growth[queue.name] += adding

    def _add(self, queue: QueueState, new: NewItem) -> bool:
        """Plan one item. Returns whether it counts for max_size."""
        limit = queue.value.settings.max_payload_size
        if len(new.payload) > limit and not self._passing:
            raise PayloadTooLarge("payload", len(new.payload), limit, "max_payload_size")
        check_failure(new, alone=self._alone)
        if new.verdict is not None:
            check_verdict(self._state, queue.name, OutcomeKind.FAILED, new.verdict)
        if (there := self._known_source(queue, new)) is not None:
            self._steps.append(_Step(queue, new, there, 0, duplicate=True, ignored=True))
            return False
        if (there := self._holder(queue, new)) is not None:
            self._steps.append(_Step(queue, new, there, 0, duplicate=True, ignored=False))
            return False
        number = self._state.draw_number()
        id = self._state.allocate_id(number)
        self._remember(queue, new, id)
        if isinstance(new.verdict, Dead) and new.verdict.drops:
            self._dropped.add(id)
        self._steps.append(_Step(queue, new, id, number, duplicate=False, ignored=False))
        return not isinstance(new.verdict, Dead)

    def _known_source(self, queue: QueueState, new: NewItem) -> ItemId | None:
        if new.source_id is None:
            return None
        return known_source(self._state, queue, new.source_id) or self._sources.get((queue.name, new.source_id))

    def _holder(self, queue: QueueState, new: NewItem) -> ItemId | None:
        """Return the item of a known key; None if a failure finds that item gone, and is a new item."""
        if new.idempotency_key is None:
            return None
        planned = self._keys.get((queue.name, new.idempotency_key))
        known = planned or queue.keys.get(new.idempotency_key)
        if known is None or not self._is_known(known, planned):
            return None
        if known.digest != self._state.digest(new):
            raise IdempotencyConflict(queue.name, new.idempotency_key, known.id if planned is None else SAME_CALL)
        return known.id if new.failure is None or self._gets_failure(known.id, planned) else None

    def _is_known(self, known: IdempotencyEntry, planned: IdempotencyEntry | None) -> bool:
        if planned is not None:
            return not (known.ends_with_item and known.id in self._dropped)
        if not known.ends_with_item:
            return known.until > self._state.now
        item = living_item(self._state, known)
        return item is not None and item is not self._completes

    def _gets_failure(self, id: ItemId, planned: IdempotencyEntry | None) -> bool:
        if planned is not None:
            return id not in self._dropped
        item = self._state.items.get(id)
        if item is None:
            return False
        return takes_failure(item.id, item.status, None if item.route is None else item.route.to)

    def _remember(self, queue: QueueState, new: NewItem, id: ItemId) -> None:
        if new.source_id is not None:
            self._sources[queue.name, new.source_id] = id
        if new.idempotency_key is not None:
            timeout = queue.value.settings.idempotency_timeout
            until = Instant(0 if timeout == WITH_ITEM else self._state.now + timeout)
            self._keys[queue.name, new.idempotency_key] = IdempotencyEntry(id, self._state.digest(new), until)

    def apply(self) -> tuple[Receipt, ...]:
        """Write everything."""
        for (name, key), known in self._keys.items():
            queue = self._state.queues[name]
            queue.keys[key] = known
            cleaned_at = self._state.now + ENDED_KEY_RETENTION if known.ends_with_item else known.until
            queue.keys_until.add(key, (cleaned_at,))
        for (name, source_id), id in self._sources.items():
            remember_source(self._state, self._state.queues[name], source_id, id)
        for step in self._steps:
            if not step.duplicate:
                _write(self._state, step)
            elif step.new.failure is not None and not step.ignored:
                _add_failure(self._state, step)
        return tuple(Receipt(step.id, step.duplicate) for step in self._steps)


def _write(state: State, step: _Step) -> None:
    new, settings = step.new, step.queue.value.settings
    item = Record(
        ids=[step.id],
        queue=step.queue.name,
        status=Status.PENDING,
        payload=new.payload,
        content_type=new.content_type,
        headers=dict(new.headers or {}),
        priority=new.priority,
        put_at=state.now,
        seq=step.number,
        ready_at=ready_instant(state.now, new.delay, new.enqueue_at),
        expire_timeout=new.expire_timeout,
        expire_deadline=new.expire_deadline(state.now, settings.expire_timeout),
        holders=() if new.held_by is None else (ItemHolder(new.held_by, new.hold_is_lasting),),
        idempotency_key=new.idempotency_key,
        overrides=new.overrides,
        source_id=new.source_id,
    )
    state.add(item)
    step.queue.put_total += 1
    append_event(state, FeedKind.PUT, item.queue, item)
    if new.verdict is not None:
        assert new.failure is not None
        step.queue.captured_total += 1
        # It failed outside already, which counts like a failure here.
        apply_verdict(
            state, item, OutcomeKind.FAILED, new.verdict, failure=new.failure, worker=new.failure.worker, note=new.note
        )


def _add_failure(state: State, step: _Step) -> None:
    """Add a failure to a known item. Its status does not change, nor the counters of an active one.

    A capture changes no counters: a retry that waits is put off.
    """
    item, failure, verdict = state.items[step.id], step.new.failure, step.new.verdict
    assert failure is not None
    entry = HistoryEntry(
        at=state.now,
        event=HistoryEvent.FAILED,
        queue=step.queue.name,
        delivery=item.counters.deliveries,
        failure=failure,
        worker=failure.worker,
        note=step.new.note,
    )
    with state.reindex(item):  # if it is due, it is ready now
        item.history.add(entry)
        if step.new.is_capture:
            if item.status in WAITING_STATUSES and isinstance(verdict, RetryVerdict) and verdict.delay:
                item.ready_at = max(item.ready_at, Instant(state.now + verdict.delay))
        elif item.status is not Status.ACTIVE:
            item.counters = count_outcome(item.counters, OutcomeKind.FAILED)
    step.queue.failed_total += 1
    step.queue.captured_total += 1
    append_event(state, FeedKind.FAILED, step.queue.name, item, title=failure.title, failure=failure)
