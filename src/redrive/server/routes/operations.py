"""Operations: stored changes of many items, and how to start one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from redrive.errors import InvalidInput
from redrive.model.operation import Operation
from redrive.model.operation_plan import OperationPlan
from redrive.model.options import CanaryCount, Count, PlanOptions, PositiveCount, Rate, Ratio
from redrive.server.field_types import (
    NAMES,
    OPERATION,
    Actor,
    FilterFields,
    Label,
    Text,
    parse_filter,
)
from redrive.server.request import Request
from redrive.server.responses import SettledItem
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


class Bulk(FilterFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items to change: those with the given ids immediately and separately, or all that match, as an operation."""

    all: Annotated[bool, msgspec.Meta(description="Without any condition: all that there are.")] = False
    limit: Annotated[PositiveCount | None, OPERATION["limit"]] = None
    rate: Annotated[Rate | None, OPERATION["rate"]] = None
    confirm: Annotated[Count | None, OPERATION["confirm"]] = None
    dry_run: Annotated[bool, msgspec.Meta(description="Change nothing, and tell what would happen.")] = False
    note: Annotated[Text | None, OPERATION["note"]] = None
    actor: Actor = None

    @property
    def only_ids(self) -> bool:
        """True if items are named by their ids, to be changed immediately."""
        given = [name for name in NAMES if getattr(self, name) is not None]
        return given == ["ids"] and not self.dry_run and self.rate is self.limit is None


class BulkRedrive(Bulk, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items to redrive, with a target and canaries."""

    to: Annotated[Label | None, OPERATION["to"]] = None
    canary: Annotated[CanaryCount, OPERATION["canary"]] = 0
    canary_success_ratio: Annotated[Ratio, OPERATION["canary_success_ratio"]] = 1.0


async def change_many(request: Request, verb: str, call: Bulk, **status: Any) -> dict[str, Any]:
    """Start an operation with the options of the call, or plan it for a dry run."""
    conditions = parse_filter(call)
    if not conditions and not call.all:
        raise InvalidInput("no condition was given; say all=true if all that there are is meant")
    options: dict[str, Any] = {name: getattr(call, name) for name in OPERATION if name in call.__struct_fields__}
    if call.dry_run:
        planned: dict[str, Any] = {name: options[name] for name in PlanOptions.__annotations__ if name in options}
        plan = await request.broker.plan_operation(verb, **planned, **conditions, **status)
        return {"plan": view_of(plan)}
    return {"operation": view_of(await request.broker.start_operation(verb, **options, **conditions, **status))}


class StartOperationCall(BulkRedrive, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change all items that match now."""

    verb: Literal["retry", "redrive", "undo", "move", "bury", "archive", "restore", "purge"]
    status: Annotated[Label | None, msgspec.Meta(description="Instead of the one that the verb is for.")] = None
    paused: Annotated[bool, OPERATION["paused"]] = False


async def start(request: Request, call: StartOperationCall) -> dict[str, Any]:
    """Change all items that match now."""
    status = {} if call.status is None else {"status": call.status}
    return await change_many(request, call.verb, call, **status)
