"""Manual changes, without a lease: retry, redrive (unchanged or edited), undo, move, reschedule, done, drop, archive,
restore, purge, fail, bury, hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.broker.flow import Flow, commit_call, raise_if_refused, read_items
from redrive.broker.flows.moves import target_of
from redrive.broker.flows.settle import failure_of
from redrive.broker.flows.stale_settings import judge_stale
from redrive.broker.validation import check_note, to_instant
from redrive.contract.admin_calls import Hold, ManualChange, ManualTarget, Unhold
from redrive.contract.item_calls import check_times
from redrive.contract.replies import RESERVED_PREFIX
from redrive.errors import InvalidInput, InvalidName, InvalidPayload, ItemNotFound, RedriveError, short_repr
from redrive.model.caller_input import checking_input, flag, is_of_a_signal
from redrive.model.duration import DurationInput, parse_duration
from redrive.model.failure import Failure
from redrive.model.ids import ItemId, ids_of
from redrive.model.item import Item, Result
from redrive.model.judge import OutcomeKind
from redrive.model.limits import MAX_BATCH, MAX_STORABLE_BYTES, check_address, check_label
from redrive.model.payload import check_headers, encode_payload, is_json, merge_patch
from redrive.model.state_machine import Verb

if TYPE_CHECKING:
    from redrive.broker.core import Core


_READ_TOGETHER = 100
"""Maximum number of items that are in memory at a time to judge them."""


def change(
    core: Core, verb: Verb, ids: str | Sequence[str], actor: str | None, force: bool = False, *, to: str | None = None
) -> Flow[Any]:
    """Execute a verb that needs no verdict."""
    target_queue = None
    if verb is Verb.MOVE:
        target_queue = yield from target_of(core, check_address("queue", to))
    targets = tuple(ManualTarget(id) for id in checked_ids(ids))
    results = yield from commit_call(ManualChange(verb, targets, core.actor(actor), flag("force", force), target_queue))
    core.start_moves(results)
    return unwrap_single(ids, results)


def reschedule(
    core: Core, ids: str | Sequence[str], actor: str | None, note: str | None, delay: DurationInput, at: datetime | None
) -> Flow[Any]:
    """Change the time from which waiting items may be leased."""
    span, instant = parse_duration(delay, "delay"), None if at is None else to_instant("enqueue_at", at)
    targets = tuple(check_times(ManualTarget(id, delay=span, enqueue_at=instant)) for id in checked_ids(ids))
    call = ManualChange(Verb.RESCHEDULE, targets, core.actor(actor), note=check_note("note", note))
    return unwrap_single(ids, (yield from commit_call(call)))


def change_with_verdict(
    core: Core,
    verb: Verb,
    ids: str | Sequence[str],
    actor: str | None,
    force: bool,
    *,
    error: str | Failure | None = None,
    note: str | None = None,
) -> Flow[Any]:
    """Execute a verb that needs a verdict for each item: read, judge, change; repeat if settings have changed."""
    text, forced = check_note("note", note), flag("force", force)
    if verb is Verb.FAIL:
        failure_of(error, (), None, core.clock.now())  # an invalid error is refused once, not for each item
    now: dict[ItemId, ItemId] = {}
    """The current ids of items by their listed ids: an item is judged once, even if it is listed several times."""
    listed = checked_ids(ids)

    def judge(waiting: Sequence[ItemId]) -> Flow[dict[ItemId, Any]]:
        results: dict[ItemId, Any] = {}
        targets: dict[ItemId, ManualTarget] = {}
        for start in range(0, len(waiting), _READ_TOGETHER):
            some = waiting[start : start + _READ_TOGETHER]
            for id, item in zip(some, (yield from read_items(some)), strict=True):
                try:
                    target = yield from _target_with_verdict(core, verb, id, item, error)
                except RedriveError as refusal:
                    results[id] = refusal
                else:
                    now[id] = target.id
                    targets[target.id] = target
        if targets:
            call = ManualChange(verb, tuple(targets.values()), core.actor(actor), forced, None, text)
            outcome = yield from commit_call(call)
            results.update(zip(targets, outcome, strict=True))
            core.start_moves(outcome)
        return results

    results = yield from judge(tuple(dict.fromkeys(listed)))
    yield from judge_stale(core, results, judge)
    return unwrap_single(ids, [results[_latest(now, id)] for id in listed])


def _latest(now: Mapping[ItemId, ItemId], id: ItemId) -> ItemId:
    while (later := now.get(id, id)) != id:
        id = later
    return id


def hold(ids: Sequence[str], held_by: str, lasting: bool) -> Flow[int]:
    """Hold items: they stay out of the ready index."""
    call = Hold(checked_ids(ids), check_label("held_by", held_by), flag("lasting", lasting))
    held = yield from commit_call(call)
    assert isinstance(held, int)  # it names no version of a queue
    return held


def unhold(held_by: str, ids: Sequence[str] | None) -> Flow[int]:
    """End a hold on these items; without ids, step by step until the name holds nothing."""
    call = Unhold(check_label("held_by", held_by), None if ids is None else checked_ids(ids))
    total = 0
    while True:
        released: int = yield from commit_call(call)
        total += released
        if ids is not None or released == 0:
            return total


def _target_with_verdict(
    core: Core, verb: Verb, id: ItemId, item: Item | None, error: str | Failure | None
) -> Flow[ManualTarget]:
    if item is None:
        raise ItemNotFound(id)
    queue = yield from core.queue(item.queue)
    outcome_kind = OutcomeKind.FAILED if verb is Verb.FAIL else OutcomeKind.BURIED
    rules, now = queue.settings.error_rules, core.clock.now()
    failure = failure_of(error, rules, None, now) if verb is Verb.FAIL else None
    verdict = core.judge_delivery(queue, outcome_kind, item, failure=failure)
    return ManualTarget(item.id, verdict, queue.version, failure)


def checked_ids(ids: str | Sequence[str]) -> tuple[ItemId, ...]:
    """Return one id or several as a tuple, checked."""
    return ids_of(ids, MAX_BATCH, "one id or a list of ids", "call")


def unwrap_single(ids: str | Sequence[str], results: Sequence[Any]) -> Any:
    """Return the result of one id, or raise its refusal; for several ids, return a list of results and refusals."""
    return raise_if_refused(results[0]) if isinstance(ids, str) else list(results)


Edit = Callable[[Any], Any] | Mapping[str, Any]
"""A function (value) → value, or a JSON merge patch (RFC 7396)."""


class Edits(msgspec.Struct, frozen=True):
    """The changes of payload and headers in a redrive. `...` leaves them unchanged."""

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
    """Read and edit the items if edits are given, then redrive all in one call.

    An item that cannot be edited stays dead, like one that is refused.
    """
    target_queue = None if to is None else (yield from target_of(core, to))
    text, forced = check_note("note", note), flag("force", force)
    edited = _check(edits)
    results: list[Any] = []
    targets: list[ManualTarget] = []
    listed = checked_ids(ids)
    for start in range(0, len(listed), _READ_TOGETHER):
        some = listed[start : start + _READ_TOGETHER]
        items = (yield from read_items(some)) if edited else [None] * len(some)
        for id, item in zip(some, items, strict=True):
            try:
                targets.append(_edited(id, item, edits) if edited else ManualTarget(id))
                results.append(None)
            except RedriveError as refusal:
                results.append(refusal)
    call = ManualChange(Verb.REDRIVE, tuple(targets), core.actor(actor), forced, target_queue, text)
    changed = (yield from commit_call(call)) if targets else ()
    core.start_moves(changed)
    outcome = iter(changed)
    return unwrap_single(ids, [next(outcome) if result is None else result for result in results])


def _check(edits: Edits) -> bool:
    """Check the edits, and return whether they change anything."""
    for name, value, edit in (
        ("payload", edits.payload, edits.edit),
        ("headers", edits.headers, edits.edit_headers),
    ):
        change = "edit" if name == "payload" else "edit_headers"
        if value is not ... and edit is not None:
            raise InvalidInput(f"{name} replaces what is there and {change} changes it; give one of the two")
        with checking_input(change):
            is_edit = edit is None or callable(edit) or isinstance(edit, Mapping)
        if not is_edit:
            raise InvalidInput(
                f"{change} is a function (value) → value or a merge patch, a table; not {short_repr(edit, 60)}"
            )
    return any(
        (edits.payload is not ..., edits.headers is not ..., edits.edit is not None, edits.edit_headers is not None)
    )


def _edited(id: ItemId, item: Item | None, edits: Edits) -> ManualTarget:
    if item is None:
        raise ItemNotFound(id)
    payload = headers = None
    if edits.payload is not ... or edits.edit is not None:
        payload = _encoded(edits.payload if edits.edit is None else _apply("payload", edits.edit, _value(item)), item)
    if edits.headers is not ... or edits.edit_headers is not None:
        given: Any = (
            edits.headers if edits.edit_headers is None else _apply("headers", edits.edit_headers, dict(item.headers))
        )
        headers = _keep_reserved(check_headers(given), item.headers)
    return ManualTarget(id, payload=payload, headers=headers)


def _keep_reserved(edited: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    """Return the edited headers with the reserved ones of the item, which an edit does not change."""
    reserved = {name: value for name, value in present.items() if name.startswith(RESERVED_PREFIX)}
    for name, value in edited.items():
        if name.startswith(RESERVED_PREFIX) and reserved.get(name) != value:
            raise InvalidName("header", name, f"cannot be edited; names with {RESERVED_PREFIX} are reserved")
    return {**edited, **reserved}


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
    with checking_input("edit" if what == "payload" else "edit_headers"):
        return merge_patch(value, edit)


def _encoded(value: Any, item: Item) -> Result:
    """Encode the new payload, with the content type of the item if that fits."""
    with checking_input("payload"):
        is_bytes = isinstance(value, bytes | bytearray | memoryview)
    keeps = is_bytes or is_json(item.content_type)
    return Result(*encode_payload(value, item.content_type if keeps else None, MAX_STORABLE_BYTES))
