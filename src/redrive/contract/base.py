"""The base of all calls and queries, and the named constants of the contract."""

from __future__ import annotations

import msgspec

from redrive.model.duration import DAY
from redrive.model.limits import MIB

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


class TaggedStruct(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of calls, queries and their parts. `redrive.wire` encodes each with the name of its type, omits
    defaults, and refuses unknown fields."""
