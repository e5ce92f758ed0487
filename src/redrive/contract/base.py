"""The base of all calls and queries, with the facts that each states, and the named constants of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args

import msgspec

from redrive.model.duration import DAY
from redrive.model.ids import ItemId
from redrive.model.limits import MIB

if TYPE_CHECKING:
    from redrive.contract.item_calls import Put

MAINTENANCE_BATCH = 1000
"""Maximum number of items in one call of maintenance, or one manual change."""
SAME_CALL = "(of this call)"
"""Replaces the id of an item that conflicts with another one of the same call: neither was put."""
ENDED_KEY_RETENTION = DAY
"""How long at most the key of an ended item takes up space if idempotency_timeout is `item`. A put does not find it."""
LEDGER_RETENTION = 7 * DAY
"""How long the source_id of an imported item is known at least; longer for as long as the item is in that queue."""
MOVE_BATCH_BYTES = 8 * MIB
"""Maximum size of payloads that are moved to another store together, unless a single one is larger."""
FEED_RETENTION = 7 * DAY
"""How long entries of the feed are kept."""
OPERATION_RETENTION = 30 * DAY
"""How long an operation can be read and undone after its end."""
RETENTION_ACTOR = "retention"
"""The actor of archiving and deleting by the settings of a queue, in the audit and the feed."""
DROP_ACTOR = "on_dead"
"""The actor of dropping dead items by the settings of a queue, in the audit."""

Given = TypeVar("Given", covariant=True)


class Rank(IntEnum):
    """When a call takes effect: calls of one batch by rank, within a rank in the order of the batch."""

    QUEUES = 0
    PUTS = 1
    REGISTRATIONS = 2
    IMPORTS = 3
    HELD_ITEMS = 4
    SETTLES = 5
    MANUAL_CHANGES = 6
    OPERATIONS = 7
    MAINTENANCE = 8
    LEASES_BY_ID = 9
    LEASES = 10


class TaggedStruct(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of calls, queries and their parts. `redrive.wire` encodes each with the name of its type, omits
    defaults, and refuses unknown fields."""


class StoreQuery(TaggedStruct, Generic[Given], frozen=True):
    """The base of queries: `StoreQuery[what it gives]`."""

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        """Ids of items that it names and reads. A store may read them together, before all else."""
        return ()


class StoreCall(TaggedStruct, Generic[Given], frozen=True):
    """The base of calls: `StoreCall[what it gives unless it is refused]`, and what others need to know of each.

    A call states what differs from the answers here, which are the careful ones. Its rank it states in any case.
    A field `actor` names who makes the call, a field `worker` a worker of theirs: a server puts in who the caller is.
    """

    rank: ClassVar[Rank]

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be carried out twice: the second time changes nothing that the first one did not."""
        return False

    @property
    def runs_beside_others(self) -> bool:
        """Whether it touches only items that it makes, or that it locks one by one. Otherwise it has the namespace for
        itself where a store can carry out several transactions at a time."""
        return False

    @property
    def takes_space(self) -> bool:
        """Whether it is refused while the store is full. Other calls are not, so that an operator can free space."""
        return bool(self.puts)

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        """Ids of items that it names, and reads or changes. A store may read them together, before all else."""
        return ()

    @property
    def puts(self) -> tuple[Put, ...]:
        """The puts that are part of it."""
        return ()


def result_type(kind: type[StoreCall[Any] | StoreQuery[Any]]) -> Any:
    """The type that a call gives unless it is refused, or a query: the one that its class statement names."""
    (base,) = vars(kind)["__orig_bases__"]
    (given,) = get_args(base)
    return given


def in_commit_order(calls: Sequence[StoreCall[Any]]) -> list[int]:
    """The positions of the calls of a batch, in the order in which they take effect."""
    return sorted(range(len(calls)), key=lambda position: calls[position].rank)
