"""Operations: changes of many items that live in the store. Start, list, look at and steer them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from redrive.auth.principal import Permission
from redrive.errors import InvalidInput
from redrive.model.operation import Operation
from redrive.model.operation_plan import OperationPlan
from redrive.model.options import CanaryCount, Count, Rate, Ratio
from redrive.server.field_types import (
    NAMES,
    OPERATION,
    Actor,
    FilterFields,
    Label,
    PageLimit,
    Text,
    check_page,
    parse_filter,
)
from redrive.server.request import Request
from redrive.server.responses import SettledItem
from redrive.server.route import Route
from redrive.wire.json_views import defined, view_of, view_type

OperationView = view_type(Operation)
PlanView = view_type(OperationPlan)
BulkView = defined(
    "Change",
    [
        ("items", list[SettledItem] | None, None),
        ("operation", OperationView | None, None),
        ("plan", PlanView | None, None),
    ],
    "What became of each item that was named by its id; or the operation that was started; or what it would do.",
)
OneView = defined("OperationAnswer", [("operation", OperationView)], "An operation as it stands.")
ManyView = defined("Operations", [("operations", list[OperationView])], "Operations, newest first.")  # type: ignore[valid-type]


class Bulk(FilterFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items to change: those of the ids, at once and one by one, or all that match, as an operation."""

    all: Annotated[bool, msgspec.Meta(description="Without any condition: all that there are.")] = False
    rate: Annotated[Rate | None, OPERATION["rate"]] = None
    confirm: Annotated[Count | None, OPERATION["confirm"]] = None
    dry_run: Annotated[bool, msgspec.Meta(description="Change nothing, and tell what would happen.")] = False
    note: Annotated[Text | None, OPERATION["note"]] = None
    actor: Actor = None

    @property
    def only_ids(self) -> bool:
        """Whether items are named by their ids, to be changed at once."""
        given = [name for name in NAMES if getattr(self, name) is not None]
        return given == ["ids"] and not self.dry_run and self.rate is None


class BulkRedrive(Bulk, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, with a target and canaries."""

    to: Annotated[Label | None, OPERATION["to"]] = None
    canary: Annotated[CanaryCount, OPERATION["canary"]] = 0
    canary_success_ratio: Annotated[Ratio, OPERATION["canary_success_ratio"]] = 1.0


async def change_many(request: Request, verb: str, call: Bulk, **status: Any) -> dict[str, Any]:
    """Start an operation with the options that the call has, or tell what it would do."""
    conditions = parse_filter(call)
    if not conditions and not call.all:
        raise InvalidInput("no condition was given; say all=true if all that there are is meant")
    options: dict[str, Any] = {name: getattr(call, name) for name in OPERATION if name in call.__struct_fields__}
    if call.dry_run:
        plan = await request.broker.plan_operation(verb, to=options.get("to"), **conditions, **status)
        return {"plan": view_of(plan)}
    return {"operation": view_of(await request.broker.start_operation(verb, **options, **conditions, **status))}


class StartOperationCall(BulkRedrive, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change all items that match now."""

    verb: Literal["retry", "redrive", "undo", "move", "bury", "archive", "restore", "purge"]
    status: Annotated[Label | None, msgspec.Meta(description="Instead of the one that the verb is for.")] = None
    paused: Annotated[bool, OPERATION["paused"]] = False


async def start(request: Request, call: StartOperationCall) -> dict[str, Any]:
    """Start an operation."""
    status = {} if call.status is None else {"status": call.status}
    return await change_many(request, call.verb, call, **status)


class ListOperationsCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operations, newest first."""

    unfinished: Annotated[bool, msgspec.Meta(description="Only those that have not ended.")] = False
    limit: PageLimit = 100


async def list_all(request: Request, call: ListOperationsCall) -> dict[str, Any]:
    """The newest operations."""
    check_page(request, call.limit)
    found = await request.broker.list_operations(unfinished=call.unfinished, limit=call.limit)
    return {"operations": [view_of(each) for each in found]}


class OperationInfoCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names an operation."""

    id: Label


class SteerOperationCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names an operation, and who steers it."""

    id: Label
    actor: Actor = None


class ResumeOperationCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names an operation that is to go on."""

    id: Label
    skip_canaries: Annotated[bool, msgspec.Meta(description="Wait for its canaries no longer.")] = False
    actor: Actor = None


class RateOperationCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names an operation, and how fast it is to be."""

    id: Label
    rate: Annotated[Rate, OPERATION["rate"]]
    actor: Actor = None


async def info(request: Request, call: OperationInfoCall) -> dict[str, Any]:
    """An operation as it stands."""
    return {"operation": view_of(await request.broker.get_operation(call.id))}


async def cancel(request: Request, call: SteerOperationCall) -> dict[str, Any]:
    """End an operation."""
    return {"operation": view_of(await request.broker.cancel_operation(call.id, actor=call.actor))}


async def pause(request: Request, call: SteerOperationCall) -> dict[str, Any]:
    """Make no more steps."""
    return {"operation": view_of(await request.broker.pause_operation(call.id, actor=call.actor))}


async def resume(request: Request, call: ResumeOperationCall) -> dict[str, Any]:
    """Go on."""
    resumed = await request.broker.resume_operation(call.id, skip_canaries=call.skip_canaries, actor=call.actor)
    return {"operation": view_of(resumed)}


async def rate(request: Request, call: RateOperationCall) -> dict[str, Any]:
    """Set how fast it is."""
    return {"operation": view_of(await request.broker.set_operation_rate(call.id, call.rate, actor=call.actor))}


async def undo(request: Request, call: SteerOperationCall) -> dict[str, Any]:
    """Start the operation that takes another back, wherever its items are by now."""
    return {"operation": view_of(await request.broker.undo_operation(call.id, actor=call.actor))}


_ID = {"id": "4f0c91a27b3d000000068f1c2a3b4800"}
ROUTES = (
    Route(
        name="operations.start",
        summary="Change all items that match now",
        request_type=StartOperationCall,
        response_type=BulkView,
        permission=Permission.OPERATE,
        handler=start,
        example={"verb": "move", "queue": "emails", "to": "slow-emails", "dry_run": True},
    ),
    Route(
        name="operations.list",
        summary="Operations, newest first",
        request_type=ListOperationsCall,
        response_type=ManyView,
        permission=Permission.READ,
        handler=list_all,
    ),
    Route(
        name="operations.info",
        summary="An operation as it stands",
        request_type=OperationInfoCall,
        response_type=OneView,
        permission=Permission.READ,
        handler=info,
        example=_ID,
    ),
    Route(
        name="operations.cancel",
        summary="End an operation",
        request_type=SteerOperationCall,
        response_type=OneView,
        permission=Permission.OPERATE,
        handler=cancel,
        example=_ID,
    ),
    Route(
        name="operations.pause",
        summary="Let an operation make no more steps",
        request_type=SteerOperationCall,
        response_type=OneView,
        permission=Permission.OPERATE,
        handler=pause,
        example=_ID,
    ),
    Route(
        name="operations.resume",
        summary="Let an operation go on",
        request_type=ResumeOperationCall,
        response_type=OneView,
        permission=Permission.OPERATE,
        handler=resume,
        example=_ID,
    ),
    Route(
        name="operations.set_rate",
        summary="Set how fast an operation is",
        request_type=RateOperationCall,
        response_type=OneView,
        permission=Permission.OPERATE,
        handler=rate,
        example={**_ID, "rate": 5},
    ),
    Route(
        name="operations.undo",
        summary="Start the operation that takes another back",
        request_type=SteerOperationCall,
        response_type=OneView,
        permission=Permission.OPERATE,
        handler=undo,
        example=_ID,
    ),
)
