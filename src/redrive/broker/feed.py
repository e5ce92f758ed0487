"""The feed: read it page by page, or follow it live."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from redrive.broker.checks import whole
from redrive.broker.finding import one_of
from redrive.broker.flow import Await, Flow, ask
from redrive.broker.notify import EVERYTHING
from redrive.broker.redaction import known
from redrive.clock import Instant
from redrive.errors import InvalidInput, shown
from redrive.model.duration import SECOND, DurationInput, parse_duration
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.given import listed, reading
from redrive.model.ids import MAX_NUMBER, check_id
from redrive.model.limits import MAX_BATCH, check_label, check_name
from redrive.store import FeedPage, ReadFeed

if TYPE_CHECKING:
    from redrive.broker.core import Core

LONGEST_WAIT = SECOND
"""Whoever follows looks at least this often, though a wake-up comes with every change."""


def query(
    *,
    queue: str | None,
    id: str | None,
    kinds: str | Iterable[str] | None,
    operation: str | None,
    after: int | None = None,
    before: int | None = None,
    limit: int = MAX_BATCH,
) -> ReadFeed:
    """What to read, with every argument checked."""
    whole("limit", limit, 1, MAX_BATCH)
    for what, number in (("after", after), ("before", before)):
        if number is not None:
            whole(what, number, 0, MAX_NUMBER)
    return ReadFeed(
        after=after,
        limit=limit,
        queue=None if queue is None else check_name("queue", queue),
        id=None if id is None else check_id(id),
        kinds=None if kinds is None else _kinds(kinds),
        operation=None if operation is None else check_label("operation", operation),
        before=before,
    )


def read(core: Core, asked: ReadFeed) -> Flow[FeedPage]:
    """One page: the newest, unless a number says otherwise. QueueNotFound where nothing tells of the queue."""
    if asked.after is None and asked.before is None:
        asked = msgspec.structs.replace(asked, before=MAX_NUMBER)
    page: FeedPage = yield from ask(asked)
    if asked.queue is not None and not page.entries and not page.more:
        yield from core.queue(asked.queue)
    shown = yield from known(core, (entry.queue for entry in page.entries if entry.title))
    return msgspec.structs.replace(page, entries=tuple(map(shown.feed_entry, page.entries)))


def newest() -> ReadFeed:
    """What tells where the feed ends now: the `last` of its answer is the number to follow from."""
    return ReadFeed(before=MAX_NUMBER, limit=1)


def beyond(core: Core, number: int) -> Flow[FeedPage]:
    """What there is behind a number, of whatever kind; where that is nothing, once there may be something. Nothing is
    hidden in it."""
    ticket = core.notify.ticket(EVERYTHING)
    page: FeedPage = yield from ask(ReadFeed(after=number, limit=MAX_BATCH))
    if not page.entries and not page.more:
        yield Await(EVERYTHING, ticket, Instant(core.clock.now() + LONGEST_WAIT), None)
    return page


class Follower:
    """Where one that follows the feed stands."""

    def __init__(self, core: Core, asked: ReadFeed, wait: DurationInput | None) -> None:
        self._core = core
        self._asked = asked
        self._wait = None if wait is None else parse_duration(wait, "wait")

    def begin_behind(self, number: int) -> None:
        """Give what comes after this number."""
        self._asked = msgspec.structs.replace(self._asked, after=number)

    def next(self) -> Flow[tuple[FeedEntry, ...]]:
        """The next entries. None of them where the wait is over."""
        core = self._core
        end = None if self._wait is None else Instant(core.clock.now() + self._wait)
        while True:
            ticket = core.notify.ticket(EVERYTHING)
            page: FeedPage = yield from read(core, self._asked)
            self._asked = msgspec.structs.replace(self._asked, after=page.last)
            now = core.clock.now()
            if page.entries or (end is not None and now >= end and not page.more):
                return page.entries
            if not page.more:
                until = Instant(now + LONGEST_WAIT)
                yield Await(EVERYTHING, ticket, until if end is None else min(until, end), None)


def _kinds(kinds: str | Iterable[str]) -> tuple[FeedKind, ...]:
    with reading("kinds"):
        if isinstance(kinds, Iterable) and not isinstance(kinds, bytes | bytearray):
            wanted = (kinds,) if isinstance(kinds, str) else listed("kinds", kinds, MAX_BATCH)
            return tuple(dict.fromkeys(one_of("kinds", FeedKind, kind) for kind in wanted))
    raise InvalidInput(f"kinds are a list of {', '.join(FeedKind)}, not {shown(kinds, 60)}")
