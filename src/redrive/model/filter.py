"""Filters: conditions that select items. Every call that reads or changes many items takes one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from redrive.clock import Instant
from redrive.errors import InvalidInput, short_repr
from redrive.model.classify import ErrorClass, names_of
from redrive.model.death import Cause, DeadReason
from redrive.model.ids import HEXADECIMAL, MAX_NUMBER, ItemId
from redrive.model.item import Counters, Status

MAX_IDS = 10_000
"""The maximum number of ids in a filter."""
MAX_EXAMINED = 10_000
"""The maximum number of items that one call examines. A page may therefore be short, and has a cursor to continue."""


class Order(StrEnum):
    """The order of the items found: by the death for filters on dead letters and archived items, else by the put."""

    NEWEST = "newest"
    OLDEST = "oldest"


class Filter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The conditions that an item must meet, all of them; None is no condition. `Conditions` describes each one."""

    status: Status | None = Status.DEAD
    queue: str | None = None
    origin_queue: str | None = None
    reason: DeadReason | None = None
    error_type: str | None = None
    error_class: ErrorClass | None = None
    fingerprint: str | None = None
    words: str | None = None
    since: Instant | None = None
    until: Instant | None = None
    min_attempts: int | None = None
    min_redrives: int | None = None
    max_redrives: int | None = None
    headers: Mapping[str, str] | None = None
    held: bool | None = None
    held_by: str | None = None
    operation: str | None = None
    ids: tuple[ItemId, ...] | None = None
    id_prefix: str | None = None
    archived: bool | None = None
    dropped: bool | None = None

    @property
    def is_for_dead_letters(self) -> bool:
        """True if it selects dead letters or archived items, which are found in the order of their deaths."""
        return self.status is Status.DEAD or self.status is Status.ARCHIVED

    @property
    def takes_archived(self) -> bool:
        """True if archived items can meet it, by the status or by another condition."""
        if self.status is not None or self.archived or self.dropped:
            return True
        return self.ids is not None or self.id_prefix is not None or self.operation is not None

    @property
    def has_stored_count(self) -> bool:
        """True if it selects dead letters only by queue and fingerprint, for which stores keep counts."""
        return self == Filter(queue=self.queue, fingerprint=self.fingerprint)


class FilterSubject(msgspec.Struct, frozen=True, gc=False):
    """The data of one item that a filter checks, except words."""

    id: ItemId
    status: Status
    is_dead_letter: bool
    queue: str
    origin_queue: str
    at: Instant
    """The instant of the death (dead letters), of the put, or, of an archived item, from which retention counts."""
    counters: Counters
    """The current counters; of dead letters, archived or not, those at the last death, with the current redrives."""
    held_by: tuple[str, ...] = ()
    reason: DeadReason | None = None
    """The reason of the last death, for dead letters, archived or not."""
    cause: Cause | None = None
    headers: Mapping[str, str] | None = None
    is_dropped: bool = False


def matches(where: Filter, item: FilterSubject) -> bool:
    """Return whether an item meets every condition except `words`, `operation` and `ids`, which stores look up."""
    if where.status is Status.DEAD:
        if not item.is_dead_letter:
            return False
    elif where.status is not None and item.status is not where.status:
        return False
    if item.status is Status.ARCHIVED and not where.takes_archived:
        return False
    return (
        (where.queue is None or item.queue == where.queue)
        and (where.id_prefix is None or item.id.startswith(where.id_prefix))
        and (where.origin_queue is None or item.origin_queue == where.origin_queue)
        and (where.reason is None or item.reason is where.reason)
        and (where.since is None or item.at >= where.since)
        and (where.until is None or item.at < where.until)
        and _meets_cause(where, item.cause)
        and _meets_counters(where, item.counters)
        and (where.dropped is None or item.is_dropped is where.dropped)
        and (where.held is None or bool(item.held_by) is where.held)
        and (where.held_by is None or where.held_by in item.held_by)
        and meets_headers(where, item.headers)
    )


def _meets_cause(where: Filter, cause: Cause | None) -> bool:
    if where.error_type is None and where.error_class is None and where.fingerprint is None:
        return True
    if cause is None:
        return False
    return (
        (where.fingerprint is None or cause.fingerprint == where.fingerprint)
        and (where.error_class is None or cause.error_class is where.error_class)
        and (where.error_type is None or where.error_type in names_of(cause.error_type))
    )


def _meets_counters(where: Filter, counters: Counters) -> bool:
    return (
        (where.min_attempts is None or counters.attempts >= where.min_attempts)
        and (where.min_redrives is None or counters.redrives >= where.min_redrives)
        and (where.max_redrives is None or counters.redrives <= where.max_redrives)
    )


def meets_headers(where: Filter, headers: Mapping[str, str] | None) -> bool:
    """Return whether an item has the headers of the filter; separate, because a store can check them first."""
    if where.headers is None:
        return True
    return headers is not None and all(headers.get(name) == value for name, value in where.headers.items())


_DIGITS = 16


def make_cursor(where: Filter, order: Order, position: int) -> str:
    """Return the cursor that continues after the item at that position."""
    return f"{_cursor_kind(where, order)}{position:0{_DIGITS}x}"


def parse_cursor(where: Filter, order: Order, cursor: str | None) -> int | None:
    """Return the position of a cursor. Raise InvalidInput if it is not a cursor of this filter and order."""
    if cursor is None:
        return None
    kind, digits = cursor[:-_DIGITS], cursor[-_DIGITS:]
    if kind != _cursor_kind(where, order) or not set(digits) <= HEXADECIMAL or int(digits, 16) > MAX_NUMBER:
        raise InvalidInput(
            f"{short_repr(cursor, 40)} is not a cursor of this search; pass the cursor of the previous page with the "
            f"same filter and order, or none to start over"
        )
    return int(digits, 16)


def _cursor_kind(where: Filter, order: Order) -> str:
    return f"{where.status.value if where.status and where.is_for_dead_letters else 'put'}-{order}-"
