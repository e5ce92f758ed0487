"""The operations of a capture queue as flows: capture, find, list, count."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from redrive.broker.flow import Flow, run_query
from redrive.broker.flows import deliveries, registrations
from redrive.broker.flows.inspection import check_cursor, parse_choice
from redrive.broker.flows.settle import Judged, judge_first_failure, put_judged
from redrive.broker.validation import check_integer, to_instant
from redrive.capture.capture_alerts import QueueLevels
from redrive.capture.capture_errors import CaptureFullError
from redrive.capture.captured_task import (
    ADVICE_HEADER,
    CAPTURED,
    CATEGORY_HEADER,
    ID_HEADER,
    METADATA_HEADER,
    POLICY_HEADER,
    STATUS_OF_ITEM,
    TEMPLATE_HEADER,
    DeadLetterStatus,
    ErrorCategory,
    FailedTask,
    category_of_item,
    next_retry_at,
    task_of_item,
)
from redrive.capture.failure_templates import Diagnosis
from redrive.capture.retry_policies import CapturePolicy, first_overrides, policy_of_item
from redrive.clock import Instant
from redrive.contract.admin_calls import Registration, VersionConflict
from redrive.contract.item_calls import NewItem
from redrive.contract.queries import FindItems, GetItem, GetStats, Page
from redrive.errors import (
    Forbidden,
    InvalidInput,
    InvalidPayload,
    ItemNotFound,
    PayloadTooLarge,
    RedriveError,
    short_repr,
)
from redrive.model import limits
from redrive.model.filter import Filter, Order
from redrive.model.ids import ItemId
from redrive.model.item import Item, Overrides, Status
from redrive.model.judge import Dead, Verdict
from redrive.model.limits import DEFAULT_PRIORITY, MAX_HEADERS_BYTES, check_label
from redrive.model.payload import JSON, encode_payload
from redrive.model.queue import Queue, QueueStats
from redrive.model.worker_info import TASK_HEADER
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.broker.core import Core

PRIORITIES = {"high": 8, "medium": DEFAULT_PRIORITY, "low": 2}
PAGE = 500
MAX_LISTED = 1_000
MAX_METADATA_BYTES = MAX_HEADERS_BYTES // 2
_log = events.logger("redrive.capture")
_random = random.Random()  # a program may seed the shared generator of the module, and ids would repeat
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)
_COUNTED = (Status.PENDING, Status.FAILED, Status.ACTIVE, Status.DEAD)
"""Statuses of tasks whose categories and policies are counted."""
_ITEM_STATUSES: dict[DeadLetterStatus, tuple[Status, ...]] = {
    each: tuple(status for status, named in STATUS_OF_ITEM.items() if named is each and status is not Status.MOVING)
    for each in DeadLetterStatus
}


class Capture(msgspec.Struct, frozen=True, gc=False):
    """A failed task that is to be captured."""

    task_id: str
    name: str
    """The name of the function that can run it."""
    payload: bytes
    """JSON."""
    diagnosis: Diagnosis
    policy: str
    overrides: Overrides
    """The retry policy as a setting of the item."""
    metadata: str | None = None
    """JSON."""
    priority: int = DEFAULT_PRIORITY


class CaptureReceipt(msgspec.Struct, frozen=True, gc=False):
    """The receipt of a captured task."""

    id: ItemId
    headers: Mapping[str, str]
    is_new: bool
    """False if this was one more failure of a known task."""
    verdict: Verdict
    """The outcome of the first failure: the next retry, or death."""
    at: Instant

    @property
    def is_exhausted(self) -> bool:
        """True if a new task is not retried automatically."""
        return isinstance(self.verdict, Dead)

    @property
    def is_stored_as_given(self) -> bool:
        """True if the task is new and still in this queue."""
        return self.is_new and (
            not isinstance(self.verdict, Dead) or (self.verdict.to is None and not self.verdict.drop)
        )


def capture(core: Core, levels: QueueLevels, given: Capture) -> Flow[CaptureReceipt]:
    """Put a failed task with the verdict of its own policy; or record one more failure of a known task.

    Raises CaptureFullError if there is no room for a new task, and IdempotencyConflict for another task of a known id.
    """
    queue = yield from core.queue(levels.queue)
    failure = given.diagnosis.failure
    headers = _headers(given)
    own: Any = {"idempotency_key": given.task_id, "overrides": given.overrides, "is_capture": True}
    item = NewItem(given.payload, JSON, headers, given.priority, **own)  # checked when the failure was described
    first = first_overrides(given.policy, given.overrides)
    if not levels.has_room(core.clock.now()):
        try:
            yield from levels.check_room(core)
        except CaptureFullError as full:
            try:
                is_known = (yield from _owner(core, queue.name, given.task_id)) is not None
            except Forbidden:  # the caller may capture, and not read
                is_known = False
            if not is_known:
                raise full from None

    def judge(queue: Queue) -> Judged:
        return Judged(failure, judge_first_failure(core, queue, failure, first))

    done = yield from put_judged(core, queue.name, item, judge, CAPTURED)
    return CaptureReceipt(done.receipt.id, headers, not done.receipt.duplicate, done.verdict, done.at)


def _headers(given: Capture) -> dict[str, str]:
    """Return the headers of a captured task, which do not change later."""
    headers = {
        TASK_HEADER: given.name,
        ID_HEADER: given.task_id,
        POLICY_HEADER: given.policy,
        CATEGORY_HEADER: given.diagnosis.category.value,
    }
    if (template := given.diagnosis.template) is not None:
        headers[TEMPLATE_HEADER], headers[ADVICE_HEADER] = template.name, template.advice
    if given.metadata is not None:
        headers[METADATA_HEADER] = given.metadata
    return headers


def encode_metadata(metadata: Mapping[str, Any]) -> str:
    """Return metadata as the text of a header, in JSON. Raises InvalidInput or InvalidPayload."""
    if not isinstance(metadata, Mapping):
        raise InvalidInput(f"metadata is a mapping from names to values, not {short_repr(metadata, 60)}")
    try:
        data, _ = encode_payload(dict(metadata), None, MAX_METADATA_BYTES)
    except InvalidPayload as problem:
        raise InvalidPayload(problem.path, f"{problem.problem}; metadata is kept as JSON") from None
    except PayloadTooLarge as problem:
        limit = f"the limit is {MAX_METADATA_BYTES:,}; put the rest into the task"
        raise InvalidPayload("$.metadata", f"has {problem.size:,} bytes, and {limit}") from None
    return data.decode()


def new_task_id(name: str) -> str:
    """Return a random task id for a failed call of a function without a key."""
    return f"{name[:80]}-{_random.getrandbits(128):032x}"


def check_priority(priority: str | int | None) -> int:
    """Return the priority of an item for `high`, `medium`, `low`, or a number from 0 to 9."""
    if priority is None:
        return DEFAULT_PRIORITY
    if isinstance(priority, str):
        if priority not in PRIORITIES:
            raise InvalidInput(f"priority is high, medium, low, or a number from 0 to 9, not {priority!r:.40}")
        return PRIORITIES[priority]
    return limits.check_priority(priority)


def find_item(core: Core, queue: str, task_id: str) -> Flow[Item | None]:
    """Return the item of a task: the one that holds its id, else the newest one that completed or was cleared."""
    task_id = check_label("task_id", task_id)
    found: Item | None = yield from _owner(core, queue, task_id)
    for status in (Status.COMPLETED, Status.ARCHIVED):
        found = found or (yield from _newest(Filter(queue=queue, status=status, headers={ID_HEADER: task_id})))
    return found


def _newest(where: Filter) -> Flow[Item | None]:
    cursor: str | None = None
    while True:
        page: Page = yield from run_query(FindItems(where, Order.NEWEST, 1, cursor))
        if page.items:
            return page.items[0]
        cursor = page.cursor
        if cursor is None:
            return None


def _owner(core: Core, queue: str, task_id: str) -> Flow[Item | None]:
    items: list[Item | None] = yield from deliveries.find_by_key(core, queue, (task_id,), False)
    return items[0]


def get_task(core: Core, queue: str, task_id: str) -> Flow[FailedTask | None]:
    """Return a task, or None if it does not exist."""
    item = yield from find_item(core, queue, task_id)
    return None if item is None else task_of_item(item)


def task_by_item(id: ItemId) -> Flow[FailedTask | None]:
    """Return the task of an item, or None if the item does not exist any more."""
    try:
        item: Item = yield from run_query(GetItem(id))
    except ItemNotFound:
        return None
    return task_of_item(item)


class TaskPage(list[FailedTask]):
    """A page of tasks, and the `cursor` that continues after them; None on the last page."""

    cursor: str | None = None


class TaskFilter(NamedTuple):
    """The conditions of a list of tasks."""

    status: DeadLetterStatus | None = None
    category: ErrorCategory | None = None
    policy: str | None = None
    since: datetime | None = None
    before: datetime | None = None
    due_before: datetime | None = None

    @classmethod
    def parse(
        cls,
        status: DeadLetterStatus | str | None,
        category: ErrorCategory | str | None,
        policy: str | None,
        since: datetime | None,
        before: datetime | None,
        due_before: datetime | None,
    ) -> TaskFilter:
        """Return the filter for the arguments of a caller. Raises InvalidInput for an unknown status or category."""
        return cls(
            None if status is None else parse_choice("status", DeadLetterStatus, status),
            None if category is None else parse_choice("category", ErrorCategory, category),
            policy,
            since,
            before,
            due_before,
        )

    def filters(self, queue: str) -> list[Filter]:
        """Return the filters of items, in order, whose results together contain these tasks."""
        headers = {CATEGORY_HEADER: self.category, POLICY_HEADER: self.policy}
        wanted = {name: str(value) for name, value in headers.items() if value is not None}
        statuses: tuple[Status | None, ...] = (None,) if self.status is None else _ITEM_STATUSES[self.status]
        return [
            Filter(
                queue=queue,
                status=status,
                headers=wanted or None,
                since=None if self.since is None else to_instant("since", self.since),
                until=None if self.before is None else to_instant("before", self.before),
            )
            for status in statuses
        ]

    def matches(self, item: Item) -> bool:
        """Return whether an item that the filters find meets all conditions. They also find dead letters in retry."""
        if self.status is not None and STATUS_OF_ITEM[item.status] is not self.status:
            return False
        if self.due_before is None:
            return True
        at = next_retry_at(item)
        return at is not None and at < to_instant("due_before", self.due_before)


def list_tasks(queue: str, where: TaskFilter, limit: int, cursor: str | None) -> Flow[TaskPage]:
    """Return a page of up to `limit` tasks, newest first, with a cursor if there are more."""
    items, position = yield from find_items(queue, where, limit, cursor)
    found = TaskPage(map(task_of_item, items))
    found.cursor = position
    return found


def find_items(queue: str, where: TaskFilter, limit: int, cursor: str | None) -> Flow[tuple[list[Item], str | None]]:
    """Return the items of up to `limit` tasks, newest first, and a cursor if there are more."""
    check_integer("limit", limit, 1, MAX_LISTED)
    filters = where.filters(queue)
    at, _, position = (cursor or "0:").partition(":")
    if not at.isdecimal() or int(at) >= len(filters):
        raise InvalidInput(f"cursor is what list_tasks returned, not {cursor!r:.40}")
    found: list[Item] = []
    index, place = int(at), position or None
    check_cursor(place)
    while index < len(filters):
        page: Page = yield from run_query(FindItems(filters[index], Order.NEWEST, limit - len(found), place))
        found += filter(where.matches, page.items)
        place = page.cursor
        if place is None:
            index += 1
        if len(found) >= limit:
            break
    return found, f"{index}:{place or ''}" if index < len(filters) else None


def count_manual_retry(queue: str) -> Flow[None]:
    """Add one to the manual retries of a queue. An error of the broker is logged only, so that the retry continues."""
    written: Registration | VersionConflict | None = None
    try:
        while written is None or isinstance(written, VersionConflict):  # another process was faster
            value, version = yield from _manual_retries(queue)
            text = str(value + 1).encode()
            written = yield from registrations.register(registrations.MANUAL_RETRIES, queue, text, version=version)
    except RedriveError as error:
        _log.warning("manual_retry_not_counted", queue=queue, error=str(error))


def _manual_retries(queue: str) -> Flow[tuple[int, int]]:
    """Return the number of runs by `retry_task` in a queue, and the version of that count."""
    found = yield from registrations.list_registrations(registrations.MANUAL_RETRIES, queue)
    return (int(found[0].value), found[0].version) if found else (0, 0)


def has_processor(queue: str) -> Flow[bool]:
    """Return whether any process runs a retry processor of the queue."""
    return any(queue in worker.queues for worker in (yield from registrations.workers()))


def statistics(core: Core, levels: QueueLevels, interval: float) -> Flow[dict[str, Any]]:
    """Return counts of tasks, and totals since the queue was created."""
    queue = levels.queue
    stats: QueueStats = yield from run_query(GetStats(queue))
    levels.update(stats, core.clock.now())
    size = levels.size
    categories: dict[str, int] = dict.fromkeys(ErrorCategory, 0)
    policies: dict[str, int] = dict.fromkeys(CapturePolicy, 0)
    for status in _COUNTED:
        cursor: str | None = None
        while True:
            page: Page = yield from run_query(FindItems(Filter(queue=queue, status=status), Order.OLDEST, PAGE, cursor))
            for item in page.items:
                if item.status is not status:
                    continue  # a dead letter in retry, which is counted as active
                for named, counts in ((category_of_item(item), categories), (policy_of_item(item), policies)):
                    if named is not None:
                        counts[named] = counts.get(named, 0) + 1
            cursor = page.cursor
            if cursor is None:
                break
    is_running = yield from has_processor(queue)
    manual_retries, _ = yield from _manual_retries(queue)
    return {
        "queue_size": size,
        "max_size": levels.max_size,
        "utilization_percent": round(100 * size / levels.max_size, 2) if levels.max_size else 0.0,
        "status_breakdown": {
            "pending": stats.pending + stats.failed,
            "retrying": stats.active,
            "exhausted": stats.dead,
            "completed": stats.completed,
            "archived": stats.archived,
        },
        "error_categories": {str(category): count for category, count in categories.items()},
        "retry_policies": {str(policy): count for policy, count in policies.items()},
        "lifetime_stats": {
            "enqueued_total": stats.put_total,
            "retry_success": stats.completed_total,
            "retry_failed": stats.failed_total - stats.captured_total,
            "exhausted": stats.dead_total,
            "manually_retried": stats.redriven_total + manual_retries,
            "archived": stats.archived_total,
        },
        "is_processor_running": is_running,
        "retry_interval_seconds": interval,
    }
