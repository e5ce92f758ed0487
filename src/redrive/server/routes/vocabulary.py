"""The vocabulary of JSON calls: the type, description and decoder of each parameter, by its name.

A word means the same in every call. One with another meaning in one method is listed as `method.word`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec

from redrive.errors import InvalidInput
from redrive.model.declaration import texts_of
from redrive.model.ids import MAX_NUMBER
from redrive.model.options import OperationOptions, Rate
from redrive.server.field_types import (
    Count,
    DurationInput,
    InstantInput,
    ItemIdText,
    Label,
    PageLimit,
    QueueName,
    Settings,
    Text,
    check_batch,
    check_page,
    read_datetime,
)
from redrive.server.request import Request

Number = Annotated[
    str, msgspec.Meta(pattern="^[0-9]{1,19}$", description="A whole number as text, since it may exceed 53 bits.")
]
Kind = Annotated[
    Label,
    msgspec.Meta(
        description="`queue`, an error class, or `fingerprint:` and the fingerprint of a group.",
        examples=["network", "fingerprint:51c2ab0f9d3e7a64"],
    ),
]


class Word(NamedTuple):
    """The JSON form of a parameter."""

    type: Any
    """The type with its bounds."""
    text: str | None = None
    """The description, if the type is not sufficient."""
    example: Any = None
    """The value in the example of a call that requires the parameter."""
    read: Callable[[Request, Any], Any] | None = None
    """Converts the sent value to the argument of the method, or refuses it. None: the value is the argument."""
    is_spread: bool = False
    """True if it is an object whose members are keyword arguments of the method: `**settings`."""
    required: bool = False
    """True if a call requires it although the method does not."""


def read_number(request: Request, number: str) -> int:
    """Return the number in a text, limited to the largest one that stores hold."""
    return min(int(number), MAX_NUMBER)


def _batch(request: Request, ids: list[str]) -> list[str]:
    check_batch(request, len(ids))
    return ids


def _page(request: Request, limit: int) -> int:
    check_page(request, limit)
    return limit


def _keys(request: Request, keys: list[str]) -> list[str]:
    check_page(request, len(keys))
    return keys


def _settings(request: Request, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings, which become keyword arguments. Raises `InvalidInput` if one has the name of another one."""
    for name in ("name", "actor", "self"):
        if name in settings:
            raise InvalidInput(f"{name} is not a setting of a queue; pass it beside the settings")
    return settings


_ID = "4f0c91a27b3d000000068f1c2a3b4800"
_IDS = Annotated[list[ItemIdText], msgspec.Meta(min_length=1)]
_OPERATION = texts_of(OperationOptions)

WORDS = {
    "actor": Word(Label, "The actor, for the audit. If the server asks for tokens, it is the name of the token."),
    "before": Word(Number, "The number of the last entry before.", read=read_number),
    "confirm": Word(Count, "How many items you mean. Another number is refused."),
    "delay": Word(DurationInput, "A duration, from now until they may be leased."),
    "enqueue_at": Word(
        InstantInput,
        "From when they may be leased, instead of a delay.",
        read=lambda _, text: read_datetime("enqueue_at", text),
    ),
    "error": Word(Text, example="the customer left"),
    "force": Word(bool, "Also where a worker has the item: its lease is revoked."),
    "get.id": Word(ItemIdText, example=_ID),
    "get_result.id": Word(ItemIdText, example=_ID),
    "held_by": Word(Label, example="ann"),
    "id": Word(Label, example=_ID),
    "ids": Word(_IDS, example=[_ID], read=_batch),
    "keys": Word(Annotated[list[Label], msgspec.Meta(min_length=1)], "Idempotency keys.", ["welcome-17"], _keys),
    "kind": Word(Kind),
    "lasting": Word(bool, "Keep the hold through retries, redrives and deaths."),
    "limit": Word(PageLimit, read=_page),
    "name": Word(QueueName, example="emails"),
    "note": Word(Text, _OPERATION["note"]),
    "open_for": Word(DurationInput, "Until its first probe; else as its rule says."),
    "queue": Word(QueueName, example="emails"),
    "rate": Word(Rate, _OPERATION["rate"], 5),
    "redacted": Word(bool, "false: with what seems a secret; needs the right manage."),
    "settings": Word(Settings, read=_settings, is_spread=True),
    "skip_canaries": Word(bool, "Wait for its canaries no longer."),
    "task_id": Word(Label, "The task id, or the id of its item.", "wf_abc123"),
    "to": Word(Label, "The queue they go to.", "emails"),
    "unfinished": Word(bool, "Only those that have not ended."),
    "unhold.ids": Word(list[ItemIdText], "None: all of them.", read=_batch),
    "update_queue.settings": Word(Settings, example={"max_attempts": 5}, read=_settings, is_spread=True, required=True),
}
