"""Operations of an operator on an existing capture queue: read, retry, archive, restore, clear, count.

Unlike a `DeadLetterQueue`, no operation creates a queue. Items are returned with secrets redacted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redrive.broker.flow import Flow, run_query
from redrive.broker.flows import clearance, manual_changes
from redrive.broker.flows import queues as queue_flows
from redrive.broker.flows.clearance import ClearResult
from redrive.broker.redaction import queues_of, redaction_for
from redrive.broker.validation import check_integer
from redrive.capture import flows
from redrive.capture.capture_alerts import QueueLevels
from redrive.capture.capture_errors import TaskNotFoundError
from redrive.capture.capture_settings import CaptureSettings, read_settings
from redrive.capture.captured_task import STATUS_OF_ITEM, DeadLetterStatus
from redrive.capture.flows import TaskFilter
from redrive.contract.queries import GetItem, GetStats
from redrive.errors import ConfirmationMismatch, Forbidden, InvalidInput, ItemNotFound, RedriveError
from redrive.model.ids import check_id
from redrive.model.item import Item, Settled, Status
from redrive.model.limits import MAX_COUNT
from redrive.model.queue import QueueStats
from redrive.model.state_machine import Verb

if TYPE_CHECKING:
    from redrive.broker.core import Core


def get_settings(core: Core, queue: str) -> Flow[CaptureSettings]:
    """Return the settings of a capture queue: from the variables of this process, then from the config file.

    Raises QueueNotFound.
    """
    yield from queue_flows.get(core, queue)
    return (yield from read_settings(queue, {}))


def get_item(core: Core, queue: str, name: str, *, redacted: bool = True) -> Flow[Item]:
    """Return the item of a task, by its task id or the id of the item. Raises TaskNotFoundError, and QueueNotFound.

    A caller that may not see task ids passes an item id; a task id raises Forbidden, whether it is in use or not.
    """
    yield from queue_flows.get(core, queue)
    item: Item | None = None
    refusal: RedriveError = TaskNotFoundError(queue, name)
    try:
        item = yield from flows.find_item(core, queue, name)
    except Forbidden as error:
        refusal = error
    if item is None:
        item = yield from _by_item_id(queue, name)
    if item is None:
        raise refusal
    if not redacted:
        return item
    return (yield from redaction_for(core, queues_of(item))).item(item)


def _by_item_id(queue: str, name: str) -> Flow[Item | None]:
    try:
        item: Item = yield from run_query(GetItem(check_id(name)))
    except (InvalidInput, ItemNotFound):
        return None
    return item if item.queue == queue else None


def list_items(
    core: Core, queue: str, where: TaskFilter, limit: int, cursor: str | None
) -> Flow[tuple[list[Item], str | None]]:
    """Return the items of tasks, newest first, and a cursor if there are more. Raises QueueNotFound."""
    yield from queue_flows.get(core, queue)
    items, position = yield from flows.find_items(queue, where, limit, cursor)
    view = yield from redaction_for(core, (name for item in items for name in queues_of(item)))
    return [view.item(item) for item in items], position


def change(core: Core, item: Item, verb: Verb, actor: str | None) -> Flow[DeadLetterStatus]:
    """Retry, archive or restore a task, and return its new status. The audit names this actor. Raises WrongStatus.

    Retry makes it due now, for the next retry processor to run.
    """
    if verb is Verb.RETRY and item.status is Status.PENDING:  # it is due already
        return DeadLetterStatus.PENDING
    settled: Settled = yield from manual_changes.change(core, verb, item.id, actor)
    return STATUS_OF_ITEM[settled.status or Status.COMPLETED]


def count_clearable(queue: str) -> Flow[int]:
    """Return the number of tasks that `clear` drops: those that wait, and exhausted ones."""
    stats: QueueStats = yield from run_query(GetStats(queue))
    return stats.pending + stats.failed + stats.dead


def clear(core: Core, queue: str, confirm: int | None, actor: str | None = None) -> Flow[ClearResult]:
    """Drop all tasks that wait or are exhausted. With `confirm`, their number, remove them permanently.

    Raises ConfirmationMismatch for another number.
    """
    if confirm is not None:
        check_integer("confirm", confirm, 0, MAX_COUNT)
        count = yield from count_clearable(queue)  # without dead letters that are being retried now
        if confirm != count:
            raise ConfirmationMismatch(f"clearing capture queue '{queue}'", confirm, count)
    statuses = (Status.PENDING, Status.FAILED, Status.DEAD)
    return (yield from clearance.clear_queue(core, queue, statuses, final=confirm is not None, actor=actor))


def due_message(queue: str, is_running: bool) -> str:
    """Return the message about a task that was made due: a retry processor runs it, or none runs."""
    if is_running:
        return f"it is due now, and the retry processor of '{queue}' runs it"
    return f"it is due now, and waits: no retry processor of '{queue}' runs; start one with redrive work MODULE:DLQ"


def statistics(core: Core, queue: str) -> Flow[dict[str, Any]]:
    """Return the statistics of a queue, as `DeadLetterQueue.get_statistics` does. Raises QueueNotFound."""
    settings = yield from get_settings(core, queue)
    levels = QueueLevels(queue)
    levels.max_size = settings.max_size
    return (yield from flows.statistics(core, levels, settings.retry_interval_seconds))
