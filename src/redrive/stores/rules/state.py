"""The state of a namespace, and the only way to change an item.

Every change removes the item from the indexes, changes it, and indexes it again. So an item is in exactly the indexes
that its status calls for, and no verb has to maintain them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from heapq import nsmallest
from itertools import islice

from redrive.clock import Instant
from redrive.contract.item_calls import NewItem
from redrive.contract.queries import AuditEntry
from redrive.errors import ItemNotFound, LeaseLost, QueueNotFound, WrongQueue
from redrive.model.filter import Filter, Order
from redrive.model.holder import lasting_holders
from redrive.model.ids import (
    NUMBERS_PER_MICROSECOND,
    SALT_BITS,
    ItemId,
    Token,
    item_id_of,
    make_id,
    make_id_suffix,
    parse_id,
    parse_token,
    result_topic,
)
from redrive.model.item import Status
from redrive.model.limits import make_address, split_address
from redrive.model.queue import QueueSettings
from redrive.model.state_machine import Verb, check_transition
from redrive.stores.rules.find import FoundItems, named, select
from redrive.stores.rules.indexes import NumberIndex
from redrive.stores.rules.queue_state import QueueState, SourceEntry
from redrive.stores.rules.record import DeadLetterKey, Record
from redrive.stores.rules.tables import Feed, Groups, OperationTable, RegistrationTable, ResultTable


@dataclass(eq=False)
class State:
    """The queues and items of one namespace, and the instant of the transaction that is changing them.

    Its parts are in memory unless a store supplies its own.
    """

    namespace: str
    store: str
    _: KW_ONLY
    queues: MutableMapping[str, QueueState] = field(default_factory=dict)
    items: MutableMapping[ItemId, Record] = field(default_factory=dict)
    """Items by every id they have had: an old id finds the current item."""
    by_number: NumberIndex = field(default_factory=NumberIndex)
    """All items, by the number in their id."""
    letters: NumberIndex = field(default_factory=NumberIndex)
    """Dead letters, by the number of their death."""
    archived: NumberIndex = field(default_factory=NumberIndex)
    """Archived items, by the number of their death or archiving."""
    groups: Groups = field(default_factory=Groups)
    feed: Feed = field(default_factory=Feed)
    operations: OperationTable = field(default_factory=OperationTable)
    registrations: RegistrationTable = field(default_factory=RegistrationTable)
    results: ResultTable = field(default_factory=ResultTable)
    last_version: int = 0
    """The last version of any queue's settings: a verdict by the settings of another or deleted queue is stale."""

    def __post_init__(self) -> None:
        self.now = Instant(0)
        self.arrivals: Counter[str] = Counter()
        """Items that became leasable in this transaction, by queue."""
        self.retimed: set[str] = set()
        """Queues in which this transaction changed the time at which the next item is due."""
        self.ended: set[str] = set()
        """Result topics of items that died or whose result was kept in this transaction."""
        self.held: dict[str, dict[ItemId, None]] = {}
        self.moving: dict[str, dict[ItemId, None]] = {}
        """Items that are moving, by destination, in the order in which they left."""
        self.open_moves: dict[str, dict[ItemId, None]] = {}
        """Ids of items that arrived from other stores, which may still have them, by `QUEUE@STORE`: their queue here,
        and the store that they came from."""
        self.audit: list[AuditEntry] = []
        self._last_number = 0

    # Reading

    def queue(self, name: str) -> QueueState:
        """Return the queue of that name."""
        queue = self.queues.get(name)
        if queue is None:
            raise QueueNotFound(name, self.namespace)
        return queue

    def settings(self) -> dict[str, QueueSettings]:
        """Return the settings of every queue."""
        return {name: queue.value.settings for name, queue in self.queues.items()}

    def find(self, id: ItemId) -> Record | None:
        """Return the item that has or had this id."""
        return self.items.get(ItemId(id.lower()))

    def item(self, id: ItemId) -> Record:
        """Return the item that has or had this id. Raises ItemNotFound."""
        parse_id(id)
        item = self.find(id)
        if item is None:
            raise ItemNotFound(id)
        return item

    def leased(self, token: Token, queue: str | None = None) -> Record:
        """Return the item that is active under this token, the fencing token. With `queue`, only from that queue."""
        parse_token(token)
        id = item_id_of(token)
        item = self.find(id)
        if item is None or item.grant is None or item.grant.token != token.lower():
            raise LeaseLost(id, None if item is None else item.status)
        if queue is not None and item.queue != queue:
            raise WrongQueue(id, item.queue, queue)
        return item

    def held_ids(self, held_by: str, limit: int) -> list[ItemId]:
        """Return up to `limit` ids of items that have this holder."""
        return list(islice(self.held.get(held_by, ()), limit))

    def destinations(self) -> list[str]:
        """Return the queues of other stores to which items are moving."""
        return sorted(self.moving)

    def moving_ids(self, to: str, limit: int) -> list[ItemId]:
        """Return the items that left first for a queue in another store."""
        return list(islice(self.moving.get(to, ()), limit))

    def open_move_ids(self, queue: str, store: str, after: str, limit: int) -> list[ItemId]:
        """Return ids of another store, which it may still have, of items that came to a queue; in order, after one."""
        known = self.open_moves.get(make_address(queue, store), {})
        return nsmallest(limit, (id for id in known if id > after))

    def lock_keys(self, queue: QueueState, keys: Sequence[str]) -> None:
        """Lock idempotency keys before they are read, where a transaction does not lock the namespace."""

    def load_keys(self, queue: QueueState, keys: Sequence[str]) -> None:
        """Read idempotency keys that will be examined, with the items that they end with, together."""

    def walk(self, where: Filter, order: Order, after: int | None) -> Iterator[tuple[int, Record]]:
        """Return candidates for a filter, with their positions: all matches, and for a filter by ids or an operation,
        only the items that it names."""
        if where.ids is not None:
            found = named(self, where.ids, where, order, after)
        elif where.id_prefix is not None:
            found = named(self, (id for id in self.items if id.startswith(where.id_prefix)), where, order, after)
        else:
            letters = self.letters if where.status is Status.DEAD else self.archived
            shelf = letters if where.is_for_dead_letters else self.by_number
            found = shelf.newest(after) if order is Order.NEWEST else shelf.oldest(after)
        if (operation := where.operation) is None:
            return found
        return (each for each in found if self.operations.changed(operation, each[1]))

    def select(
        self, where: Filter, order: Order, limit: int, after: int | None = None, *, up_to: int | None = None
    ) -> FoundItems:
        """Return the next items that match, after a position and up to another one. Raises QueueNotFound."""
        return select(self, where, order, limit, after, up_to=up_to)

    # Changing

    def draw_number(self) -> int:
        """Allocate the next number of the sequence for ids and positions."""
        self._last_number = max(self._last_number + 1, self.now * NUMBERS_PER_MICROSECOND)
        return self._last_number

    def next_version(self) -> int:
        """Allocate a version that no settings had."""
        self.last_version += 1
        return self.last_version

    def allocate_id(self, number: int) -> ItemId:
        """Return a new id that cannot be guessed from another one."""
        return make_id(number, make_id_suffix(secrets.randbits(SALT_BITS)))

    def digest(self, new: NewItem) -> bytes:
        """Return what distinguishes two items with one idempotency key."""
        return hashlib.sha256(new.content_type.encode() + b"\0" + new.payload).digest()

    def aside_key(self, item: Record) -> str:
        """Return the key that keeps the entry of a dropped item's idempotency key. No key of a put has a NUL."""
        return f"\0{item.ids[0]}"

    def begin(self, now: Instant) -> None:
        """Start a transaction at this instant."""
        self.now = now
        self.arrivals.clear()
        self.retimed.clear()
        self.ended.clear()

    def add(self, item: Record) -> None:
        """Add a new item, in its current status."""
        self.items[item.id] = item
        self.by_number.add(item.number, item)
        self._index(item)
        self._regroup(item, None, item.dead_letter_key)

    @contextmanager
    def change(self, item: Record, verb: Verb, status: Status, *, forced: bool = False) -> Iterator[None]:
        """Set the new status of an item, which may be changed within this context. A forbidden transition changes
        nothing."""
        check_transition(verb, item.status, status, forced=forced)
        with self.reindex(item):
            item.status = status
            if status is not Status.ACTIVE:
                item.grant = None
            if status is Status.DEAD:
                item.holders = lasting_holders(item.holders)
            elif status is Status.COMPLETED:
                item.holders = ()
            if status is not Status.MOVING:
                item.route = None
            yield

    @contextmanager
    def reindex(self, item: Record) -> Iterator[None]:
        """Index an item again after this context, in which indexed fields other than the status may be changed."""
        letter = item.dead_letter_key
        self._unindex(item)
        try:
            yield
        finally:
            self._index(item)
            self._regroup(item, letter, item.dead_letter_key)

    def index_words(self, item: Record) -> None:
        """Index a dead letter by the words of its last death and its payload. Call it within a change."""
        item.words = item.words_of_death()

    def open_move(self, queue: str, store: str, source_id: ItemId) -> None:
        """Record that an item came to a queue from another store, which still has it."""
        self.open_moves.setdefault(make_address(queue, store), {})[source_id] = None

    def close_move(self, queue: str, store: str, source_id: ItemId) -> None:
        """Record that the other store no longer has the item."""
        address = make_address(queue, store)
        ids = self.open_moves.get(address, {})
        ids.pop(source_id, None)
        if not ids:
            self.open_moves.pop(address, None)

    def forget_open_moves(self, queue: str) -> None:
        """Forget the open moves of a queue that is deleted."""
        for address in [address for address in self.open_moves if split_address(address)[0] == queue]:
            del self.open_moves[address]

    def to_tail(self, item: Record, delay: int = 0) -> None:
        """Move an item behind all others that are ready at that instant. Call it within a change."""
        item.ready_at = Instant(self.now + delay)
        item.seq = self.draw_number()

    def move(self, item: Record, to: str) -> None:
        """Move an item to the tail of another queue, under a new id; ready_at stays. Call it within a change."""
        if item.origin_id is None:
            item.origin_id, item.origin_queue = item.id, item.queue
        item.source_id = item.id
        self.by_number.discard(item.number, item)
        item.seq = self.draw_number()
        item.ids.append(self.allocate_id(item.seq))
        item.queue = to
        self.items[item.id] = item
        self.by_number.add(item.number, item)

    def remove(self, item: Record, verb: Verb, *, forced: bool = False) -> None:
        """Remove an item permanently, with every id it has had."""
        check_transition(verb, item.status, None, forced=forced)
        letter = item.dead_letter_key
        self._unindex(item)
        self.by_number.discard(item.number, item)
        for id in item.ids:
            del self.items[id]
        self._regroup(item, letter, None)

    def remove_all(self, queue: str) -> None:
        """Remove every item of a queue permanently, in any status."""
        for item in [item for id, item in self.items.items() if item.queue == queue and item.id == id]:
            self.remove(item, Verb.DROP, forced=True)

    def sweep_removed(self, limit: int) -> int:
        """Free the storage of up to `limit` items of deleted queues. Returns how many."""
        return 0

    def wake_awaiting(self, item: Record) -> None:
        """Wake callers that await the end of the item, under every id it has had."""
        self.ended.update(map(result_topic, item.ids))

    def write_audit(
        self, actor: str, verb: str, queue: str | None, ids: tuple[ItemId, ...], count: int, note: str | None = None
    ) -> None:
        """Write an audit row."""
        self.audit.append(AuditEntry(len(self.audit) + 1, self.now, actor, verb, queue, ids, count, note))

    # The indexes

    def _regroup(self, item: Record, before: DeadLetterKey | None, after: DeadLetterKey | None) -> None:
        """Move an item between groups. If its key is unchanged, it does not leave its group even temporarily."""
        if before == after:
            return
        if before is not None:
            self.groups.leave(before)
        if after is not None:
            self.groups.join(after, item)

    def _index(self, item: Record) -> None:
        queue = self.queues[item.queue]
        queue.counts[item.status] += 1
        queue.dead_letters += item.is_dead_letter
        if item.is_dead_letter:
            self.letters.add(item.death_number, item)
        if item.is_found_by_holder:
            self._file_held(item)
        if item.source_id is not None:
            queue.sources.setdefault(item.source_id, SourceEntry(item.id))
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
                queue.dead.add(item.id, (item.deaths[-1].at, item.number))
            case Status.MOVING:
                self._file_moving(item)
            case Status.ARCHIVED:
                self.archived.add(item.death_number, item)
                index = queue.dropped if item.is_dropped else queue.archived
                index.add(item.id, (item.retained_from, item.number))

    def _file_work(self, queue: QueueState, item: Record) -> None:
        due = item.ready_at <= self.now
        if due and not item.holders and item.status is Status.PENDING:
            queue.ready.add(item.id, (-item.priority, item.ready_at, item.seq))
        elif not item.holders:
            queue.waiting.add(item.id, (item.ready_at, item.seq))
            self._reindex_times(queue, item)
        if due and not item.holders:
            self.arrivals[queue.name] += 1
        if item.expire_deadline is not None:
            queue.expiring.add(item.id, (item.expire_deadline, item.seq))
        if item.is_dead_letter:
            queue.dead.add(item.id, (item.deaths[-1].at, item.number))

    def _unindex(self, item: Record) -> None:
        queue = self.queues[item.queue]
        queue.counts[item.status] -= 1
        queue.dead_letters -= item.is_dead_letter
        for index in queue.indexes_of(item.status):
            index.discard(item.id)
        if item.is_dead_letter:
            self.letters.discard(item.death_number, item)
        if item.status is Status.ARCHIVED:
            self.archived.discard(item.death_number, item)
        if item.is_found_by_holder:
            self._unfile_held(item)
        if item.route is not None:
            self._unfile_moving(item)
        if item.source_id is not None:
            source = queue.sources.get(item.source_id)
            if source is not None and source.id == item.id and source.until <= self.now:
                del queue.sources[item.source_id]

    def _file_held(self, item: Record) -> None:
        for name, _ in item.holders:
            self.held.setdefault(name, {})[item.id] = None

    def _unfile_held(self, item: Record) -> None:
        for name, _ in item.holders:
            del self.held[name][item.id]
            if not self.held[name]:
                del self.held[name]

    def _file_moving(self, item: Record) -> None:
        assert item.route is not None
        self.moving.setdefault(item.route.to, {})[item.id] = None

    def _unfile_moving(self, item: Record) -> None:
        assert item.route is not None
        moving = self.moving[item.route.to]
        del moving[item.id]
        if not moving:
            del self.moving[item.route.to]

    def _reindex_times(self, queue: QueueState, item: Record) -> None:
        """Record that the queue has a new due time, if the waiting item is its first."""
        if queue.waiting.first() == item.id:
            self.retimed.add(queue.name)
