"""Every query and the type of its answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from redrive.clock import Instant
from redrive.contract.admin_calls import Registration
from redrive.contract.base import MAINTENANCE_BATCH, StoreQuery
from redrive.model.arrival import Move
from redrive.model.death import DeadReason
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.filter import Filter, Order
from redrive.model.group import Group
from redrive.model.ids import ItemId, Token, item_id_of
from redrive.model.item import Counters, Item, KeptResult, Lease, Overrides
from redrive.model.operation import Operation
from redrive.model.operation_plan import PlanSubject
from redrive.model.queue import Queue, QueueStats
from redrive.model.text import format_instant, join_lines, pluralize


class GetQueue(StoreQuery[Queue], frozen=True):
    """→ Queue. Raises QueueNotFound."""

    name: str


class ListQueues(StoreQuery[tuple[Queue, ...]], frozen=True):
    """→ tuple[Queue, …] by name."""


class GetStats(StoreQuery[QueueStats], frozen=True):
    """→ QueueStats. Raises QueueNotFound."""

    name: str


class ListStats(StoreQuery[tuple[QueueStats, ...]], frozen=True):
    """→ tuple[QueueStats, …] by name: of all queues, or of those of these names that exist. At most MAX_BATCH names.

    One statement, or one round trip, for any number of queues up to MAX_BATCH.
    """

    names: tuple[str, ...] | None = None


class GetItem(StoreQuery[Item], frozen=True):
    """→ Item with history and deaths. A former id is resolved to the item. Raises ItemNotFound."""

    id: ItemId

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return (self.id,)


class GetItems(StoreQuery[tuple[Item | None, ...]], frozen=True):
    """→ tuple[Item | None, …]: for each id, in order, the item as GetItem returns it, or None if no such item exists.

    At most MAX_BATCH ids. A server may answer for the first ids only, at least one: ask again for the rest.
    """

    ids: tuple[ItemId, ...]

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return self.ids


class Page(msgspec.Struct, frozen=True):
    """A page of results."""

    items: tuple[Item, ...]
    cursor: str | None
    """The cursor of the next page; None after the last one. A short page with a cursor is not the last one."""

    def __str__(self) -> str:
        more = "" if self.cursor is None else "; there are more: pass on page.cursor"
        return join_lines(f"{pluralize(len(self.items), 'item')}{more}", *map(_in_short, self.items))


class FindItems(StoreQuery[Page], frozen=True):
    """→ Page. Items that match, in order, after `cursor`. Examines at most MAX_EXAMINED.

    Dead letters and archived items are ordered by death, others by put or move. An item that matches during all pages
    and keeps its position appears exactly once; one that dies again in a dead queue, or moves, is at the end from then
    on. Raises QueueNotFound if the filter names a queue that does not exist, InvalidInput for a cursor of another
    query.
    """

    where: Filter
    order: Order = Order.NEWEST
    limit: int = 50
    cursor: str | None = None


class PlanPage(msgspec.Struct, frozen=True):
    """A page of items with what plans need of them, and the cursor of the next page."""

    items: tuple[PlanSubject, ...]
    cursor: str | None


class FindPlanSubjects(StoreQuery[PlanPage], frozen=True):
    """→ PlanPage. The items that FindItems finds, oldest first, with only the fields that a plan needs. Cursors and
    errors are those of FindItems. `last` is None unless `with_last`."""

    where: Filter
    with_last: bool = False
    limit: int = 50
    cursor: str | None = None


class Counted(msgspec.Struct, frozen=True):
    """A count, or a part of one: the sum over all cursors is the count."""

    count: int
    cursor: str | None


class CountItems(StoreQuery[Counted], frozen=True):
    """→ Counted. How many items match, after `cursor`. Examines at most MAX_EXAMINED; dead letters filtered only by
    `queue` or `fingerprint` are counted without examining them."""

    where: Filter
    cursor: str | None = None


class ListGroups(StoreQuery[tuple[Group, ...]], frozen=True):
    """→ tuple[Group, …]: the dead letters of a queue, or of all, by fingerprint; the largest first, then the newest,
    then by fingerprint. Raises QueueNotFound."""

    queue: str | None = None
    limit: int = 100


class FeedPage(msgspec.Struct, frozen=True):
    """A page of the feed."""

    entries: tuple[FeedEntry, ...]
    last: int
    """The number to resume after: of the last examined entry, matching or not."""
    more: bool
    """True if there are entries beyond."""

    def __str__(self) -> str:
        count = "1 entry" if len(self.entries) == 1 else f"{len(self.entries):,} entries"
        return join_lines(f"{count}{'; there are more' if self.more else ''}", *map(str, self.entries))


class ReadFeed(StoreQuery[FeedPage], frozen=True):
    """→ FeedPage. Entries after a number, oldest first. Examines at most MAX_EXAMINED.

    `id` selects one item, by any id it had; `before` without `after` returns the newest entries before a number, still
    oldest first.
    """

    after: int | None = None
    limit: int = 100
    queue: str | None = None
    id: ItemId | None = None
    kinds: tuple[FeedKind, ...] | None = None
    operation: str | None = None
    before: int | None = None

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return () if self.id is None else (self.id,)


class GetIdempotencyOwners(StoreQuery[Mapping[str, ItemId]], frozen=True):
    """→ Mapping[str, ItemId]: for each of these idempotency keys that has not expired and that a pending, failed or
    active item of the queue holds, that item. Raises QueueNotFound."""

    queue: str
    keys: tuple[str, ...]


class GetItemsByKey(StoreQuery[tuple[Item | None, ...]], frozen=True):
    """→ tuple[Item | None, …]: for each idempotency key of the queue, in order, the item that a put under it would be a
    duplicate of, also if it moved to another queue, as GetItem returns it; None if the key is not known, or the item
    was deleted. Raises QueueNotFound.

    At most MAX_BATCH keys. A server may answer for the first keys only, at least one: ask again for the rest.
    """

    queue: str
    keys: tuple[str, ...]


class GetOperation(StoreQuery[Operation], frozen=True):
    """→ Operation. Raises OperationNotFound."""

    id: str


class ListOperations(StoreQuery[tuple[Operation, ...]], frozen=True):
    """→ tuple[Operation, …], newest first; with `unfinished` only those that have not ended, with `active_only` only
    those that are running or watching."""

    unfinished: bool = False
    limit: int = 100
    active_only: bool = False


class Overdue(msgspec.Struct, frozen=True, omit_defaults=True):
    """An expired lease (with token) or item (without), with all that the judge needs."""

    id: ItemId
    queue: str
    counters: Counters
    overrides: Overrides
    token: Token | None
    expired: bool
    worker: str | None = None
    dead_reason: DeadReason | None = None
    """As in Lease."""


class GetOverdue(StoreQuery[tuple[Overdue, ...]], frozen=True):
    """→ tuple[Overdue, …]: expired leases, and expired pending or failed items; oldest first."""

    queue: str | None = None
    limit: int = MAINTENANCE_BATCH


class GetLease(StoreQuery[Lease], frozen=True):
    """→ Lease, as the token's holder received it. Raises LeaseLost. For judging if only the token is known."""

    token: Token

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return (item_id_of(self.token),)


class GetLeases(StoreQuery[tuple[Lease | None, ...]], frozen=True):
    """→ tuple[Lease | None, …]: for each token, in order, the lease as GetLease returns it, or None if it is lost.

    At most MAX_BATCH tokens. A server may answer for the first tokens only, at least one: ask again for the rest.
    """

    tokens: tuple[Token, ...]

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return tuple(map(item_id_of, self.tokens))


class GetLeasedItem(StoreQuery[Item], frozen=True):
    """→ Item that the token holds, as GetItem returns it. Raises LeaseLost. For a consumer that may not read others."""

    token: Token

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return (item_id_of(self.token),)


class ListWorkerLeases(StoreQuery[tuple[Lease, ...]], frozen=True):
    """→ tuple[Lease, …]: leases of workers of that name, as GetLease returns them; by time of the lease, then by
    position. Examines every lease."""

    worker: str
    limit: int = MAINTENANCE_BATCH


class GetResult(StoreQuery[KeptResult | None], frozen=True):
    """→ KeptResult | None: the result that Complete kept, until it expires.

    Any id of the item in this store finds it: the id of the put also after a death and a redrive.
    """

    id: ItemId


class ListRegistrations(StoreQuery[tuple[Registration, ...]], frozen=True):
    """→ tuple[Registration, …] by name: those of a kind, or the one of a name, that have not expired."""

    kind: str
    name: str | None = None


class AuditEntry(msgspec.Struct, frozen=True):
    """A manual change, or one by the settings of a queue, with its actor."""

    number: int
    at: Instant
    actor: str
    verb: str
    queue: str | None
    ids: tuple[ItemId, ...]
    count: int
    note: str | None = None

    def __str__(self) -> str:
        where = "" if self.queue is None else f" in {self.queue}"
        told = "" if self.note is None else f": {self.note}"
        return f"{format_instant(self.at)} {self.actor}: {self.verb}, {pluralize(self.count, 'item')}{where}{told}"


class ListAudit(StoreQuery[tuple[AuditEntry, ...]], frozen=True):
    """→ tuple[AuditEntry, …], newest first, those before `before` (a `number`)."""

    limit: int = 100
    before: int | None = None


class MoveTarget(msgspec.Struct, frozen=True):
    """A queue of another store to which items are moving."""

    to: str
    """`name@store`."""
    since: Instant
    """The instant since which the first of them is moving."""


class ListMoveTargets(StoreQuery[tuple[MoveTarget, ...]], frozen=True):
    """→ tuple[MoveTarget, …] by address: queues of other stores to which items are moving."""


class ListMoves(StoreQuery[tuple[Move, ...]], frozen=True):
    """→ tuple[Move, …]: items that are moving to one queue, or to any; oldest first.

    At most `limit`, and no more once their payloads come to MOVE_BATCH_BYTES.
    """

    to: str | None = None
    limit: int = 100


class OpenMove(msgspec.Struct, frozen=True):
    """An item that was received, and that the other store may still have."""

    queue: str
    source_id: ItemId


class ListOpenMoves(StoreQuery[tuple[OpenMove, ...]], frozen=True):
    """→ tuple[OpenMove, …] by source_id, those after `after`: moves from a store that were received and not closed."""

    store: str
    limit: int = 100
    after: ItemId | None = None


class GetNextDue(StoreQuery[Instant | None], frozen=True):
    """→ Instant | None: when maintenance next has work (an item is due or expires, a lease expires, the next step of an
    operation may run)."""


Query = (
    GetQueue
    | ListQueues
    | GetStats
    | ListStats
    | GetItem
    | GetItems
    | FindItems
    | FindPlanSubjects
    | CountItems
    | ListGroups
    | ReadFeed
    | GetIdempotencyOwners
    | GetItemsByKey
    | GetOperation
    | ListOperations
    | GetOverdue
    | GetLease
    | GetLeases
    | GetLeasedItem
    | ListWorkerLeases
    | GetResult
    | ListRegistrations
    | ListAudit
    | ListMoveTargets
    | ListMoves
    | ListOpenMoves
    | GetNextDue
)


def matches_feed_query(query: ReadFeed, ids: Collection[ItemId] | None, entry: FeedEntry) -> bool:
    """Return whether a feed query selects this entry. `ids` are all ids of the item that it names."""
    return (
        (query.queue is None or entry.queue == query.queue)
        and (query.kinds is None or entry.kind in query.kinds)
        and (query.operation is None or entry.operation == query.operation)
        and (ids is None or entry.id in ids or entry.source_id in ids)
    )


def _in_short(item: Item) -> str:
    told = "" if item.death is None else f" {item.death.cause.title}"
    return f"{item.id} {item.queue} {item.status}{told}"
