"""Masked items for callers without the permission to see payloads."""

from __future__ import annotations

import msgspec

from redrive.model.failure import Failure
from redrive.model.item import HistoryEntry, Item, Result

MASKED_TYPE = "application/x-redrive-hidden"
"""The content type of a hidden payload. Its bytes are removed, and their number is not disclosed."""

_NOTHING = Result(b"", MASKED_TYPE)


def mask_item(item: Item) -> Item:
    """Return the item without payload, headers, result and idempotency key."""
    return msgspec.structs.replace(
        item,
        payload=b"",
        content_type=MASKED_TYPE,
        headers={},
        result=None if item.result is None else _NOTHING,
        idempotency_key=None,
    )


def mask_for_requester(item: Item) -> Item:
    """Return an item for a caller that waits for its end without the right to inspect: its status, counters, and the
    cause of its last death. Payload, headers, current queue, workers and earlier failures are removed."""
    queue = item.origin_queue or item.queue
    failure = item.last_failure if item.deaths else None
    told = None if failure is None else Failure(failure.type, failure.text)
    history = [
        HistoryEntry(each.at, each.event, queue, each.delivery, from_dead_letter=each.from_dead_letter)
        for each in item.history
    ]
    if told is not None and history:
        history[-1] = msgspec.structs.replace(history[-1], failure=told)
    return Item(
        item.id,
        queue,
        item.status,
        b"",
        MASKED_TYPE,
        {},
        item.priority,
        item.put_at,
        item.counters,
        dead_reason=item.dead_reason,
        ended_at=item.ended_at,
        history=tuple(history),
        deaths=tuple([msgspec.structs.replace(each, queue=queue) for each in item.deaths[-1:]]),
    )


def is_masked(item: Item | Result) -> bool:
    """Return whether the payload is hidden."""
    return item.content_type == MASKED_TYPE
