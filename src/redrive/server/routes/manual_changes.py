"""What a person does to single items: delete, retry, done, fail, bury, move, undo, hold, unhold."""

from __future__ import annotations

from typing import Annotated

import msgspec

from redrive.auth.principal import Permission
from redrive.server.field_types import Actor, ItemIdText, Label, Text, check_batch
from redrive.server.request import Request, Response
from redrive.server.responses import SettledItems, settled_answer
from redrive.server.route import Route


class ByHandCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items that a person changes. Each stands for itself."""

    ids: Annotated[list[ItemIdText], msgspec.Meta(min_length=1)]
    force: Annotated[bool, msgspec.Meta(description="Also where a worker has the item: its lease is revoked.")] = False
    actor: Actor = None


class FailCall(ByHandCall, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items to count a failure against."""

    error: Text


class BuryCall(ByHandCall, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items to bury."""

    note: Text | None = None


class MoveCall(ByHandCall, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items to take to another queue."""

    to: Annotated[Label, msgspec.Meta(description="The queue they go to.")]


class UndoCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items whose redrive is taken back."""

    ids: Annotated[list[ItemIdText], msgspec.Meta(min_length=1)]
    actor: Actor = None


async def delete(request: Request, call: ByHandCall) -> SettledItems | Response:
    """Remove items for good."""
    check_batch(request, len(call.ids))
    return settled_answer(await request.broker.drop(call.ids, actor=call.actor, force=call.force))


async def retry(request: Request, call: ByHandCall) -> SettledItems | Response:
    """Try dead or failed items again, where they are."""
    check_batch(request, len(call.ids))
    return settled_answer(await request.broker.retry(call.ids, actor=call.actor, force=call.force))


async def done(request: Request, call: ByHandCall) -> SettledItems | Response:
    """Take items as completed."""
    check_batch(request, len(call.ids))
    return settled_answer(await request.broker.complete_items(call.ids, actor=call.actor, force=call.force))


async def fail(request: Request, call: FailCall) -> SettledItems | Response:
    """Count a failure against items."""
    check_batch(request, len(call.ids))
    return settled_answer(await request.broker.fail_items(call.ids, call.error, actor=call.actor, force=call.force))


async def bury(request: Request, call: BuryCall) -> SettledItems | Response:
    """Make items dead."""
    check_batch(request, len(call.ids))
    return settled_answer(await request.broker.bury_items(call.ids, note=call.note, actor=call.actor, force=call.force))


async def move(request: Request, call: MoveCall) -> SettledItems | Response:
    """Take items to another queue."""
    check_batch(request, len(call.ids))
    return settled_answer(await request.broker.move(call.ids, call.to, actor=call.actor, force=call.force))


async def undo(request: Request, call: UndoCall) -> SettledItems | Response:
    """Undo drops, and redrives of items that were not leased since."""
    check_batch(request, len(call.ids))
    return settled_answer(await request.broker.undo(call.ids, actor=call.actor))


class HoldCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Items to hold back."""

    ids: Annotated[list[ItemIdText], msgspec.Meta(min_length=1)]
    held_by: Label
    lasting: Annotated[bool, msgspec.Meta(description="Keep the hold through retries, redrives and deaths.")] = False


class UnholdCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Items that the name holds no longer: these, or all that it holds."""

    held_by: Label
    ids: Annotated[list[ItemIdText] | None, msgspec.Meta(description="None: all of them.")] = None


class Changed(msgspec.Struct, frozen=True):
    """How many items were changed."""

    changed: int


async def hold(request: Request, call: HoldCall) -> Changed:
    """Keep items from being leased."""
    check_batch(request, len(call.ids))
    return Changed(await request.broker.hold(call.ids, call.held_by, lasting=call.lasting))


async def unhold(request: Request, call: UnholdCall) -> Changed:
    """Let items be leased again."""
    if call.ids is not None:
        check_batch(request, len(call.ids))
    return Changed(await request.broker.unhold(call.held_by, call.ids))


_IDS = {"ids": ["4f0c91a27b3d000000068f1c2a3b4800"]}
ROUTES = (
    Route(
        name="items.delete",
        summary="Drop items: they are in the archive for keep_dropped, and then removed",
        request_type=ByHandCall,
        response_type=SettledItems,
        permission=Permission.MANAGE,
        handler=delete,
        example=_IDS,
    ),
    Route(
        name="items.retry",
        summary="Try dead or failed items again, where they are",
        request_type=ByHandCall,
        response_type=SettledItems,
        permission=Permission.OPERATE,
        handler=retry,
        example=_IDS,
    ),
    Route(
        name="items.done",
        summary="Take items as completed",
        request_type=ByHandCall,
        response_type=SettledItems,
        permission=Permission.OPERATE,
        handler=done,
        example=_IDS,
    ),
    Route(
        name="items.fail",
        summary="Count a failure against items that nobody works on",
        request_type=FailCall,
        response_type=SettledItems,
        permission=Permission.OPERATE,
        handler=fail,
        example={**_IDS, "error": "the customer left"},
    ),
    Route(
        name="items.bury",
        summary="Make items dead that nobody works on",
        request_type=BuryCall,
        response_type=SettledItems,
        permission=Permission.OPERATE,
        handler=bury,
        example=_IDS,
    ),
    Route(
        name="items.move",
        summary="Take items to another queue",
        request_type=MoveCall,
        response_type=SettledItems,
        permission=Permission.OPERATE,
        handler=move,
        example={**_IDS, "to": "emails"},
    ),
    Route(
        name="items.undo",
        summary="Undo drops, and redrives of items that were not leased since",
        request_type=UndoCall,
        response_type=SettledItems,
        permission=Permission.OPERATE,
        handler=undo,
        example=_IDS,
    ),
    Route(
        name="items.hold",
        summary="Keep items from being leased",
        request_type=HoldCall,
        response_type=Changed,
        permission=Permission.OPERATE,
        handler=hold,
        example={**_IDS, "held_by": "ann"},
    ),
    Route(
        name="items.unhold",
        summary="Let items be leased again",
        request_type=UnholdCall,
        response_type=Changed,
        permission=Permission.OPERATE,
        handler=unhold,
        example={"held_by": "ann"},
    ),
)
