"""Redrives: bring dead letters back to work, as they are or with their payload mended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.broker.by_hand import checked_ids, one_or_many
from redrive.broker.checks import note_of
from redrive.broker.flow import Flow, ask, send
from redrive.broker.moves import target_of
from redrive.errors import InvalidInput, InvalidPayload, RedriveError, shown
from redrive.model.given import flag, is_of_a_signal, reading
from redrive.model.ids import ItemId
from redrive.model.item import Item, Result
from redrive.model.limits import MAX_STORABLE_BYTES
from redrive.model.merge_patch import merge_patch
from redrive.model.payload import check_headers, encode_payload, is_json
from redrive.model.transitions import Verb
from redrive.store import Change, GetItem, Target

if TYPE_CHECKING:
    from redrive.broker.core import Core

Edit = Callable[[Any], Any] | Mapping[str, Any]
"""A function (value) → value, or a JSON merge patch (RFC 7396)."""


class Edits(msgspec.Struct, frozen=True):
    """What to change in the items. `...` leaves the payload or the headers as they are."""

    payload: Any | EllipsisType = ...
    headers: Mapping[str, str] | EllipsisType = ...
    edit: Edit | None = None
    edit_headers: Edit | None = None


def redrive(
    core: Core,
    ids: str | Sequence[str],
    *,
    to: str | None,
    edits: Edits,
    actor: str | None,
    force: bool,
    note: str | None,
) -> Flow[Any]:
    """Read and edit where that is asked for, then bring all back in one call.

    An item that cannot be edited stays dead, like any that is refused.
    """
    target_queue = None if to is None else (yield from target_of(core, to))
    text, forced = note_of("note", note), flag("force", force)
    edited = _check(edits)
    results: list[Any] = []
    targets: list[Target] = []
    for id in checked_ids(ids):
        try:
            targets.append((yield from _edited(id, edits)) if edited else Target(id))
            results.append(None)
        except RedriveError as refusal:
            results.append(refusal)
    call = Change(Verb.REDRIVE, tuple(targets), core.actor(actor), forced, target_queue, text)
    changed = (yield from send(call)) if targets else ()
    core.departed(changed)
    outcome = iter(changed)
    return one_or_many(ids, [next(outcome) if result is None else result for result in results])


def _check(edits: Edits) -> bool:
    """Whether there is anything to change in the items."""
    for name, value, edit in (
        ("payload", edits.payload, edits.edit),
        ("headers", edits.headers, edits.edit_headers),
    ):
        change = "edit" if name == "payload" else "edit_headers"
        if value is not ... and edit is not None:
            raise InvalidInput(f"{name} replaces what is there and {change} changes it; give one of the two")
        with reading(change):
            is_edit = edit is None or callable(edit) or isinstance(edit, Mapping)
        if not is_edit:
            raise InvalidInput(
                f"{change} is a function (value) → value or a merge patch, a table; not {shown(edit, 60)}"
            )
    return any(
        (edits.payload is not ..., edits.headers is not ..., edits.edit is not None, edits.edit_headers is not None)
    )


def _edited(id: ItemId, edits: Edits) -> Flow[Target]:
    item: Item = yield from ask(GetItem(id))
    payload = headers = None
    if edits.payload is not ... or edits.edit is not None:
        payload = _encoded(edits.payload if edits.edit is None else _apply("payload", edits.edit, _value(item)), item)
    if edits.headers is not ... or edits.edit_headers is not None:
        given: Any = (
            edits.headers if edits.edit_headers is None else _apply("headers", edits.edit_headers, dict(item.headers))
        )
        headers = check_headers(given)
    return Target(id, payload=payload, headers=headers)


def _value(item: Item) -> Any:
    return bytes(item.payload) if not is_json(item.content_type) else item.value


def _apply(what: str, edit: Edit, value: Any) -> Any:
    if not isinstance(edit, Mapping):
        try:
            return edit(value)
        except RedriveError:
            raise
        except Exception as error:
            if is_of_a_signal(error):
                raise
            problem = f"could not be edited: {type(error).__name__}: {error}"
            raise InvalidPayload("$", problem) if what == "payload" else InvalidInput(f"{what} {problem}") from error
    if isinstance(value, bytes):
        raise InvalidPayload("$", "is bytes, and a merge patch is for JSON; give edit a function (bytes) → bytes")
    with reading("edit" if what == "payload" else "edit_headers"):
        return merge_patch(value, edit)


def _encoded(value: Any, item: Item) -> Result:
    """The new payload under the content type that the item has, where that fits."""
    with reading("payload"):
        is_bytes = isinstance(value, bytes | bytearray | memoryview)
    keeps = is_bytes or is_json(item.content_type)
    return Result(*encode_payload(value, item.content_type if keeps else None, MAX_STORABLE_BYTES))
