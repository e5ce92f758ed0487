"""Inspection: find, count and group items by filters; read and follow the feed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from redrive.broker.flow import Flow, WaitForQueue, run_query
from redrive.broker.notifier import ALL_QUEUES
from redrive.broker.redaction import queues_of, redaction_for
from redrive.broker.validation import check_integer, to_instant
from redrive.clock import Instant
from redrive.contract.queries import (
    AuditEntry,
    Counted,
    CountItems,
    FeedPage,
    FindItems,
    ListAudit,
    ListGroups,
    Page,
    ReadFeed,
)
from redrive.errors import InvalidDuration, InvalidInput, InvalidName, short_repr
from redrive.model.caller_input import checking_input, exact_str, flag, listed
from redrive.model.declaration import options_of
from redrive.model.duration import MAX_DURATION, SECOND, DurationInput, parse_duration
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.filter import MAX_IDS, Filter, Order
from redrive.model.group import Group
from redrive.model.ids import MAX_NUMBER, ItemId, check_id, ids_of
from redrive.model.item import Item, Status
from redrive.model.limits import MAX_BATCH, MAX_COUNT, check_instant, check_label, check_name, text_problem
from redrive.model.options import Conditions, SinceInput
from redrive.model.payload import check_headers
from redrive.model.search_terms import MAX_QUERY_CHARS, parse_query
from redrive.model.text import suggest

if TYPE_CHECKING:
    from redrive.broker.core import Core

MAX_REFILLS = 10
"""Maximum number of queries that fill a page if the store examines many items and few match."""
_ANY = "any"
_CONDITIONS = options_of(Conditions)
# A larger number of seconds is most likely a Unix time, and not an age.
_LONGEST_AGO = 30 * 365 * 86_400
# Names of conditions in other programs, for suggestions.
_FOREIGN_NAMES = {"state": "status", "query": "words", "search": "words", "text": "words", "type": "error_type"}

_E = TypeVar("_E", bound=StrEnum)


def find(
    core: Core,
    where: Filter | None,
    conditions: Mapping[str, Any],
    *,
    order: str,
    limit: int,
    cursor: str | None,
    redacted: bool,
) -> Flow[Page]:
    """Find one page, and fill it up if the store stopped early at its limit of examined items."""
    filter = build_filter(where, conditions, core.clock.now())
    wanted = parse_choice("order", Order, order)
    check_integer("limit", limit, 1, MAX_BATCH)
    check_cursor(cursor)
    hides = flag("redacted", redacted)
    items: list[Item] = []
    for _ in range(MAX_REFILLS):
        page: Page = yield from run_query(FindItems(filter, wanted, limit - len(items), cursor))
        items += page.items
        cursor = page.cursor
        if cursor is None or len(items) >= limit:
            break
    if hides:
        view = yield from redaction_for(core, (queue for item in items for queue in queues_of(item)))
        items = [view.item(item) for item in items]
    return Page(tuple(items), cursor)


def count(core: Core, where: Filter | None, conditions: Mapping[str, Any]) -> Flow[int]:
    """Count the items that match, with as many queries as needed."""
    return (yield from count_all(build_filter(where, conditions, core.clock.now())))


def count_all(where: Filter) -> Flow[int]:
    """Return the sum of the counts over all cursors."""
    total, cursor = 0, None
    while True:
        counted: Counted = yield from run_query(CountItems(where, cursor))
        total += counted.count
        cursor = counted.cursor
        if cursor is None:
            return total


def groups(core: Core, queue: str | None, limit: int) -> Flow[tuple[Group, ...]]:
    """Return the largest groups of dead letters."""
    check_integer("limit", limit, 1, MAX_BATCH)
    name = None if queue is None else check_name("queue", queue)
    found = yield from run_query(ListGroups(name, limit))
    view = yield from redaction_for(core, None if found else ())
    return tuple(map(view.group, found))


def build_filter(
    where: Filter | None, conditions: Mapping[str, Any], now: Instant, status: Status | None = Status.DEAD
) -> Filter:
    """Return the filter of a call: the given one, or one of the conditions; `status` if those name none."""
    if where is None:
        return filter_from({"status": status, **conditions}, now)
    if type(where) is not Filter:
        raise InvalidInput(
            f"where is a Filter, not {short_repr(where, 60)}; or give conditions, as in find(queue='jobs')"
        )
    if conditions:
        raise InvalidInput(f"a Filter and conditions ({', '.join(conditions)}) were given; put all into one of them")
    for name in ("since", "until"):
        if getattr(where, name) is not None:
            check_instant(name, getattr(where, name))
    checked = filter_from({name: getattr(where, name) for name in _CONDITIONS}, now)
    return msgspec.structs.replace(checked, since=where.since, until=where.until)


def filter_from(conditions: Mapping[str, Any], now: Instant) -> Filter:
    """Return a filter from conditions of a caller. Every value is checked."""
    for name in conditions:
        if name not in _CONDITIONS:
            meant = suggest(name, _CONDITIONS, _FOREIGN_NAMES)
            raise InvalidInput(f"{short_repr(name, 60)} is not a condition{meant}; there are {', '.join(_CONDITIONS)}")
    return Filter(**{name: _checked(name, value, now) for name, value in conditions.items()})


def _checked(name: str, value: Any, now: Instant) -> Any:
    if value is None:
        return None
    option = _CONDITIONS[name]
    with checking_input(name):
        if name in _CHECKS:
            return _CHECKS[name](name, value)
        if option.type == SinceInput:
            return _instant(name, value, now)
        if option.choices is not None:
            return parse_choice(name, option.choices, value)
        if option.type is int:
            check_integer(name, value, 0, MAX_COUNT)
            return value
        return _flag(name, value) if option.type is bool else check_label(name, value)


def parse_choice(what: str, kind: type[_E], value: Any, *others: str) -> _E:
    """Return the member of an enumeration that a text names. `others` are further allowed words, for the error."""
    with checking_input(what):
        text = exact_str(value) if isinstance(value, str) else None
    if text in tuple(kind):
        return kind(text)
    known = (*kind, *others)
    meant = "" if text is None else suggest(text.lower(), known, {})
    raise InvalidInput(f"{what} must be one of {', '.join(known)}, not {short_repr(value, 40)}{meant}")


def check_cursor(cursor: object) -> None:
    """Raise unless it is None or text, as cursors are."""
    if cursor is not None and type(cursor) is not str:
        raise InvalidInput(f"a cursor is the text that the page before carried, not {short_repr(cursor, 60)}")


def _status(name: str, value: Any) -> Status | None:
    return None if type(value) is str and value == _ANY else parse_choice(name, Status, value, _ANY)


def _instant(name: str, value: Any, now: Instant) -> Instant:
    """Return the instant of a datetime, of an age, or of an int above every age: microseconds since 1970."""
    if isinstance(value, datetime):
        return to_instant(name, value)
    if isinstance(value, int) and not isinstance(value, bool) and value > MAX_DURATION // SECOND:
        return Instant(check_instant(name, value))
    if isinstance(value, int | float) and value > _LONGEST_AGO:
        raise InvalidDuration(
            name, value, "would be more than 30 years ago; write a Unix time as datetime.fromtimestamp(…, UTC)"
        )
    return Instant(max(0, now - parse_duration(value, name)))


def _error_type(name: str, value: Any) -> str:
    if isinstance(value, type):
        raise InvalidName(name, value, f"is not text; give its name, '{value.__name__}'")
    return check_label(name, value)


def _words(name: str, value: Any) -> str:
    fits = isinstance(value, str) and len(value) <= MAX_QUERY_CHARS and not text_problem(value)
    if not fits or not any(parse_query(value)):
        raise InvalidInput(
            f"words needs letters or digits, up to {MAX_QUERY_CHARS} characters, not {short_repr(value, 60)}"
        )
    return exact_str(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} is true or false, not {short_repr(value, 40)}")
    return value


def _ids(name: str, value: Any) -> tuple[ItemId, ...]:
    return ids_of(value, MAX_IDS, "a list of ids", "filter")


def _id_prefix(name: str, value: Any) -> str:
    if type(value) is not str or not 1 <= len(value) <= 32 or not set(value) <= set("0123456789abcdef"):
        raise InvalidInput(f"id_prefix is the first digits of an id, 0-9 and a-f, not {short_repr(value, 60)}")
    return value


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "status": _status,
    "queue": check_name,
    "origin_queue": check_name,
    "error_type": _error_type,
    "words": _words,
    "headers": lambda _, value: check_headers(value) or None,
    "ids": _ids,
    "id_prefix": _id_prefix,
}
"""Checks of conditions that have a rule in addition to their type."""


LONGEST_WAIT = SECOND
"""Maximum time between two polls of a follower, in addition to the wake-up by each change."""


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
    """Return the query for these arguments, all checked."""
    check_integer("limit", limit, 1, MAX_BATCH)
    for what, number in (("after", after), ("before", before)):
        if number is not None:
            check_integer(what, number, 0, MAX_NUMBER)
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
    """Read one page: the newest, unless a number is given. Raises QueueNotFound if the queue has no entry and does not
    exist."""
    if asked.after is None and asked.before is None:
        asked = msgspec.structs.replace(asked, before=MAX_NUMBER)
    page: FeedPage = yield from run_query(asked)
    if asked.queue is not None and not page.entries and not page.more:
        yield from core.queue(asked.queue)
    shown = yield from redaction_for(core, (entry.queue for entry in page.entries if entry.title))
    return msgspec.structs.replace(page, entries=tuple(map(shown.feed_entry, page.entries)))


def newest() -> ReadFeed:
    """Return the query for the current end of the feed: the `last` of its answer is the number to follow from."""
    return ReadFeed(before=MAX_NUMBER, limit=1)


def audit(core: Core, limit: int, before: int | None) -> Flow[tuple[AuditEntry, ...]]:
    """Read a page of the audit: manual changes, newest first."""
    check_integer("limit", limit, 1, MAX_BATCH)
    if before is not None:
        check_integer("before", before, 0, MAX_NUMBER)
    entries = yield from run_query(ListAudit(limit, before))
    view = yield from redaction_for(core, (entry.queue for entry in entries if entry.note))
    return tuple(map(view.audit_entry, entries))


def wait_beyond(core: Core, number: int) -> Flow[FeedPage]:
    """Read the entries after a number, of all kinds and unredacted; if there are none, wait for a change and return the
    empty page."""
    ticket = core.notify.sequence(ALL_QUEUES)
    page: FeedPage = yield from run_query(ReadFeed(after=number, limit=MAX_BATCH))
    if not page.entries and not page.more:
        yield WaitForQueue(ALL_QUEUES, ticket, Instant(core.clock.now() + LONGEST_WAIT), None)
    return page


class FeedCursor:
    """The position of a follower of the feed."""

    def __init__(self, core: Core, asked: ReadFeed, wait: DurationInput | None) -> None:
        self._core = core
        self._asked = asked
        self._wait = None if wait is None else parse_duration(wait, "wait")

    def begin_behind(self, page: FeedPage) -> None:
        """Continue after this page."""
        self._asked = msgspec.structs.replace(self._asked, after=page.last)

    def next(self) -> Flow[tuple[FeedEntry, ...]]:
        """Return the next entries; an empty tuple if the wait has expired."""
        core = self._core
        end = None if self._wait is None else Instant(core.clock.now() + self._wait)
        while True:
            ticket = core.notify.sequence(ALL_QUEUES)
            page: FeedPage = yield from read(core, self._asked)
            self.begin_behind(page)
            now = core.clock.now()
            if page.entries or (end is not None and now >= end and not page.more):
                return page.entries
            if not page.more:
                until = Instant(now + LONGEST_WAIT)
                yield WaitForQueue(ALL_QUEUES, ticket, until if end is None else min(until, end), None)


def _kinds(kinds: str | Iterable[str]) -> tuple[FeedKind, ...]:
    with checking_input("kinds"):
        if isinstance(kinds, Iterable) and not isinstance(kinds, bytes | bytearray):
            wanted = (kinds,) if isinstance(kinds, str) else listed("kinds", kinds, MAX_BATCH)
            return tuple(dict.fromkeys(parse_choice("kinds", FeedKind, kind) for kind in wanted))
    raise InvalidInput(f"kinds are a list of {', '.join(FeedKind)}, not {short_repr(kinds, 60)}")
