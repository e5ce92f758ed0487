"""The feed: past entries, and waiting for the next ones."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from redrive.contract.queries import FeedPage
from redrive.model.duration import SECOND, parse_duration
from redrive.model.feed import FeedKind
from redrive.server.feed_followers import wait_for_feed
from redrive.server.field_types import DurationInput, ItemIdText, Label, PageLimit, QueueName, check_page
from redrive.server.request import Request
from redrive.server.routes.vocabulary import Number, read_number
from redrive.wire.json_views import view_of, view_type

FeedView = view_type(FeedPage)


class FeedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latest entries, oldest first; or the entries after a number, waiting for them if needed."""

    after: Annotated[Number | None, msgspec.Meta(description="Continue after this: `last` of the previous answer.")] = (
        None
    )
    before: Number | None = None
    queue: QueueName | None = None
    id: ItemIdText | None = None
    kinds: Annotated[list[FeedKind], msgspec.Meta(min_length=1, max_length=len(FeedKind))] | None = None
    operation: Label | None = None
    limit: PageLimit = 100
    wait: Annotated[DurationInput, msgspec.Meta(description="With `after`: how long to wait for an entry.")] = 0.0


async def feed(request: Request, call: FeedCall) -> dict[str, Any]:
    """Read the feed in order, and wait for the next entries."""
    check_page(request, call.limit)
    wanted: dict[str, Any] = {
        "queue": call.queue,
        "id": call.id,
        "kinds": call.kinds,
        "operation": call.operation,
        "limit": call.limit,
    }
    wait = min(parse_duration(call.wait, "wait") / SECOND, request.limits.wait_seconds)
    after, before = (None if each is None else read_number(request, each) for each in (call.after, call.before))
    page = await request.broker.feed(after=after, before=before, **wanted)
    if not page.entries and not page.more and wait and after is not None and before is None:
        waited = wait_for_feed(request.broker, request.unbound or request.broker, page.last, wait, **wanted)
        page = await request.wait_for(waited) or page
        await request.check_admitted()
    return view_of(page)
