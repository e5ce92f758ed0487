"""Conditions: which items a call means. Everything that looks at or changes many items takes them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from redrive.model.classify import ErrorClass
from redrive.model.filter import Filter
from redrive.model.reason import DeadReason
from redrive.model.words import MAX_QUERY_CHARS
from redrive.server.access.principal import Right
from redrive.server.fields import Count, ItemIdText, Label, QueueName
from redrive.server.requests import Request
from redrive.server.times import SinceInput, read_since

NAMES = tuple(name for name in Filter.__struct_fields__ if name != "status")
"""Every condition but the status."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items that meet every condition given."""

    queue: Annotated[QueueName | None, msgspec.Meta(description="Where they are now.")] = None
    origin_queue: Annotated[QueueName | None, msgspec.Meta(description="Where they were put first.")] = None
    reason: DeadReason | None = None
    error_type: Annotated[Label | None, msgspec.Meta(description="The class of the error, in full or its name.")] = None
    error_class: ErrorClass | None = None
    fingerprint: Annotated[Label | None, msgspec.Meta(description="Of a group: one cause.")] = None
    words: (
        Annotated[
            str,
            msgspec.Meta(
                max_length=MAX_QUERY_CHARS,
                description="Words in the error or the payload; `wor*` is a prefix. Needs the right payloads.",
            ),
        ]
        | None
    ) = None
    since: SinceInput | None = None
    until: SinceInput | None = None
    min_attempts: Count | None = None
    min_redrives: Count | None = None
    max_redrives: Count | None = None
    headers: Annotated[
        dict[str, str] | None,
        msgspec.Meta(description="Have these headers with these values. Needs the right payloads."),
    ] = None
    held: bool | None = None
    held_by: Label | None = None
    operation: Annotated[Label | None, msgspec.Meta(description="Were changed by this operation.")] = None
    ids: (
        Annotated[list[ItemIdText], msgspec.Meta(min_length=1, max_length=10_000, description="Are among these.")]
        | None
    ) = None
    id_prefix: Annotated[ItemIdText | None, msgspec.Meta(description="Their id begins with these digits.")] = None


def conditions_of(request: Request, call: Conditions) -> dict[str, Any]:
    """The conditions that a call gives, as the broker takes them.

    Whoever asks whether an item has a word or a header learns what is in it.
    """
    if call.words is not None or call.headers is not None:
        request.check(Right.PAYLOADS, call.queue)
    given = {name: value for name in NAMES if (value := getattr(call, name)) is not None}
    return given | {name: read_since(name, given[name]) for name in ("since", "until") if name in given}
