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
"""Maximum time that the key of an ended item is stored if idempotency_timeout is `item`. A put does not find it."""
LEDGER_RETENTION = 7 * DAY
"""Minimum time that the source_id of an imported item is known; longer while the item is in that queue."""
MOVE_BATCH_BYTES = 8 * MIB
"""Maximum size of payloads that are moved to another store together, unless a single one is larger."""
FEED_RETENTION = 7 * DAY
"""Time that entries of the feed are kept."""
OPERATION_RETENTION = 30 * DAY
"""Time that an operation can be read and undone after its end."""
RETENTION_ACTOR = "retention"
"""The actor of archiving and deleting by the settings of a queue, in the audit and the feed."""
DROP_ACTOR = "on_dead"
"""The actor of dropping dead items by the settings of a queue, in the audit."""

Given = TypeVar("Given", covariant=True)


class Rank(IntEnum):
    """The order in which calls of one batch take effect: by rank, and within a rank in the order of the batch."""

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
    """The base of queries: `StoreQuery[type of its answer]`."""

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        """Ids of items that it names and reads. A store may read them together first."""
        return ()


class StoreCall(TaggedStruct, Generic[Given], frozen=True):
    """The base of calls: `StoreCall[type of its result unless it is refused]`, and the facts that each call states.

    The defaults are the safe ones: a call states only different facts, and in any case its rank.
    A field `actor` names the actor of the call, a field `worker` its worker: a server sets them to the caller.
    """

    rank: ClassVar[Rank]

    @property
    def is_repeatable(self) -> bool:
        """True if it is idempotent: a second execution changes nothing more."""
        return False

    @property
    def runs_beside_others(self) -> bool:
        """True if it affects only items that it creates, or locks one by one. Otherwise it locks the namespace in a
        store that can execute several transactions concurrently."""
        return False

    @property
    def takes_space(self) -> bool:
        """True if it is refused while the store is full. Other calls are not, so that an operator can free space."""
        return bool(self.puts)

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        """Ids of items that it names, and reads or changes. A store may read them together first."""
        return ()

    @property
    def puts(self) -> tuple[Put, ...]:
        """The puts that are part of it."""
        return ()


def result_type(kind: type[StoreCall[Any] | StoreQuery[Any]]) -> Any:
    """Return the type of the result of a call unless it is refused, or of the answer of a query."""
    (base,) = vars(kind)["__orig_bases__"]
    (given,) = get_args(base)
    return given


def in_commit_order(calls: Sequence[StoreCall[Any]]) -> list[int]:
    """Return the positions of the calls of a batch, in the order in which they take effect."""
    return sorted(range(len(calls)), key=lambda position: calls[position].rank)
