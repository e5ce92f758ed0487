"""Plans: a dry run of an operation, item by item, without changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from redrive.errors import IdempotencyConflict, QueueFull, QueueNotFound, RedriveError
from redrive.model.death import Cause, DeadReason
from redrive.model.ids import ItemId
from redrive.model.item import WAITING_STATUSES, HistoryEvent, Status
from redrive.model.judge import dead_verdict
from redrive.model.limits import is_remote
from redrive.model.manual_change import (
    ItemSnapshot,
    check_manual_change,
    counts_for_max_size,
    move_queue,
    redrive_queue,
    undo_target,
)
from redrive.model.operation import MAX_SAMPLES
from redrive.model.queue import Queue
from redrive.model.state_machine import Verb
from redrive.model.text import format_counts, join_lines, pluralize

MAX_TITLES = 20
"""The maximum number of titles in a plan."""
NO_DEATH = "no death on record"
"""The title for items that never died."""
_ASIDE = (HistoryEvent.ARCHIVED, HistoryEvent.DROPPED)


class OperationPlan(msgspec.Struct, frozen=True):
    """The effect of an operation if it started now. Workers continue concurrently, so the result can soon differ."""

    verb: Verb
    total: int
    """The number of items that match."""
    groups: Mapping[str, int]
    """The causes of death of the items to be changed, with their numbers, the largest first, at most 20."""
    queues: Mapping[str, int]
    """The queues of these items afterwards, with their numbers, the largest first, without removed items."""
    skipped: Mapping[str, int]
    """The number of items that would not be changed, by the code of the error."""
    samples: Mapping[str, tuple[ItemId, ...]]
    """The ids of some of those, by the same code."""
    unhandled: Mapping[str, int] = {}
    """Tasks that no live worker of the target queue of their items has a handler for, with the number of items to be
    changed. It has no entries for a queue without a live worker."""
    limit: int | None = None
    """The maximum number of items to be changed."""

    def __str__(self) -> str:
        return join_lines(
            f"{self.verb}: {self.changed:,} of {pluralize(self.total, 'item')} would be changed",
            f"then in: {format_counts(self.queues)}" if self.queues else None,
            f"left out: {format_counts(self.skipped)}" if self.skipped else None,
            f"no worker knows: {format_counts(self.unhandled)}" if self.unhandled else None,
            *(f"{count:,} × {title}" for title, count in self.groups.items()),
        )

    @property
    def changed(self) -> int:
        """The number of items that would be changed."""
        possible = self.total - sum(self.skipped.values())
        return possible if self.limit is None else min(possible, self.limit)


class PlanSubject(ItemSnapshot, frozen=True, omit_defaults=True, gc=False):
    """The data of one item that a plan reads. Its `last` has no failure and no note."""

    died_in: str | None = None
    """The queue of its last death."""
    cause: Cause | None = None
    """The cause of its last death."""
    home_store: str | None = None
    """As in Item."""
    idempotency_key: str | None = None
    task: str | None = None
    """The task in its header."""


class OperationPlanner:
    """A planner that counts item by item, with little memory for any number of items."""

    def __init__(
        self,
        verb: Verb,
        to: str | None,
        queues: Mapping[str, Queue],
        sizes: Mapping[str, int],
        namespace: str,
        undoes: str | None = None,
        store: str | None = None,
        handlers: Mapping[str, frozenset[str] | None] | None = None,
        limit: int | None = None,
    ) -> None:
        """Create a planner. `sizes` are the sizes of the queues with a max_size, `undoes` is the operation that UNDO
        undoes, `handlers` the tasks that the workers of each queue handle; None if they may handle any."""
        self._verb = verb
        self._to = to
        self._all_queues = queues
        self._sizes = dict(sizes)
        self._namespace = namespace
        self._undoes = undoes
        self._store = store
        self._holders: dict[tuple[str, str], ItemId] = {}
        self._total = 0
        self._groups: Counter[str] = Counter()
        self._titles: dict[str, str] = {}
        """Titles by fingerprint."""
        self._queues: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._samples: dict[str, tuple[ItemId, ...]] = {}
        self._handlers = handlers or {}
        self._unhandled: Counter[str] = Counter()
        self._limit = limit

    @property
    def needs_last_entries(self) -> bool:
        """True if the plan depends on the last entry of histories."""
        return self._verb in (Verb.UNDO, Verb.RESTORE)

    def keys_to_know(self, items: Sequence[PlanSubject]) -> dict[str, list[str]]:
        """Return the idempotency keys of these items, by each possible target queue; pass their holders to `know`."""
        wanted: dict[str, list[str]] = {}
        if self._verb in (Verb.REDRIVE, Verb.RETRY, Verb.MOVE):
            for item in items:
                if item.idempotency_key is None:
                    continue
                for queue in {item.queue, item.died_in or item.queue} if self._to is None else {self._to}:
                    if queue in self._all_queues:
                        wanted.setdefault(queue, []).append(item.idempotency_key)
        return wanted

    def know(self, queue: str, holders: Mapping[str, ItemId]) -> None:
        """Record the items that hold idempotency keys in a queue, by key."""
        self._holders.update({(queue, key): id for key, id in holders.items()})

    def add(self, item: PlanSubject) -> None:
        """Count one more item that matches."""
        self._total += 1
        if self._limit is not None and self._total - self._skipped.total() > self._limit:
            return
        try:
            queue = self._queue_after(item)
        except RedriveError as refusal:
            self._skipped[refusal.code] += 1
            samples = self._samples.get(refusal.code, ())
            if len(samples) < MAX_SAMPLES:
                self._samples[refusal.code] = (*samples, item.id)
            return
        self._groups[NO_DEATH if item.cause is None else self._title(item.cause)] += 1
        if queue is not None:
            self._queues[queue] += 1
            known = self._handlers.get(queue)
            if known is not None and item.task is not None and item.task not in known:
                self._unhandled[item.task] += 1

    def result(self) -> OperationPlan:
        """Return the plan for the items counted so far."""
        return OperationPlan(
            self._verb,
            self._total,
            dict(self._groups.most_common(MAX_TITLES)),
            dict(self._queues.most_common()),
            dict(self._skipped.most_common()),
            dict(self._samples),
            dict(self._unhandled.most_common(MAX_TITLES)),
            self._limit,
        )

    def _title(self, cause: Cause) -> str:
        """Return the title of a group, computed once because it takes longer than all other work for an item."""
        if cause.fingerprint not in self._titles:
            self._titles[cause.fingerprint] = cause.group_title
        return self._titles[cause.fingerprint]

    def _queue_after(self, item: PlanSubject) -> str | None:
        check_manual_change(self._verb, item, force=False, undoes=self._undoes)
        match self._verb:
            case Verb.REDRIVE:
                died_in = item.died_in or item.queue
                to = redrive_queue(item, died_in, self._to, home=item.home_store, store=self._store)
                return to if is_remote(to) else self._with_room(item, to)
            case Verb.RETRY:
                return self._with_room(item, item.queue)
            case Verb.MOVE:
                to = move_queue(item, self._to)
                if is_remote(to):
                    return to
                self._known(to)
                return to if item.status is Status.DEAD else self._with_room(item, to)
            case Verb.RESTORE:
                return self._restored(item)
            case Verb.UNDO:
                assert item.last is not None
                return self._restored(item) if item.is_dropped else self._known(undo_target(item.last)[0])
            case Verb.BURY:
                verdict = dead_verdict(self._all_queues[self._known(item.queue)].settings, DeadReason.BURIED)
                return None if verdict.drop else verdict.to or item.queue
            case Verb.PURGE:
                return None
            case _:
                return item.queue

    def _with_room(self, item: PlanSubject, queue: str) -> str:
        """Return the queue if it has room for the item, after the items planned before it; raise if it has not."""
        max_size = self._all_queues[self._known(queue)].settings.max_size
        if not counts_for_max_size(item, queue):
            return queue
        size = self._sizes.get(queue, 0)
        if max_size is not None and size >= max_size:
            raise QueueFull(queue, size, max_size)
        if (key := item.idempotency_key) is not None and self._holders.get((queue, key), item.id) != item.id:
            raise IdempotencyConflict(queue, key, self._holders[queue, key])
        self._sizes[queue] = size + 1
        return queue

    def _restored(self, item: PlanSubject) -> str:
        """Return the queue if it has room for an item that is pending or failed after its restore; raise if not."""
        last = item.last
        size, max_size = self._sizes.get(item.queue, 0), self._all_queues[self._known(item.queue)].settings.max_size
        if last is not None and last.event in _ASIDE and last.from_status in WAITING_STATUSES:
            if max_size is not None and size >= max_size:
                raise QueueFull(item.queue, size, max_size)
            self._sizes[item.queue] = size + 1
        return item.queue

    def _known(self, queue: str) -> str:
        if queue not in self._all_queues:
            raise QueueNotFound(queue, self._namespace)
        return queue
