"""One run of a captured task, here and now, that an operator asks for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.broker.broker import Broker
from redrive.broker.flow import Flow, commit_call
from redrive.broker.flows import deliveries, manual_changes, settle
from redrive.capture import flows
from redrive.capture.calls import checked_result
from redrive.capture.captured_task import CALLBACK, STATUS_OF_ITEM
from redrive.contract.item_calls import Complete
from redrive.errors import InvalidInput, RedriveError
from redrive.model.duration import MINUTE, SECOND, Duration
from redrive.model.exception import names_of_error, safe_str
from redrive.model.item import Item, Lease, Result, Status
from redrive.model.judge import RetryVerdict
from redrive.model.limits import MAX_STORABLE_BYTES
from redrive.model.payload import encode_payload
from redrive.model.state_machine import Verb
from redrive.task.context import Context
from redrive.task.task import TASK_HEADER
from redrive.telemetry import events
from redrive.telemetry.metrics import HANDLER_SECONDS
from redrive.worker.worker import worker_name

if TYPE_CHECKING:
    from redrive.capture.capture_queue import CaptureQueue

LEASE = MINUTE
_EXTENSIONS = 3
"""How often a lease is extended within its time."""
_log = events.logger("redrive.capture")


class ManualRetry:
    """A task that is leased for one run; or why it is not."""

    def __init__(self, queue: CaptureQueue, task_id: str, item: Item | None) -> None:
        self._queue = queue
        self._task_id = task_id
        self._item = item
        self._lease: Lease | None = None
        self._problem = ""
        self.args: Sequence[Any] = ()
        self.kwargs: dict[str, Any] = {}
        self.function: Callable[..., Any]
        self._began = 0.0

    @property
    def is_here(self) -> bool:
        """Whether it is leased, to be run here."""
        return self._lease is not None

    @classmethod
    def start(cls, queue: CaptureQueue, task_id: str) -> Flow[ManualRetry]:
        """Lease the task if this process can run it; otherwise make it due."""
        item = yield from flows.find_item(queue.core, queue.name, task_id)
        retry = cls(queue, task_id, item)
        if item is None:
            retry._problem = f"there is no task '{task_id}' in '{queue.name}'"
        elif item.status not in (Status.PENDING, Status.FAILED, Status.DEAD):
            retry._problem = f"task '{task_id}' is {STATUS_OF_ITEM[item.status]}"
        elif queue.app.knows(item.headers.get(TASK_HEADER, "")):
            yield from retry._take(item)
        else:
            yield from retry._make_due(item)
        return retry

    def _take(self, item: Item) -> Flow[None]:
        name = item.headers.get(TASK_HEADER, "")
        lease: Lease = yield from deliveries.lease_by_id(item.id, True, LEASE / SECOND, worker_name())
        self._lease, self._began = lease, time.perf_counter()
        task = self._queue.app.tasks[name]
        self.function = task.function
        try:
            self.args, self.kwargs = task.arguments.bind(lease.payload, lease.content_type, Context(lease, task))
        except Exception as error:  # raised where the function is called, and recorded like any failure

            def unreadable(*_: Any, _error: Exception = error, **__: Any) -> Any:
                raise _error

            self.args, self.kwargs, self.function = (), {}, unreadable
        else:
            if name == CALLBACK:
                self.args = (self.kwargs["task"],)
                self.kwargs, self.function = self.kwargs["extra"], self._queue.app.callback

    def count(self) -> Flow[None]:
        """Count a run that an operator asked for, for the statistics."""
        return flows.count_manual_retry(self._queue.name)

    def _make_due(self, item: Item) -> Flow[None]:
        if item.status is not Status.PENDING:
            yield from manual_changes.change(self._queue.core, Verb.RETRY, item.id, None)
        self._problem = (
            f"this process has no callback for task '{self._task_id}'; it is due now, and the next retry processor of "
            f"'{self._queue.name}' runs it"
        )

    @contextmanager
    def keep_lease(self, broker: Broker) -> Iterator[None]:
        """Extend the lease from a thread, while the task runs."""
        end = threading.Event()
        thread = threading.Thread(target=self._extend, args=(broker, end), name="redrive-capture-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def _extend(self, broker: Broker, end: threading.Event) -> None:
        assert self._lease is not None
        while not end.wait(LEASE / SECOND / _EXTENSIONS):
            try:
                broker.extend(self._lease, LEASE / SECOND)
            except RedriveError as error:
                _log.warning("lease_not_extended", task_id=self._task_id, error=str(error))

    def complete(self, value: Any) -> Flow[dict[str, Any]]:
        """The run returned this: the task is completed, unless that is a failed result."""
        assert self._lease is not None
        if self._item is not None and self._item.headers.get(TASK_HEADER) == CALLBACK:
            try:
                checked_result(value, self._queue.app.is_failure)
            except Exception as error:
                return (yield from self.fail(error))
        yield from commit_call(Complete(self._lease.token, _result_of(value)))
        was_exhausted = self._item is not None and self._item.status is Status.DEAD
        self._observe("completed")
        self._queue.monitor.succeeded(self._lease.id, self._lease.headers, was_exhausted=was_exhausted)
        return {"success": True, "task_id": self._task_id, "result": value, "message": "the task succeeded"}

    def give_back(self) -> Flow[None]:
        """The run was interrupted: the task is as before, and not in retry until its lease ends."""
        lease, item = self._lease, self._item
        assert lease is not None
        assert item is not None
        try:
            yield from settle.release(self._queue.core, lease, self._delay_left(item) / SECOND, True, "interrupted")
        except RedriveError as error:
            _log.warning("lease_not_returned", task_id=self._task_id, error=str(error))

    def _delay_left(self, item: Item) -> Duration:
        return max(0, (item.ready_at or 0) - self._queue.core.clock.now())

    def fail(self, error: Exception) -> Flow[dict[str, Any]]:
        """The run failed: that is recorded, and the task is unchanged otherwise."""
        lease, item = self._lease, self._item
        assert lease is not None
        assert item is not None
        verdict = None if item.status is Status.DEAD else RetryVerdict(self._delay_left(item), Status.FAILED)
        settled = yield from settle.fail(self._queue.core, lease, error, False, verdict)
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
        if (meter := self._queue.core.meter) is not None and self._lease is not None:
            labels = (self._queue.name, self._lease.headers.get(TASK_HEADER, ""), outcome)
            meter.metrics.observe(HANDLER_SECONDS, labels, time.perf_counter() - self._began)

    def answer(self) -> dict[str, Any]:
        """Return why it is not run here."""
        return {"success": False, "task_id": self._task_id, "error": self._problem, "message": self._problem}


def _result_of(value: Any) -> Result | None:
    """Return what is kept of a result; None if JSON cannot hold it."""
    try:
        return Result(*encode_payload(msgspec.to_builtins(value, str_keys=True), None, MAX_STORABLE_BYTES))
    except (InvalidInput, TypeError, ValueError, RecursionError):
        return None
