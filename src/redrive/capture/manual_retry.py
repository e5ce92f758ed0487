"""A manual retry: one run of a captured task, in this process, on request of an operator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.broker.broker import Broker
from redrive.broker.flow import Flow, commit_call
from redrive.broker.flows import deliveries, manual_changes, settle
from redrive.capture import flows
from redrive.capture.calls import checked_result, is_interruption
from redrive.capture.captured_task import CALLBACK, STATUS_OF_ITEM
from redrive.contract.item_calls import Complete
from redrive.errors import InvalidInput, RedriveError
from redrive.model.duration import MINUTE, SECOND, Duration
from redrive.model.exception import names_of_error, safe_str
from redrive.model.item import Item, Lease, Result, Status
from redrive.model.judge import OutcomeKind, RetryVerdict
from redrive.model.limits import MAX_STORABLE_BYTES
from redrive.model.payload import encode_payload
from redrive.model.state_machine import Verb
from redrive.model.worker_info import TASK_HEADER
from redrive.task.context import Context
from redrive.telemetry import events
from redrive.telemetry.metrics import HANDLER_SECONDS
from redrive.worker.worker import worker_name

if TYPE_CHECKING:
    from redrive.capture.capture_queue import CaptureQueue

Answer = dict[str, Any]
"""The return value of `retry_task`."""
LEASE = MINUTE
_EXTENSIONS = 3
"""The number of extensions of a lease within its duration."""
_log = events.logger("redrive.capture")


def start_retry(queue: CaptureQueue, task_id: str) -> Flow[ManualRetry | Answer]:
    """Lease a task if this process can run it; otherwise make it due, and return an answer that says so."""
    item = yield from flows.find_item(queue.core, queue.name, task_id)
    if item is None:
        return _refusal(task_id, f"there is no task '{task_id}' in '{queue.name}'")
    if item.status not in (Status.PENDING, Status.FAILED, Status.DEAD):
        return _refusal(task_id, f"task '{task_id}' is {STATUS_OF_ITEM[item.status]}")
    name = item.headers.get(TASK_HEADER, "")
    if queue.app.knows(name):
        lease: Lease = yield from deliveries.lease_by_id(item.id, True, LEASE / SECOND, worker_name())
        return ManualRetry(queue, task_id, item, lease)
    if item.status is not Status.PENDING:
        yield from manual_changes.change(queue.core, Verb.RETRY, item.id, None)
    missing = "callback" if name in (CALLBACK, "") else f"function '{name}'"
    return _refusal(
        task_id,
        f"this process has no {missing} for task '{task_id}'; it is due now, and the next retry processor of "
        f"'{queue.name}' that has it runs it",
    )


def _refusal(task_id: str, problem: str) -> Answer:
    return {"success": False, "task_id": task_id, "error": problem, "message": problem}


class ManualRetry:
    """A task that is leased for one run."""

    def __init__(self, queue: CaptureQueue, task_id: str, item: Item, lease: Lease) -> None:
        self._queue = queue
        self._task_id = task_id
        self._item = item
        self._lease = lease
        self._name = lease.headers.get(TASK_HEADER, "")
        self._began = time.perf_counter()

    def count(self) -> Flow[None]:
        """Count a run that an operator asked for, for the statistics."""
        return flows.count_manual_retry(self._queue.name)

    def prepare(self) -> Callable[[], Any]:
        """Return the call to run. Raises if the function does not accept the captured arguments."""
        app = self._queue.app
        task = app.tasks[self._name]
        args, kwargs = task.arguments.bind(self._lease.payload, self._lease.content_type, Context(self._lease, task))
        if self._name == CALLBACK:
            return partial(app.callback, kwargs["task"], **kwargs["extra"])
        return partial(task.function, *args, **kwargs)

    @contextmanager
    def keep_lease(self, broker: Broker) -> Iterator[None]:
        """Extend the lease in a thread while the task runs."""
        end = threading.Event()
        thread = threading.Thread(target=self._extend, args=(broker, end), name="redrive-capture-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def _extend(self, broker: Broker, end: threading.Event) -> None:
        while not end.wait(LEASE / SECOND / _EXTENSIONS):
            try:
                broker.extend(self._lease, LEASE / SECOND)
            except RedriveError as error:
                _log.warning("lease_not_extended", task_id=self._task_id, error=str(error))

    def complete(self, value: Any) -> Flow[Answer]:
        """Complete the task with the return value of the run, or fail it if that is a failed result."""
        if self._name == CALLBACK:
            try:
                checked_result(value, self._queue.app.is_failure)
            except BaseException as error:
                if is_interruption(error):
                    yield from self.give_back()
                    raise
                return (yield from self.fail(error))
        yield from commit_call(Complete(self._lease.token, _result_of(value)))
        self._observe("completed")
        was_exhausted = self._item.status is Status.DEAD
        self._queue.monitor.succeeded(self._lease.id, self._lease.headers, was_exhausted=was_exhausted)
        return {"success": True, "task_id": self._task_id, "result": value, "message": "the task succeeded"}

    def give_back(self) -> Flow[None]:
        """Release the lease of an interrupted run immediately, so that the task has its previous status and delay."""
        lease, item = self._lease, self._item
        try:
            yield from settle.release(self._queue.core, lease, self._delay_left(item) / SECOND, True, "interrupted")
        except RedriveError as error:
            _log.warning("lease_not_returned", task_id=self._task_id, error=str(error))

    def _delay_left(self, item: Item) -> Duration:
        return max(0, (item.ready_at or 0) - self._queue.core.clock.now())

    def fail(self, error: BaseException) -> Flow[Answer]:
        """Record the failure of the run; the task keeps its status and delay, and the run does not count as a retry."""
        lease, item = self._lease, self._item
        verdict = None if item.status is Status.DEAD else RetryVerdict(self._delay_left(item), Status.FAILED)
        kind = OutcomeKind.EXTRA_FAILED
        settled = yield from settle.fail(self._queue.core, lease, error, False, verdict, outcome_kind=kind)
        self._observe("failed")
        self._queue.monitor.failed(lease.id, lease.headers, names_of_error(error)[0], is_exhausted=False)
        status = STATUS_OF_ITEM[settled.status or Status.DEAD]
        return {
            "success": False,
            "task_id": self._task_id,
            "error": safe_str(error),
            "message": f"the retry failed; the task is {status} as before",
        }

    def _observe(self, outcome: str) -> None:
        if (meter := self._queue.core.meter) is not None:
            labels = (self._queue.name, self._name, outcome)
            meter.metrics.observe(HANDLER_SECONDS, labels, time.perf_counter() - self._began)


def _result_of(value: Any) -> Result | None:
    """Return the result to store; None if it cannot be encoded as JSON."""
    try:
        return Result(*encode_payload(msgspec.to_builtins(value, str_keys=True), None, MAX_STORABLE_BYTES))
    except (InvalidInput, TypeError, ValueError, RecursionError):
        return None
