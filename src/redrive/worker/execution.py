"""One delivery: from the bytes of an item to its outcome. Every exception of a handler is caught here.

The same code for threads, the event loop, and child processes, which have no broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

import msgspec

from redrive.broker.validation import check_note
from redrive.broker.worker_session import Buried, Completed, Failed, Outcome, Released
from redrive.clock import Clock, SystemClock
from redrive.contract.item_calls import Put
from redrive.errors import InvalidArguments, InvalidInput
from redrive.model.classify import ErrorClass, ErrorRule
from redrive.model.death import DeadReason
from redrive.model.duration import format_duration, parse_duration
from redrive.model.failure import Failure, failure_from_exception, failure_from_fields
from redrive.model.item import Lease, Result
from redrive.model.judge import Dead, RetryVerdict, check_custom_verdict
from redrive.model.limits import MAX_STORABLE_BYTES
from redrive.model.payload import encode_payload
from redrive.model.redact_rules import NO_RULES, RedactRules
from redrive.model.worker_info import TASK_HEADER
from redrive.task.app import App
from redrive.task.arguments import Undecodable
from redrive.task.context import Context, Release, Retry
from redrive.task.task import Task
from redrive.telemetry import tracing

HOST = socket.gethostname()
_T = TypeVar("_T")
_SYSTEM_CLOCK = SystemClock()
_DONE = Completed()
_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()


class TimeLimitExceeded(Exception):
    """An error for a handler that exceeds the time limit of its task. It is raised inside the handler, at any point."""

    def __init__(self, limit: int | None = None) -> None:
        said = "" if limit is None else f", which is {format_duration(limit)}"
        super().__init__(f"the handler ran for longer than the time limit of its task{said}")


class HandlerSettings(msgspec.Struct, frozen=True):
    """The settings of a queue that concern the run of its items."""

    rules: tuple[ErrorRule, ...] = ()
    """Rules that classify errors."""
    keeps_completed: bool = False
    """True if results are kept with the items."""
    redact: RedactRules = NO_RULES
    """Rules for what is hidden in the log."""


StopCheck = Callable[[], bool]
LeaseLostCheck = Callable[[], bool]


class Execution:
    """One call of a handler: its arguments, and the outcome of what it returns or raises."""

    def __init__(
        self,
        app: App,
        lease: Lease,
        handling: HandlerSettings,
        stopping: StopCheck,
        lease_lost: LeaseLostCheck = lambda: False,
        clock: Clock = _SYSTEM_CLOCK,
    ) -> None:
        self._app = app
        self._lease = lease
        self._handling = handling
        self._stopping = stopping
        self._lease_lost = lease_lost
        self._clock = clock
        self._began = time.monotonic()
        self._trace_id: str | None = None

    def run(self) -> Outcome:
        """Run the handler in this thread, and return its outcome. A coroutine function gets a separate event loop."""
        try:
            task, context, args, kwargs = self._prepared()
            value: Any = None  # for a middleware that suppresses what the handler raised
            with self._around(context):
                value = task.function(*args, **kwargs)
                if task.is_async:
                    value = run_awaitable(value)
            return self._ended(task, context, value)
        except BaseException as error:
            return self.failed(error)

    async def run_async(self, is_late: Callable[[], bool]) -> Outcome:
        """Run the handler on this event loop, and return its outcome. If cancelled and `is_late`, it took too long."""
        try:
            task, context, args, kwargs = self._prepared()
            value: Any = None
            with self._around(context):
                value = await task.function(*args, **kwargs)
            return self._ended(task, context, value)
        except asyncio.CancelledError as error:
            return self.failed(TimeLimitExceeded() if is_late() else error)
        except BaseException as error:
            return self.failed(error)

    def _prepared(self) -> tuple[Task[..., Any], Context, Sequence[Any], dict[str, Any]]:
        name = self._lease.headers.get(TASK_HEADER)
        task = None if name is None else self._app.tasks.get(name)
        if task is None:
            raise UnknownHandler(name, tuple(self._app.tasks))
        context = Context(self._lease, task, self._stopping, self._lease_lost)
        args, kwargs = task.arguments.bind(self._lease.payload, self._lease.content_type, context)
        return task, context, args, kwargs

    def _around(self, context: Context) -> AbstractContextManager[None]:
        """Return the context of a call: the span and the middleware of the app, if there are any."""
        return self._surrounded(context) if self._app.middlewares or tracing.is_used() else _NOTHING

    @contextlib.contextmanager
    def _surrounded(self, context: Context) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            lease = self._lease
            span = tracing.consumer_span(
                context.task.name, lease.queue, lease.headers, id=lease.id, delivery=lease.deliveries
            )
            self._trace_id = stack.enter_context(span)
            for middleware in self._app.middlewares:
                stack.enter_context(middleware(context))
            yield

    def _ended(self, task: Task[..., Any], context: Context, value: Any) -> Outcome:
        keep = context.keep_result
        if value is None and keep is None and not context.puts:
            return _DONE
        match value:
            case Retry(after, reason):
                text = "the handler asked for another try" if reason is None else reason
                return Failed(self._reported("Retry", text), parse_duration(after, "after"))
            case Release(delay, reason):
                return Released(parse_duration(delay, "delay"), check_note("reason", reason))
            case RetryVerdict(delay):
                check_custom_verdict(value)
                return Failed(self._reported("RetryVerdict", "the handler asked for another try"), delay)
            case Dead(reason, to, note=note):
                check_custom_verdict(value)
                return Buried(DeadReason(reason), check_note("note", note), None, to)
        puts = tuple(Put(queue, (item,)) for queue, item in context.puts) if context.puts else ()
        return Completed(self._result(value, keep is not None), puts, keep)

    def _result(self, value: Any, asked_for: bool) -> Result | None:
        """Return the result to keep, if any. One that cannot be encoded is an error only if it was asked for."""
        if not asked_for and (value is None or not self._handling.keeps_completed):
            return None
        try:
            return Result(*encode_payload(msgspec.to_builtins(value, str_keys=True), None, MAX_STORABLE_BYTES))
        except (InvalidInput, TypeError, RecursionError) as error:
            if not asked_for:
                return None
            if isinstance(error, InvalidInput):
                raise
            raise TypeError(f"what it returned cannot be kept as its result: {error}") from None

    def failed(self, error: BaseException) -> Outcome:
        """Return the outcome of a delivery that raised this."""
        match error:
            case UnknownHandler():
                return Buried(DeadReason.UNKNOWN_HANDLER, failure=self._described(error))
            case Undecodable():
                failure = msgspec.structs.replace(self._described(error), error_class=ErrorClass.POISON)
                return Buried(DeadReason.UNDECODABLE, failure=failure)
            case InvalidArguments():
                failure = self._described(error)
                return Failed(msgspec.structs.replace(failure, error_class=ErrorClass.VALIDATION, final=True))
        return Failed(self._described(error))

    def _described(self, error: BaseException) -> Failure:
        name = self._lease.headers.get(TASK_HEADER, "")
        task = self._app.tasks.get(name)
        if isinstance(error, TimeLimitExceeded) and task is not None:
            error = TimeLimitExceeded(task.time_limit).with_traceback(error.__traceback__)
        failure = failure_from_exception(
            error,
            worker=self._lease.worker,
            rules=self._handling.rules,
            final_types=() if task is None else task.final_errors,
            with_locals=task is not None and task.capture_locals,
            now=self._clock.now(),
        )
        return self._detailed(failure)

    def _reported(self, type: str, text: str) -> Failure:
        return self._detailed(failure_from_fields(type, text, worker=self._lease.worker, rules=self._handling.rules))

    def _detailed(self, failure: Failure) -> Failure:
        return msgspec.structs.replace(
            failure,
            host=HOST,
            duration=int((time.monotonic() - self._began) * 1_000_000),
            trace_id=self._trace_id or tracing.trace_id(self._lease.headers),
        )


def run_awaitable(given: Awaitable[_T]) -> _T:
    """Run an awaitable in a new event loop. Its error passes asyncio by as a value: in the main thread asyncio would
    print the error, and one that cannot be printed would be replaced, and its signal handler would stay."""

    async def awaited() -> tuple[_T | None, BaseException | None]:
        try:
            return await given, None
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return None, error

    value, error = asyncio.run(awaited())
    if error is not None:
        raise error
    return cast("_T", value)


class UnknownHandler(Exception):
    """An error for an item whose task this program does not have."""

    def __init__(self, name: str | None, known: Sequence[str]) -> None:
        asked = "it has no header 'task'" if name is None else f"no task is called {name!r:.100}"
        super().__init__(f"{asked}; this program has {', '.join(sorted(known)[:20]) or 'none'}")


def execute_job(
    app: App, lease: Lease, handling: HandlerSettings, stopping: StopCheck, clock: Clock = _SYSTEM_CLOCK
) -> Outcome:
    """Run the handler of one delivery in this thread. Never raises."""
    return Execution(app, lease, handling, stopping, clock=clock).run()
