"""Items as they are shown to somebody who may not see what is in them."""

from __future__ import annotations

import msgspec

from redrive.model.item import Item, Result

HIDDEN = "application/x-redrive-hidden"
"""The content type of a payload that is not shown. Its bytes are not there, how many they are is not told."""

_NOTHING = Result(b"", HIDDEN)


def hidden_item(item: Item) -> Item:
    """The item without payload, headers, result and idempotency key."""
    return msgspec.structs.replace(
        item,
        payload=b"",
        content_type=HIDDEN,
        headers={},
        result=None if item.result is None else _NOTHING,
        idempotency_key=None,
    )


def is_hidden(item: Item | Result) -> bool:
    """Whether what is in it was taken away."""
    return item.content_type == HIDDEN
