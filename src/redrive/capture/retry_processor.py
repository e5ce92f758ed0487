"""The retry processor: a worker that runs captured tasks when they are due, with the functions that this process knows.

Tasks that name a function are run by it; all others by the callback. A task for a function that this process does not
know is released to the queue with a delay: another process may know the function.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from redrive.broker.broker import Broker
from redrive.capture.calls import checked_result, invoke_async, is_failed_result
from redrive.capture.captured_task import CALLBACK
from redrive.errors import InvalidArguments, InvalidInput
from redrive.model.duration import DurationInput
from redrive.model.failure import Failure
from redrive.model.item import Settled
from redrive.task.app import App
from redrive.task.arguments import Arguments
from redrive.task.context import Context, Release
from redrive.task.task import Task
from redrive.telemetry import events
from redrive.worker.worker import Worker

UNKNOWN_SECONDS = 60
"""Seconds until a task that no function of this process can run is leased again."""
RETURN_SECONDS = 10.0
"""Seconds that a worker may take to return its leases after the shutdown timeout. It notices the stop within 1 s."""
_log = events.logger("redrive.capture")


class KnownTasks(Mapping[str, Task[..., Any]]):
    """Functions by name. For an unknown name, `get` returns a function that releases the task for other processes."""

    def __init__(self, tasks: Mapping[str, Task[..., Any]], unknown: Task[..., Any]) -> None:
        self._tasks = tasks
        self._unknown = unknown

    def __getitem__(self, name: str) -> Task[..., Any]:
        return self._tasks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the function of this name, or the one for unknown names."""
        return self._tasks.get(name, self._unknown)


class CallbackApp(App):
    """The functions that can run captured tasks. It opens no store: its worker is given a broker."""

    def __init__(self, queue: str) -> None:
        super().__init__("memory://")
        self._declared_queue = self.queue(queue)
        unknown: Task[..., Any] = Task(self._declared_queue, _leave_to_others, {"name": "unknown"})
        unknown.arguments = _AnyArguments("unknown", _leave_to_others)
        self.tasks = KnownTasks(self._tasks, unknown)
        self.callback: Callable[..., Any]
        """The function that runs tasks which name no function; unset until `set_callback`."""
        self.is_failure: Callable[[Any], bool] = is_failed_result
        self.time_limit: DurationInput | None = None
        """The time limit of one retry, unless the function has a limit."""

    def on_retried(self, hook: Callable[[Context, Failure | None, Settled], None]) -> None:
        """Call this hook after each retry of this process that completed or failed."""
        self._declared_queue.hooks.on_failure(hook)
        self._declared_queue.hooks.on_completed(hook)

    def check(self) -> None:
        """Leave out functions whose annotations cannot be read from JSON: their calls cannot be captured either."""
        for name, task in tuple(self._tasks.items()):
            try:
                task.arguments.check()
            except InvalidArguments as problem:
                del self._tasks[name]
                _log.warning("function_not_retried", queue=self._declared_queue.name, task=name, error=str(problem))

    def knows(self, name: str) -> bool:
        """Return whether a function has this name."""
        return name in self._tasks

    def register(self, name: str, function: Callable[..., Any], time_limit: DurationInput | None = None) -> None:
        """Add a function. Raises InvalidInput if another one has that name."""
        options: dict[str, Any] = {"name": name}
        if (limit := self.time_limit if time_limit is None else time_limit) is not None:
            options["time_limit"] = limit
        self._declared_queue.task(**options)(function)

    def set_callback(
        self,
        callback: Callable[..., Any],
        *,
        is_failure: Callable[[Any], bool] = is_failed_result,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Run tasks that name no function by this callback: callback(task, **extra).

        With `loop`, a coroutine function runs on that event loop, to which the objects that it uses are bound.
        """
        if not callable(callback):
            raise InvalidInput(f"a callback is a function of the task, not {callback!r:.60}")
        self.callback, self.is_failure = callback, is_failure
        self._tasks.pop(CALLBACK, None)
        run = _on_loop(callback, loop) if loop is not None else callback
        if inspect.iscoroutinefunction(callback) and loop is None:

            async def retry_async(task: Any, extra: dict[str, Any]) -> Any:
                return checked_result(await run(task, **extra), is_failure)

            self.register(CALLBACK, retry_async)
            return

        def retry(task: Any, extra: dict[str, Any]) -> Any:
            return checked_result(run(task, **extra), is_failure)

        self.register(CALLBACK, retry)


class _AnyArguments(Arguments):
    """The arguments of a function without parameters, for any payload."""

    def bind(self, payload: bytes, content_type: str, context: Context | None) -> tuple[Sequence[Any], dict[str, Any]]:
        return (), {}


def _leave_to_others() -> Release:
    return Release(UNKNOWN_SECONDS, "no function of this process can run it; another one may")


def _on_loop(callback: Callable[..., Any], loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    """Return a function that runs a callback on an event loop and waits for it, for calls from other threads."""

    def run(task: Any, **extra: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(invoke_async(callback, task, **extra), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    return run


def run_due_tasks(app: CallbackApp, broker: Broker, queue: str, concurrency: int) -> None:
    """Run the tasks that are due in this thread, until none is left."""
    _worker(app, broker, queue, concurrency).run(until_idle=True)


def _worker(app: CallbackApp, broker: Broker, queue: str, concurrency: int) -> Worker:
    is_metered = broker.core.meter is not None
    return Worker(app, broker=broker, queues=[queue], concurrency=concurrency, metrics=is_metered)


class RetryProcessor:
    """A worker in a thread, from `start` to `stop`."""

    def __init__(self, app: CallbackApp, broker: Broker, queue: str, concurrency: int) -> None:
        self._worker = _worker(app, broker, queue, concurrency)
        self._thread = threading.Thread(target=self._worker.run, name="redrive-capture", daemon=True)

    def start(self) -> None:
        """Start the worker."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """True while the thread of the worker runs."""
        return self._thread.is_alive()

    def stop(self, timeout: float) -> bool:
        """Stop the worker; retries that run may finish within `timeout` seconds. Returns whether it has ended."""
        self._worker.stop()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._worker.stop(at_once=True)
            self._thread.join(RETURN_SECONDS)
        return not self._thread.is_alive()
