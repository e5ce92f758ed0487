"""`AsyncDeadLetterQueue`: a dead-letter queue behind calls that fail outside a queue, on an event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from redrive.broker.async_broker import AsyncBroker
from redrive.broker.broker import Broker
from redrive.broker.flow import Flow
from redrive.broker.validation import check_integer, check_positive
from redrive.capture import flows
from redrive.capture.calls import (
    checked_result,
    copy_arguments,
    invoke_async,
    is_failed_result,
    is_interruption,
    run_blocking_async,
)
from redrive.capture.capture_alerts import DEFAULT_THRESHOLDS, AlertThresholds
from redrive.capture.capture_errors import NoCallbackError, add_note, keep_error
from redrive.capture.capture_queue import CaptureQueue, DLQIntegrationStrategy, check_extra
from redrive.capture.capture_settings import CaptureOptions
from redrive.capture.captured_task import DeadLetterStatus, ErrorCategory, FailedTask
from redrive.capture.declarations import Declarations
from redrive.capture.flows import TaskFilter, TaskPage
from redrive.capture.manual_retry import ManualRetry, start_retry
from redrive.capture.retry_processor import RetryProcessor, run_due_tasks
from redrive.capture.task_receipt import task_of_receipt
from redrive.connect import connect_async, token_for
from redrive.errors import InvalidInput, short_repr
from redrive.model.duration import DurationInput
from redrive.model.exception import safe_str
from redrive.model.failure import Failure
from redrive.model.state_machine import Verb
from redrive.task.task_options import check_options

_Any = TypeVar("_Any")
DEFAULT_CONCURRENCY = 8
MAX_CONCURRENCY = 1_000
STOP_SECONDS = 30.0


class AsyncDeadLetterQueue(Declarations):
    """A queue of tasks that failed elsewhere: a workflow run, a web hook, a cron job. They are retried by policy.

    A captured task is an item of the queue `name`: its retries are the item's, its exhausted tasks are dead letters.
    broker: an `AsyncBroker`, or a URL as for `connect_async`; then `shutdown` closes the broker, which authenticates to
    a server with the token in the variable REDRIVE_TOKEN.
    settings: max_size (10,000), default_retry_policy (exponential), default_max_retries (3), retry_interval_seconds
    (60), enabled and retry_processor_enabled; an unset one is read from its variable REDRIVE_DLQ_…, then a config file.
    strategy: which failures of guarded calls are captured. jitter: use a random share of each delay.
    time_limit: the longest time of one retry of the processor. alerts: the thresholds for `on_alert`.
    """

    def __init__(
        self,
        broker: AsyncBroker | str,
        name: str = "captured",
        *,
        strategy: DLQIntegrationStrategy | str = DLQIntegrationStrategy.AUTOMATIC,
        jitter: bool = False,
        concurrency: int = DEFAULT_CONCURRENCY,
        time_limit: DurationInput | None = None,
        is_failure: Callable[[Any], bool] = is_failed_result,
        alerts: AlertThresholds = DEFAULT_THRESHOLDS,
        **settings: Unpack[CaptureOptions],
    ) -> None:
        check_options("a dead-letter queue", settings, CaptureOptions)
        self._owns_broker = isinstance(broker, str)
        self._broker = connect_async(broker, token=token_for(broker)) if isinstance(broker, str) else broker
        if not isinstance(self._broker, AsyncBroker):
            raise InvalidInput(f"a dead-letter queue takes an AsyncBroker or a URL, not {short_repr(broker, 60)}")
        check_integer("concurrency", concurrency, 1, MAX_CONCURRENCY)
        if time_limit is not None:
            check_positive("time_limit", time_limit)
        if not callable(is_failure):
            raise InvalidInput(f"is_failure is a function of a result, not {short_repr(is_failure, 60)}")
        self._queue = CaptureQueue(self._broker.core, name, settings, strategy, jitter, alerts)
        self._concurrency = concurrency
        self._queue.app.time_limit = time_limit
        self._is_failure = is_failure
        self._processor: RetryProcessor | None = None

    async def enqueue(
        self,
        task_id: str,
        task: Any,
        error: BaseException | Failure | str,
        retry_policy: str | None = None,
        max_retries: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        error_category: ErrorCategory | str | None = None,
        priority: str | int | None = None,
        **extra: Any,
    ) -> FailedTask:
        """Capture a failed task, and return it once it is on disk.

        task, extra: JSON values; a retry calls `callback(task, **extra)`. error: an exception, or a text.
        For a known task id, one more failure is recorded. A client of a server that may capture but not read gets the
        task as submitted. Raises CaptureFullError, and IdempotencyConflict for another task under a known id; the error
        of the task is added to the exception as a note.
        """
        with keep_error(error):
            await self._open()
            given = self._queue.describe_task(
                task_id,
                task,
                extra,
                error,
                policy=retry_policy,
                max_retries=max_retries,
                metadata=metadata,
                category=error_category,
                priority=priority,
            )
            receipt = await self._run(self._queue.capture(given))
        return await self._run(task_of_receipt(self._queue.core, self.name, given, receipt))

    async def execute_with_dlq(
        self,
        call: Callable[..., Any],
        task: Any,
        *,
        task_id: str | None = None,
        retry_policy: str | None = None,
        max_retries: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        priority: str | int | None = None,
        **extra: Any,
    ) -> dict[str, Any]:
        """Call `call(task, **extra)`, and capture the task if the call raises or returns a failed result.

        Returns a dictionary with `status` (`completed` or `failed`) and `result`, or `error`, `dlq_enqueued` and
        `dlq_task_id`. If a failure cannot be captured, its error is raised with a note that says why.
        """
        check_extra(extra)
        (given,), given_extra = copy_arguments((task,), extra)  # the call may change them
        try:
            result = checked_result(await invoke_async(call, task, **extra), self._is_failure)
        except Exception as error:
            captured: str | Exception | None
            answer = {"status": "failed", "error": safe_str(error), "dlq_enqueued": False, "dlq_task_id": None}
            options = {"policy": retry_policy, "max_retries": max_retries, "metadata": metadata, "priority": priority}
            try:
                work = self._queue.capture_call(error, given, given_extra, task_id, **options)
                captured = await self._broker.run_flow_to_end(work)
            except Exception as problem:
                captured = problem
            if isinstance(captured, Exception):
                said = safe_str(captured) or type(captured).__name__
                add_note(error, f"it could not be captured in '{self.name}': {said}")
                raise  # what the call raised, with its own cause and context
            return answer if captured is None else {**answer, "dlq_enqueued": True, "dlq_task_id": captured}
        return result if isinstance(result, dict) and "status" in result else {"status": "completed", "result": result}

    async def get_task(self, task_id: str) -> FailedTask | None:
        """Return a task, or None if it does not exist. A completed task is kept for one day."""
        await self._open()
        return await self._run(flows.get_task(self._queue.core, self.name, task_id))

    async def list_tasks(
        self,
        status: DeadLetterStatus | str | None = None,
        *,
        category: ErrorCategory | str | None = None,
        policy: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        due_before: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> TaskPage:
        """Return up to `limit` tasks (1 to 1,000), newest first. Pass `cursor` of the list to get the next page.

        since, before: bounds of the time at which they failed. due_before: only tasks whose next retry is before that.
        """
        await self._open()
        where = TaskFilter.parse(status, category, policy, since, before, due_before)
        return await self._run(flows.list_tasks(self.name, where, limit, cursor))

    async def retry_task(self, task_id: str) -> dict[str, Any]:
        """Run a task once, now and in this process, with its function or the callback.

        Returns `success`, `task_id`, `message`, and `result` or `error`. A failure is recorded; it changes neither the
        status of the task nor its next retry, and does not count as a retry.
        If this process has no function for the task, the task is made due now, for a retry processor to run: `success`
        is False, and the message says so.
        """
        await self._open()
        retry = await self._run(start_retry(self._queue, task_id))
        if not isinstance(retry, ManualRetry):
            return retry
        await self._run(retry.count())
        with retry.keep_lease(Broker(self._queue.core)):
            try:
                value = await invoke_async(retry.prepare())
            except BaseException as error:
                if is_interruption(error):  # the run has no end
                    await self._broker.run_flow_to_end(retry.give_back())
                    raise
                return await self._run(retry.fail(error))
        return await self._run(retry.complete(value))

    async def archive_task(self, task_id: str) -> bool:
        """Archive a task: it is not retried, and does not count for max_size. Returns False if it does not exist.

        Raises ItemActive for a task that is being retried now.
        """
        return await self._change(task_id, Verb.ARCHIVE)

    async def restore_task(self, task_id: str) -> bool:
        """Undo `archive_task`, or `clear_all` for one task: its status is as before. Returns False if none exists."""
        return await self._change(task_id, Verb.RESTORE)

    async def clear_all(self, *, confirm: int | None = None) -> int:
        """Drop all tasks that wait or are exhausted, and return their number. Their ids can be used again.

        They can be restored for `keep_dropped` of the queue, which is 7 days. With `confirm`, their number, they are
        removed permanently; raises ConfirmationMismatch for another number. Tasks that are being retried now stay.
        """
        await self._open()
        return await self._run(self._queue.clear(confirm))

    async def _change(self, task_id: str, verb: Verb) -> bool:
        await self._open()
        return await self._run(self._queue.archive(task_id, verb))

    async def get_statistics(self) -> dict[str, Any]:
        """Return counts by status, category and policy, and totals since the queue was created."""
        await self._open()
        return await self._run(self._queue.statistics())

    async def start_retry_processor(
        self, callback: Callable[..., Any] | None = None, check_interval_seconds: float | None = None
    ) -> None:
        """Retry tasks when they are due, up to `concurrency` together, in threads, until `stop_retry_processor`.

        A callback fails if it raises or returns a failed result. Due tasks wake the processor, which also polls every
        second; `check_interval_seconds` is only reported by `get_statistics`. Any number of processes may run one.
        """
        await self._open()
        if check_interval_seconds is not None:
            self._queue.set_interval(check_interval_seconds)
        if callback is not None:
            self.set_callback(callback)
        if self._processor is not None and self._processor.is_running:
            raise InvalidInput(f"a retry processor of '{self.name}' runs in this object already")
        self._require_function()
        self._processor = RetryProcessor(self._queue.app, Broker(self._queue.core), self.name, self._concurrency)
        self._processor.start()

    async def run_due_tasks(self) -> None:
        """Run all tasks that are due, then return: one cycle of a retry processor, for cron jobs and tests."""
        await self._open()
        self._require_function()
        core = self._queue.core
        await run_blocking_async(run_due_tasks, self._queue.app, Broker(core), self.name, self._concurrency)

    async def stop_retry_processor(self, timeout: float = STOP_SECONDS) -> bool:
        """Stop retries; those that run may finish within `timeout` seconds. Returns whether the processor has ended."""
        processor, self._processor = self._processor, None
        return True if processor is None else await run_blocking_async(processor.stop, timeout)

    async def start_dlq_processor(self, callback: Callable[..., Any] | None = None) -> None:
        """Start the retry processor, unless the setting `enabled` or `retry_processor_enabled` is false."""
        await self._open()
        if self._queue.settings.enabled and self._queue.settings.retry_processor_enabled:
            await self.start_retry_processor(callback)

    async def stop_dlq_processor(self) -> None:
        """Stop the retry processor."""
        await self.stop_retry_processor()

    async def shutdown(self) -> None:
        """Stop the retry processor, wait for hooks, and close a broker that this opened. A second call does nothing."""
        await self.stop_retry_processor()
        await run_blocking_async(self._queue.monitor.hooks.wait, STOP_SECONDS)
        if self._owns_broker:
            await self._broker.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    def __repr__(self) -> str:
        return f"AsyncDeadLetterQueue(name={self.name!r}, store={self._queue.core.store.name!r})"

    def _require_function(self) -> None:
        if not self._queue.app.tasks:
            raise NoCallbackError(self.name)

    async def _run(self, flow: Flow[_Any]) -> _Any:
        return await self._broker.run_flow(flow)

    async def _open(self) -> None:
        if not self._queue.is_open:
            await self._run(self._queue.open())
