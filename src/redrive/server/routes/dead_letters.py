"""Dead letters: find, group, search, redrive, archive, restore, purge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from redrive.broker.flows.breaker_control import list_group_breakers
from redrive.errors import InvalidInput
from redrive.model.filter import Order
from redrive.model.group import Group
from redrive.model.search_terms import MAX_QUERY_CHARS
from redrive.server.field_types import (
    Cursor,
    FilterFields,
    PageLimit,
    QueueName,
    check_batch,
    check_page,
    parse_filter,
)
from redrive.server.request import Request
from redrive.server.responses import settled_answer
from redrive.server.routes.items import page_view
from redrive.server.routes.operations import Bulk, BulkRedrive, change_many
from redrive.server.routes.queues import BreakerView
from redrive.wire.json_views import defined, extended, view_of, view_type

Letters = Literal["dead", "archived"]
GroupView = extended(view_type(Group), [("breakers", list[BreakerView])])  # type: ignore[valid-type]
GroupsView = defined("Groups", [("groups", list[GroupView])], "Dead letters by what they died of.")  # type: ignore[valid-type]


class FindDeadCall(FilterFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dead letters that meet every condition given, newest death first."""

    status: Letters = "dead"
    order: Order = Order.NEWEST
    limit: PageLimit = 50
    cursor: Cursor = None


async def find(request: Request, call: FindDeadCall) -> dict[str, Any]:
    """Find dead letters by conditions."""
    check_page(request, call.limit)
    return await page_view(
        request,
        order=call.order,
        limit=call.limit,
        cursor=call.cursor,
        status=call.status,
        **parse_filter(call),
    )


class SearchDeadCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dead letters with words in their error or payload."""

    words: Annotated[str, msgspec.Meta(max_length=MAX_QUERY_CHARS, description="All of them; `wor*` is a prefix.")]
    queue: QueueName | None = None
    status: Letters = "dead"
    limit: PageLimit = 50
    cursor: Cursor = None


async def search(request: Request, call: SearchDeadCall) -> dict[str, Any]:
    """Search dead letters for words in their error or payload. The newest death is first."""
    check_page(request, call.limit)
    return await page_view(
        request, queue=call.queue, words=call.words, status=call.status, limit=call.limit, cursor=call.cursor
    )


async def groups_view(request: Request, groups: Sequence[Group]) -> dict[str, Any]:
    """Return groups, each with the breakers for its cause that are not closed."""
    breakers = await request.broker.run_flow(list_group_breakers(request.broker.core, groups))
    marks = {each: [view_of(status) for status in statuses] for each, statuses in breakers.items()}
    return {"groups": [{**view_of(group), "breakers": marks.get(group.fingerprint, [])} for group in groups]}


class RedriveDeadCall(BulkRedrive, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Redrive dead letters: those with the given ids immediately, or all that match, as an operation."""

    new_payload: Annotated[
        Any | msgspec.UnsetType, msgspec.Meta(description="With ids: a JSON value instead of the payload.")
    ] = msgspec.UNSET
    new_headers: Annotated[
        dict[str, str] | None, msgspec.Meta(description="With ids: headers instead of those of the item.")
    ] = None
    patch: Annotated[
        dict[str, Any] | None, msgspec.Meta(description="With ids: a JSON merge patch (RFC 7396) of the payload.")
    ] = None
    force: bool = False


async def redrive(request: Request, call: RedriveDeadCall) -> Any:
    """Redrive dead letters."""
    edited = call.new_payload is not msgspec.UNSET or call.new_headers is not None or call.patch is not None
    if not call.only_ids:
        if edited or call.force:
            raise InvalidInput("new_payload, new_headers, patch and force are for items that are named by their ids")
        return await change_many(request, "redrive", call)
    results = await request.broker.redrive(
        _listed(request, call),
        to=call.to,
        payload=... if call.new_payload is msgspec.UNSET else call.new_payload,
        headers=... if call.new_headers is None else call.new_headers,
        edit=call.patch,
        actor=call.actor,
        force=call.force,
        note=call.note,
    )
    return settled_answer(results)


def _listed(request: Request, call: Bulk) -> list[str]:
    """Return the ids that a call names."""
    ids = call.ids or []
    check_batch(request, len(ids))
    return ids


async def archive(request: Request, call: Bulk) -> Any:
    """Archive dead letters."""
    if not call.only_ids:
        return await change_many(request, "archive", call)
    return settled_answer(await request.broker.archive(_listed(request, call), actor=call.actor))


async def restore(request: Request, call: Bulk) -> Any:
    """Restore items from the archive."""
    if not call.only_ids:
        return await change_many(request, "restore", call)
    return settled_answer(await request.broker.restore(_listed(request, call), actor=call.actor))


async def purge(request: Request, call: Bulk) -> Any:
    """Remove archived items permanently."""
    if not call.only_ids:
        return await change_many(request, "purge", call)
    return settled_answer(await request.broker.purge(_listed(request, call), actor=call.actor))
