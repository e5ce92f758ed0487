"""Handles, which `put` returns, and the wait for a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from redrive.broker.flow import Flow, WaitForQueue, run_query
from redrive.broker.redaction import queues_of, redaction_for
from redrive.clock import Instant
from redrive.contract.queries import GetItem, GetResult
from redrive.errors import ItemNotFound, ResultNotKept, ResultTimeout, StoreUnavailable, TaskFailed
from redrive.model.delivery_end import DEADLY_EVENTS
from redrive.model.duration import MINUTE, SECOND, DurationInput, parse_duration
from redrive.model.ids import ItemId, result_topic
from redrive.model.item import HistoryEvent, Item, Receipt, Result, Status

if TYPE_CHECKING:
    from redrive.broker.core import Core
    from redrive.task.task import Task

POLL_INTERVAL = SECOND
"""Interval of polls: a notification can be lost with a connection, and a completion without a result sends none."""
MAX_OUTAGE = MINUTE
"""Time for which a store that cannot be reached, as while its server restarts, is polled again."""
_NOWHERE = "-"
"""A name that no queue can have."""

R_co = TypeVar("R_co", covariant=True)


class TaskHandle(Generic[R_co]):
    """A task that was put."""

    def __init__(self, task: Task[..., R_co], receipt: Receipt) -> None:
        self._task = task
        self.receipt = receipt

    @property
    def id(self) -> ItemId:
        """The id of the item."""
        return self.receipt.id

    @property
    def duplicate(self) -> bool:
        """True if the idempotency key was known: this is the item that was put first."""
        return self.receipt.duplicate

    def result(self, timeout: DurationInput | None = None) -> R_co:
        """Wait for the result of the function up to `timeout`, by default without a limit, and return it.

        Raises `TaskFailed` as soon as the item is dead, `ResultNotKept` once it is done and no result is kept,
        `ResultTimeout`, and `StoreUnavailable` if the store cannot be reached for a minute.
        """
        broker = self._task.app.open()
        return self._value(broker.run_flow(await_result(broker.core, self._task.name, self.id, timeout)))

    async def result_async(self, timeout: DurationInput | None = None) -> R_co:
        """Wait for the result on an event loop, as `result` does."""
        broker = await self._task.app.open_async()
        return self._value(await broker.run_flow(await_result(broker.core, self._task.name, self.id, timeout)))

    def _value(self, result: Result) -> R_co:
        value: R_co = self._task.arguments.returned(result)
        return value

    def __repr__(self) -> str:
        return f"Handle(task={self._task.name!r}, id={self.id!r}, duplicate={self.duplicate})"


def await_result(
    core: Core, task: str, id: ItemId, timeout: DurationInput | None, put_at_count: int | None = None
) -> Flow[Result]:
    """Wait for the result of a task. The end of the item wakes the caller, in this process or another one.

    `put_at_count` is `Notifier.result_count` before the item was put: while that is unchanged, the item has not ended,
    and the first read is saved. Raises StoreUnavailable if the store cannot be reached for MAX_OUTAGE, or at the end.
    """
    begun = core.clock.now()
    end = None if timeout is None else Instant(begun + parse_duration(timeout, "timeout"))
    topic, reached_at = result_topic(id), begun
    while True:
        sequence = core.notify.sequence(topic)
        outage: StoreUnavailable | None = None
        if core.notify.result_count != put_at_count:
            try:
                found = yield from _look(core, task, id)
            except StoreUnavailable as error:
                outage = error
            else:
                reached_at = core.clock.now()
                if found is not None:
                    return found
        put_at_count = None
        now = core.clock.now()
        if end is not None and now >= end:
            raise outage or ResultTimeout(task, id, end - begun)
        if outage is not None and now - reached_at >= MAX_OUTAGE:
            raise outage
        until = Instant(now + POLL_INTERVAL if end is None else min(now + POLL_INTERVAL, end))
        if outage is None:
            yield WaitForQueue(topic, sequence, until, None)
        else:
            yield from _pause(core, until)


def _look(core: Core, task: str, id: ItemId) -> Flow[Result | None]:
    """Return the result, or None if it may still come. Raises if it never will."""
    kept: Result | None = yield from run_query(GetResult(id))
    if kept is not None:
        return kept
    item: Item | None
    try:
        item = yield from run_query(GetItem(id))
    except ItemNotFound:
        item = None
    if item is not None and item.dropped is not None:
        raise ResultNotKept(task, id)
    if item is not None and is_dead_letter(item):
        shown = yield from redaction_for(core, queues_of(item))
        raise _failed(task, shown.item(item))
    if item is not None and item.ended_at is None:
        return None
    result = None if item is None else item.result
    if result is None:  # it may have been completed between the two queries
        result = yield from run_query(GetResult(id))
    if result is None:
        raise ResultNotKept(task, id)
    return result


def _pause(core: Core, until: Instant) -> Flow[None]:
    """Wait for an instant. Each poll of a store that cannot be reached wakes all waiters of a result topic, but only
    one of any other name."""
    while core.clock.now() < until and not core.is_closed:
        yield WaitForQueue(_NOWHERE, core.notify.sequence(_NOWHERE), until, None)


def _failed(task: str, item: Item) -> TaskFailed:
    death = item.death if item.dead_reason is not None or item.status is not Status.ARCHIVED else None
    reason, title = ("archived", "") if death is None else (death.reason.value, death.cause.title)
    return TaskFailed(task, item.id, reason, title, item.last_failure)


def is_dead_letter(item: Item) -> bool:
    """Return whether it died and was not redriven since, in its queue or in a dead queue."""
    if item.status in (Status.DEAD, Status.ARCHIVED):
        return item.dead_reason is not None or item.ended_at is None
    death = item.death
    if death is None or item.status is Status.COMPLETED:
        return False
    for entry in reversed(item.history):
        if entry.event is HistoryEvent.UNDONE:
            return True
        if entry.event is HistoryEvent.REDRIVEN and entry.from_dead_letter:
            return False
        if entry.delivery == death.counters.deliveries and entry.event in DEADLY_EVENTS:
            return True
    return True
