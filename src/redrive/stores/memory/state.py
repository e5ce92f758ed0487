"""All that the memory store knows, and the one way in which an item changes.

Every change is: take the item out of the indexes, change it, file it again. So an item is in exactly the indexes
that its status calls for, and no verb has to think of them.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from redrive.clock import Instant
from redrive.errors import ItemNotFound, LeaseLost, QueueNotFound
from redrive.model.ids import (
    NUMBERS_PER_MICROSECOND,
    SALT_BITS,
    ItemId,
    Token,
    item_of,
    make_id,
    make_tail,
    parse_id,
    parse_token,
)
from redrive.model.item import Status
from redrive.model.queue import QueueSettings
from redrive.model.transitions import BY_HAND, TRANSITIONS, Verb
from redrive.store import AuditEntry
from redrive.stores.memory.queue_state import QueueState, Source
from redrive.stores.memory.record import WORK, Record


def check_transition(verb: Verb, before: Status | None, after: Status | None, *, forced: bool = False) -> None:
    """Assert that the table of the model has this change. `forced`: a person revokes the lease of an active item."""
    sources, targets = TRANSITIONS[verb]
    revoked = forced and verb in BY_HAND and before is Status.ACTIVE
    assert before in sources or revoked, f"{verb} does not apply to {before}"
    assert after in targets, f"{verb} does not lead from {before} to {after}"


class State:
    """The queues and items of one namespace, and the instant of the transaction that is changing them."""

    def __init__(self, namespace: str, store: str) -> None:
        self.namespace = namespace
        self.store = store
        self.now = Instant(0)
        self.arrivals: Counter[str] = Counter()
        """Items that became leasable in this transaction, by queue."""
        self.retimed: set[str] = set()
        """Queues in which this transaction set a new time at which the next item falls due."""
        self.queues: dict[str, QueueState] = {}
        self.last_versions: dict[str, int] = {}
        """Versions that queues had when they were deleted. A new one of that name goes on from there, so that a
        verdict judged by the settings of the old one is stale."""
        self.items: dict[ItemId, Record] = {}
        """By every id that an item has had: an old id finds the item where it is now."""
        self.held: dict[str, dict[ItemId, None]] = {}
        self.audit: list[AuditEntry] = []
        self._last_number = 0

    # Looking

    def queue(self, name: str) -> QueueState:
        """The queue of that name."""
        queue = self.queues.get(name)
        if queue is None:
            raise QueueNotFound(name, self.namespace)
        return queue

    def settings(self) -> dict[str, QueueSettings]:
        """The settings of every queue."""
        return {name: queue.value.settings for name, queue in self.queues.items()}

    def find(self, id: ItemId) -> Record | None:
        """The item that has or had this id."""
        return self.items.get(ItemId(id.lower()))

    def item(self, id: ItemId) -> Record:
        """The same, where there has to be one."""
        parse_id(id)
        item = self.find(id)
        if item is None:
            raise ItemNotFound(id)
        return item

    def leased(self, token: Token) -> Record:
        """The item that is active under this token: the fence."""
        parse_token(token)
        id = item_of(token)
        item = self.find(id)
        if item is None or item.grant is None or item.grant.token != token.lower():
            raise LeaseLost(id, None if item is None else item.status)
        return item

    # Changing

    def draw_number(self) -> int:
        """The next number of the sequence that ids and places in line are drawn from."""
        self._last_number = max(self._last_number + 1, self.now * NUMBERS_PER_MICROSECOND)
        return self._last_number

    def draw_id(self, number: int) -> ItemId:
        """An id that nobody can guess from another one."""
        return make_id(number, make_tail(secrets.randbits(SALT_BITS)))

    def begin(self, now: Instant) -> None:
        """A transaction begins, at this instant."""
        self.now = now
        self.arrivals.clear()
        self.retimed.clear()

    def add(self, item: Record) -> None:
        """A new item."""
        check_transition(Verb.PUT, None, item.status)
        self.items[item.id] = item
        self._file(item)

    @contextmanager
    def change(self, item: Record, verb: Verb, status: Status, *, forced: bool = False) -> Iterator[None]:
        """Within this, the item has the new status and may be changed. Nothing is touched if the table forbids it."""
        check_transition(verb, item.status, status, forced=forced)
        with self.refile(item):
            item.status = status
            if status is not Status.ACTIVE:
                item.grant = None
            if status not in WORK and status is not Status.ARCHIVED:
                item.held_by = None
            yield

    @contextmanager
    def refile(self, item: Record) -> Iterator[None]:
        """Within this, the item may be changed in ways that matter to the indexes; its status stays."""
        self._unfile(item)
        try:
            yield
        finally:
            self._file(item)

    def to_tail(self, item: Record, delay: int = 0) -> None:
        """Within a change: behind all others that are ready at that instant."""
        item.ready_at = Instant(self.now + delay)
        item.seq = self.draw_number()

    def move(self, item: Record, to: str) -> None:
        """Within a change: to the tail of another queue, under a new id."""
        if item.origin_id is None:
            item.origin_id, item.origin_queue = item.id, item.queue
        item.source_id = item.id
        self.to_tail(item)
        item.ids.append(self.draw_id(item.seq))
        item.queue = to
        item.held_by = None
        self.items[item.id] = item

    def remove(self, item: Record, verb: Verb, *, forced: bool = False) -> None:
        """For good, with every id it has had."""
        check_transition(verb, item.status, None, forced=forced)
        self._unfile(item)
        for id in item.ids:
            del self.items[id]

    def write_audit(
        self, actor: str, verb: str, queue: str | None, ids: tuple[ItemId, ...], count: int, note: str | None = None
    ) -> None:
        """Write down who changed what."""
        self.audit.append(AuditEntry(len(self.audit) + 1, self.now, actor, verb, queue, ids, count, note))

    # The indexes

    def _file(self, item: Record) -> None:
        queue = self.queues[item.queue]
        queue.counts[item.status] += 1
        queue.dead_letters += item.is_dead_letter
        if item.source_id is not None:
            queue.sources.setdefault(item.source_id, Source(item.id))
        match item.status:
            case Status.PENDING | Status.FAILED:
                self._file_work(queue, item)
            case Status.ACTIVE:
                assert item.grant is not None
                queue.leases.add(item.id, (item.grant.deadline, item.seq))
            case Status.COMPLETED:
                assert item.completed_at is not None
                queue.completed.add(item.id, (item.completed_at, item.seq))
            case Status.DEAD:
                queue.dead.add(item.id, (item.deaths[-1].at, parse_id(item.id)[0]))

    def _file_work(self, queue: QueueState, item: Record) -> None:
        due = item.ready_at <= self.now
        if item.held_by is not None:
            self.held.setdefault(item.held_by, {})[item.id] = None
        elif due and item.status is Status.PENDING:
            queue.ready.add(item.id, (-item.priority, item.ready_at, item.seq))
        else:
            queue.waiting.add(item.id, (item.ready_at, item.seq))
            if queue.waiting.first() == item.id:
                self.retimed.add(queue.name)
        if due and item.held_by is None:
            self.arrivals[queue.name] += 1
        if item.expire_deadline is not None:
            queue.expiring.add(item.id, (item.expire_deadline, item.seq))
        if item.is_dead_letter:
            queue.dead.add(item.id, (item.deaths[-1].at, parse_id(item.id)[0]))

    def _unfile(self, item: Record) -> None:
        queue = self.queues[item.queue]
        queue.counts[item.status] -= 1
        queue.dead_letters -= item.is_dead_letter
        for index in (queue.ready, queue.waiting, queue.expiring, queue.leases, queue.completed, queue.dead):
            index.discard(item.id)
        if item.held_by is not None and item.status in WORK:
            held = self.held[item.held_by]
            del held[item.id]
            if not held:
                del self.held[item.held_by]
        if item.source_id is not None:
            source = queue.sources.get(item.source_id)
            if source is not None and source.id == item.id and source.until <= self.now:
                del queue.sources[item.source_id]
