"""The base of all calls and queries, and the named constants of the contract."""

from __future__ import annotations

import msgspec

from redrive.model.duration import DAY
from redrive.model.limits import MIB

MAINTENANCE_BATCH = 1000
"""Most items that one call of upkeep, or one change by hand, touches."""
SAME_CALL = "(of this call)"
"""Stands for the id of an item that conflicts with another one of the same call: neither was put."""
LEDGER_RETENTION = 7 * DAY
"""How long the source_id of an imported item is known at least; longer for as long as the item is in that queue."""
MOVE_BATCH_BYTES = 8 * MIB
"""Payloads that are taken to another store at once, but for one that is larger."""
FEED_RETENTION = 7 * DAY
"""How long entries of the feed are kept."""
OPERATION_RETENTION = 30 * DAY
"""How long an operation that has ended can be looked at, and undone."""
RETENTION_ACTOR = "retention"
"""Who archives and removes by the settings of a queue, in the audit and the feed."""
DROP_ACTOR = "on_dead"
"""Who drops the dead of a queue that asked for it, in the audit."""


class TaggedStruct(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of calls, queries and their parts. `redrive.wire` writes each with the name of its type and without
    what is as it is by default, and refuses fields that it does not know."""
