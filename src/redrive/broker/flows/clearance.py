"""Clearing of a queue: many items are dropped, or deleted permanently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from redrive.broker.flow import Flow, run_query
from redrive.broker.flows import manual_changes
from redrive.broker.flows.inspection import count_all
from redrive.broker.validation import check_integer, check_progress, check_texts
from redrive.clock import Instant
from redrive.contract.queries import FindItems, Page
from redrive.errors import ConfirmationMismatch, InvalidInput, RedriveError, short_repr
from redrive.model.caller_input import flag
from redrive.model.duration import DurationInput, parse_duration
from redrive.model.filter import Filter, Order
from redrive.model.ids import MAX_NUMBER, ItemId
from redrive.model.item import Item, Settled, Status
from redrive.model.limits import check_name
from redrive.model.state_machine import Verb

if TYPE_CHECKING:
    from redrive.broker.core import Core

CLEARED_TOGETHER = 1000
"""Items that are dropped in one transaction."""
_CLEARABLE = (Status.PENDING, Status.FAILED, Status.COMPLETED, Status.DEAD, Status.ARCHIVED)


class ClearResult(msgspec.Struct, frozen=True):
    """The result of `clear_queue`."""

    matched: Mapping[str, int]
    """Number of items that matched before the clearing, by status."""
    cleared: int = 0
    skipped: Mapping[str, int] = {}
    """Number of items that stay because another caller changed them, by the code of the refusal."""
    undo_until: Instant | None = None
    """The instant until which the last of them can be restored at least."""

    @property
    def total(self) -> int:
        """Number of items that matched before the clearing."""
        return sum(self.matched.values())


def clear_queue(
    core: Core,
    queue: str | None,
    statuses: str | Iterable[str],
    *,
    final: bool = False,
    older_than: DurationInput = 0,
    confirm: int | None = None,
    dry_run: bool = False,
    limit: int | None = None,
    actor: str | None = None,
    progress: Callable[[int], object] | None = None,
    named: str = "queue",
) -> Flow[ClearResult]:
    """Drop items of these statuses, from the oldest on; `final`: delete them permanently, dropped ones too.

    Items that are leased, or that another caller changes, stay. `named` is the word for the queue in a refusal.
    """
    name = None if queue is None else check_name("queue", queue)
    is_final, is_dry_run = flag("final", final), flag("dry_run", dry_run)
    age = parse_duration(older_than, "older_than")
    before = Instant(core.clock.now() - age) if age else None
    check_progress(progress)
    if confirm is not None:
        check_integer("confirm", confirm, 0, MAX_NUMBER)
    filters: list[Filter] = []
    matched: dict[str, int] = {}
    chosen = dict.fromkeys(check_texts("statuses", statuses, "statuses", _check_status))
    for status in chosen:
        until = None if status == Status.COMPLETED else before  # filters compare the put time of completed items
        where = Filter(status=Status(status), queue=name, until=until, dropped=None if is_final else False)
        filters.append(where)
        matched[status] = yield from _count(where, before, [each for each in chosen if each != status])
    found = ClearResult(matched)
    if is_dry_run:
        return found
    if confirm is not None and confirm != found.total:
        raise ConfirmationMismatch(f"clearing {named} '{name}'", confirm, found.total)
    results: list[Settled | RedriveError] = []
    most = MAX_NUMBER if limit is None else limit
    for where in filters:
        cursor: str | None = None
        while len(results) < most:
            size = min(CLEARED_TOGETHER, most - len(results))
            page: Page = yield from run_query(FindItems(where, Order.OLDEST, size, cursor))
            ids = [item.id for item in page.items if _is_meant(item, before)]
            is_archived = where.status is Status.ARCHIVED
            results += yield from _clear_items(core, ids, actor, is_archived=is_archived, final=is_final)
            if progress is not None and ids:
                progress(len(results))
            cursor = page.cursor
            if cursor is None:
                break
    return _summed(matched, results)


def _check_status(status: object) -> str:
    if status not in _CLEARABLE:
        raise InvalidInput(f"statuses can be {', '.join(_CLEARABLE)}, not {short_repr(status, 40)}")
    return str(status)


def _is_meant(item: Item, before: Instant | None) -> bool:
    """Return whether an item that a filter found is old enough. The filter checks it for all but completed items."""
    return before is None or item.status is not Status.COMPLETED or (item.ended_at or item.put_at) <= before


def _count(where: Filter, before: Instant | None, others: Sequence[str]) -> Flow[int]:
    """Return the number of items that a filter finds and a filter on one of the other statuses does not: dead letters
    that wait in a dead queue are found as dead and as what they are."""
    is_shared = where.status is Status.DEAD and bool(others)
    if not is_shared and (where.status is not Status.COMPLETED or before is None):
        return (yield from count_all(where))
    total, cursor = 0, None
    while True:
        page: Page = yield from run_query(FindItems(where, Order.OLDEST, CLEARED_TOGETHER, cursor))
        total += sum(item.status not in others and _is_meant(item, before) for item in page.items)
        cursor = page.cursor
        if cursor is None:
            return total


def _clear_items(
    core: Core, ids: Sequence[ItemId], actor: str | None, *, is_archived: bool, final: bool
) -> Flow[list[Settled | RedriveError]]:
    """Drop items; `final`: then delete those that the drop archived. Archived items are only deleted, if `final`.
    Returns a result for each."""
    if not ids:
        return []
    results: list[Settled | RedriveError]
    if final and is_archived:
        results = yield from manual_changes.change(core, Verb.PURGE, ids, actor)
        return results
    results = yield from manual_changes.change(core, Verb.DROP, ids, actor)
    kept = [each.id for each in results if isinstance(each, Settled) and each.status is not None]
    if not final or not kept:
        return results
    others = [each for each in results if isinstance(each, RedriveError) or each.status is None]
    return [*others, *(yield from manual_changes.change(core, Verb.PURGE, kept, actor))]


def _summed(matched: Mapping[str, int], results: Sequence[Settled | RedriveError]) -> ClearResult:
    cleared = [each for each in results if isinstance(each, Settled)]
    skipped = Counter(each.code for each in results if isinstance(each, RedriveError))
    until = max((each.undo_until for each in cleared if each.undo_until is not None), default=None)
    return ClearResult(matched, len(cleared), skipped, until)
