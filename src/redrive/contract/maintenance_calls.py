"""Calls of maintenance, of moves between stores, and of imports."""

from __future__ import annotations

from redrive.contract.base import MAINTENANCE_BATCH, Rank, StoreCall
from redrive.contract.item_calls import StaleSettings
from redrive.model.arrival import Move
from redrive.model.ids import ItemId
from redrive.model.item import Item, Receipt, Settled
from redrive.model.judge import Verdict


class Import(StoreCall[tuple[Receipt, ...]], frozen=True):
    """→ tuple[Receipt, …], one for each item, in order. All of them, or none. At most MAX_BATCH items.

    Each becomes an item of `queue` under a new id, with source_id = its id and without former ids. Everything else is
    unchanged: status (active and completed items become pending), payload, headers, priority, counters, history,
    deaths, origin (its own id and queue if it has none). An item that is dead, archived, or was a dead letter with a
    death record in a dead queue is a dead letter here if its status is dead or the queue is a dead queue. Idempotency
    keys and leases are not imported. An item whose (queue, source_id) is known is ignored, as is one of this namespace
    that is or was in the queue: its receipt is a duplicate.
    `QueueFull`, `QueueNotFound`.
    """

    rank = Rank.IMPORTS
    is_repeatable = True
    takes_space = True

    queue: str
    items: tuple[Item, ...]
    actor: str

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return tuple(item.id for item in self.items)


class Receive(StoreCall[Receipt], frozen=True):
    """→ Receipt. An item that is moving in another store, called `store`, arrives here: the second step of its move.

    It gets a new id, with source_id = its id there; its former ids and its idempotency key are dropped, everything else
    is unchanged. By a death: pending at the end of the queue, a dead letter, and the queue becomes a dead queue;
    max_size is ignored. By a redrive: pending at the end, with the expire deadline of this queue. By a move: as by
    MOVE. The arrival is recorded under (queue, source_id) until CloseMove says that the other store has deleted its
    item: in that time it is not received again, and the first receipt is returned as a duplicate, regardless of the
    item's status here. `QueueFull`, except for a death; `QueueNotFound`. ARRIVED in the feed.
    """

    rank = Rank.IMPORTS
    is_repeatable = True
    takes_space = True

    queue: str
    move: Move
    store: str


class FinishMove(StoreCall[int], frozen=True):
    """→ int, how many. Items of these ids that are moving were received elsewhere, and are removed; others stay."""

    rank = Rank.MAINTENANCE
    is_repeatable = True

    ids: tuple[ItemId, ...]

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return self.ids


class CloseMove(StoreCall[int], frozen=True):
    """→ int, how many. The other store has deleted the items that came from there under these ids: what Receive
    recorded is deleted after LEDGER_RETENTION. Idempotent. `QueueNotFound`.
    """

    rank = Rank.MAINTENANCE
    is_repeatable = True

    queue: str
    store: str
    source_ids: tuple[ItemId, ...]


class Promote(StoreCall[int], frozen=True):
    """→ int, how many. Due scheduled and failed items of all queues become ready."""

    rank = Rank.MAINTENANCE
    is_repeatable = True
    runs_beside_others = True

    limit: int = MAINTENANCE_BATCH


class Expire(StoreCall[Settled | StaleSettings], frozen=True):
    """→ Settled | StaleSettings. A pending or failed item whose expire_deadline ≤ now is settled as the verdict says.

    `WrongStatus` or `ItemNotFound` if that no longer holds.
    """

    rank = Rank.MAINTENANCE

    id: ItemId
    verdict: Verdict
    version: int

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return (self.id,)


class ApplyRetention(StoreCall[int], frozen=True):
    """→ int, how many rows were changed or deleted. By the settings of each queue: archives dead letters past
    archive_after, deletes completed items past keep_completed, dead letters past keep_dead, archived items past
    keep_archived (counted from the death or completion, else from the archiving) and dropped ones past keep_dropped,
    each with an audit row, all except completed ones in the feed. Also deletes
    expired idempotency keys, and those that end with their items at most ENDED_KEY_RETENTION later; registrations and
    results, feed entries past FEED_RETENTION, operations that ended OPERATION_RETENTION ago, and search terms of former
    dead letters; and rolls up counts. A store may remove the items of a deleted queue here, and then counts them.
    """

    rank = Rank.MAINTENANCE
    is_repeatable = True

    limit: int = MAINTENANCE_BATCH


MaintenanceCall = Import | Receive | FinishMove | CloseMove | Promote | Expire | ApplyRetention
