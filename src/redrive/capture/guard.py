"""Guards: functions whose failures are captured, and retried by calling the same function again.

A guard copies the arguments before the call, which may change them, and encodes them as JSON if it fails. Arguments
that would not come back equal are not captured. The error of the call is raised unchanged, with a note that names the
captured task; if it could not be captured, the note says why.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import CoroutineType, MethodType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, Protocol, TypeGuard, TypeVar, overload

from redrive.broker.async_broker import AsyncBroker
from redrive.broker.broker import Broker
from redrive.broker.flow import Flow
from redrive.capture.calls import awaiting, copy_arguments, is_interruption
from redrive.capture.capture_errors import UnboundMethodError, add_note
from redrive.capture.flows import new_task_id
from redrive.errors import InvalidInput, short_repr
from redrive.model.duration import SECOND, Duration, DurationInput, format_duration, parse_duration
from redrive.model.exception import own_attributes, safe_str
from redrive.model.limits import check_name
from redrive.task.arguments import Arguments
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.capture.capture_queue import CaptureQueue

P = ParamSpec("P")
R = TypeVar("R")
_MARK = "__redrive_task_id__"
"""The attribute of a captured exception that holds its task id, and the call that captured it."""
_call: ContextVar[_Call | None] = ContextVar("redrive_guarded_call", default=None)
"""The guarded call that runs in this context. One exception object can end several calls; each is captured."""
_GUARD = "__redrive_guard__"
"""The attribute of a guarded function that holds its guard."""
_log = events.logger("redrive.capture")


class _Call:
    """A call of a guarded function, and the guarded call around it."""

    __slots__ = ("outer",)

    def __init__(self, outer: _Call | None) -> None:
        self.outer = outer

    def is_within(self, other: _Call) -> bool:
        call: _Call | None = self
        while call is not None and call is not other:
            call = call.outer
        return call is not None


class Captured(NamedTuple):
    """The return value of a guarded call with `on_failure="handle"` that failed and was captured."""

    task_id: str


class HandledGuard(Protocol):
    """A guard with `on_failure="handle"`, as a decorator."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | Captured]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | Captured]: ...


class GuardOptions(NamedTuple):
    """The options of a guard; see `guard`."""

    policy: str | None = None
    max_retries: int | None = None
    on_failure: Literal["raise", "handle"] = "raise"
    key: Callable[..., str] | None = None
    name: str | None = None
    metadata: Mapping[str, Any] | None = None
    priority: str | int | None = None
    timeout: DurationInput | None = None
    on_cancel: Literal["ignore", "capture"] = "ignore"


class Guard:
    """A guard that captures the failures of one function."""

    def __init__(self, queue: CaptureQueue, function: Callable[..., Any], options: GuardOptions) -> None:
        _check(function, options)
        queue.check_options(options.policy, options.max_retries, options.metadata, options.priority)
        self._queue = queue
        self._options = options
        self._function = function
        self.name = check_name("name", options.name or _default_name(function))
        self._needs_object = _needs_object(function)
        self._copy = _copy_but_object if self._needs_object else copy_arguments
        self._bound_to: object = None
        if self._needs_object:  # the object is not captured, only the arguments after it
            self._arguments = Arguments(self.name, MethodType(function, object()))
        else:
            self._arguments = Arguments(self.name, function)
            self._register(function)

    def _register(self, function: Callable[..., Any]) -> None:
        if _is_async(function):
            self._queue.app.register(self.name, function, self._options.timeout)
        else:
            self._queue.app.register(self.name, awaiting(function))

    def wrap(self) -> Callable[..., Any]:
        """Return the guarded function, to be called instead of the original."""
        wrapper = self._async_wrapper(self._function) if _is_async(self._function) else self._wrapper()
        setattr(wrapper, _GUARD, self)
        return wrapper

    def bind(self, queue: CaptureQueue, target: object) -> None:
        """Let retries call the method of this object."""
        if queue is not self._queue:
            raise InvalidInput(f"{self.name} is guarded by the queue '{self._queue.name}', not by '{queue.name}'")
        if self._bound_to is None:
            self._register(MethodType(self._function, target))
            self._bound_to = target
        elif self._bound_to is not target:
            raise InvalidInput(f"{self.name} is bound to another object already, and a retry can call one only")

    def _wrapper(self) -> Callable[..., Any]:
        function, copied = self._function, self._copy

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            given = copied(args, kwargs)
            call = _Call(_call.get())
            _call.set(call)
            try:
                value = function(*args, **kwargs)
                if value.__class__ is not CoroutineType:
                    return value
            except Exception as error:
                try:
                    task_id = Broker(self._queue.core).run_flow(self._capture(call, error, *given))
                except Exception as problem:
                    task_id = None
                    self._report_problem(error, problem)
                if not self._is_handled(task_id, error):
                    raise
                return Captured(task_id)
            finally:
                _call.set(call.outer)
            # The function returned a coroutine: the call can only fail when that is awaited.
            return self._async_wrapper(lambda *_, **__: value)(*given[0], **given[1])

        return guarded

    def _async_wrapper(self, function: Callable[..., Any]) -> Callable[..., Any]:
        timeout = self._options.timeout
        limit = None if timeout is None else parse_duration(timeout, "timeout")
        broker = AsyncBroker(self._queue.core)
        caught = BaseException if self._options.on_cancel == "capture" else Exception
        copied = self._copy

        @functools.wraps(function)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            given = copied(args, kwargs)
            call = _Call(_call.get())
            _call.set(call)
            try:
                if limit is None:
                    return await function(*args, **kwargs)
                return await _within(limit, self.name, function(*args, **kwargs))
            except caught as error:
                if not isinstance(error, Exception | asyncio.CancelledError):
                    raise
                work = self._capture(call, error, *given)
                try:
                    task_id = await broker.run_flow_to_end(work)
                except Exception as problem:
                    task_id = None
                    self._report_problem(error, problem)
                if not self._is_handled(task_id, error):
                    raise
                return Captured(task_id)
            finally:
                _call.set(call.outer)

        return guarded

    def _capture(
        self, call: _Call, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Flow[str | None]:
        """Capture a failed call, and return its task id; None if the strategy does not capture it."""
        queue, options = self._queue, self._options
        if not queue.is_open:
            yield from queue.open()
        if (known := _captured_within(call, error)) is not None:
            return known
        if (found := queue.diagnose_call(error)) is None:
            return None
        task_id = new_task_id(self.name) if options.key is None else _call_key(options.key, args, kwargs)
        if self._needs_object:
            args = args[1:]
            if self._bound_to is None:
                raise UnboundMethodError(self.name)
        given = queue.describe(
            task_id,
            self.name,
            self._arguments.encode_exactly(args, kwargs),
            found,
            policy=options.policy,
            max_retries=options.max_retries,
            metadata=options.metadata,
            priority=options.priority,
        )
        yield from queue.capture(given)
        BaseException.__setattr__(error, _MARK, (given.task_id, call))  # though its class may refuse attributes
        add_note(error, f"captured as task '{given.task_id}' in '{queue.name}'")
        return given.task_id

    def _report_problem(self, error: BaseException, problem: Exception) -> None:
        """Add a note to the error that says why it could not be captured, and log it."""
        said = safe_str(problem) or type(problem).__name__
        add_note(error, f"it could not be captured in '{self._queue.name}': {said}")
        _log.error("capture_failed", queue=self._queue.name, task=self.name, error=said)

    def _is_handled(self, task_id: str | None, error: BaseException) -> TypeGuard[str]:
        """Return whether the caller gets `Captured` instead of the error, which has been captured then."""
        return self._options.on_failure == "handle" and task_id is not None and isinstance(error, Exception)


async def _within(limit: Duration, name: str, call: Coroutine[Any, Any, R]) -> R:
    """Await a call. Raises TimeoutError after `limit`, which the text names."""
    try:
        async with asyncio.timeout(limit / SECOND) as timeout:
            return await call
    except TimeoutError as error:
        if timeout.expired() and not error.args:  # not one that the function raised
            error.args = (f"{name} took longer than its timeout of {format_duration(limit)}",)
        raise


def _captured_within(call: _Call, error: BaseException) -> str | None:
    """Return the task id of an error that a guard within this call has captured."""
    task_id, captured_in = own_attributes(error).get(_MARK, (None, None))  # `__getattr__` of its class is not called
    return task_id if captured_in is not None and captured_in.is_within(call) else None


def _call_key(key: Callable[..., str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the task id for a call. Raises InvalidInput if the function raises anything, also an exit."""
    try:
        return key(*args, **kwargs)
    except BaseException as error:
        if is_interruption(error):
            raise
        raise InvalidInput(f"the key of the call raised {type(error).__name__}: {safe_str(error)}") from error


def _copy_but_object(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copy the arguments of a method, apart from the object itself."""
    copies, kwargs = copy_arguments(args[1:], kwargs)
    return args[:1] + copies, kwargs


def guard_function(queue: CaptureQueue, function: Any, options: GuardOptions) -> Any:
    """Return the guarded form of a function. A static or class method stays one."""
    if isinstance(function, staticmethod | classmethod):
        return type(function)(Guard(queue, function.__func__, options).wrap())
    return Guard(queue, function, options).wrap()


def bind_method(queue: CaptureQueue, method: Callable[..., Any]) -> None:
    """Let retries of a guarded method call it on the object that it is bound to here."""
    guard = getattr(getattr(method, "__func__", None), _GUARD, None)
    if not isinstance(guard, Guard):
        raise InvalidInput(f"bind takes a guarded method of an object (thing.method), not {short_repr(method, 60)}")
    guard.bind(queue, method.__self__)  # type: ignore[attr-defined]  # it has __func__


def _check(function: Callable[..., Any], options: GuardOptions) -> None:
    if not callable(function) or isinstance(function, type):
        raise InvalidInput(f"a guard is for functions, not {short_repr(function, 60)}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"a guarded function returns once, and {short_repr(function, 60)} yields")
    _check_kind(function)
    if options.key is None and (inspect.ismethod(function) or _needs_object(function)):
        raise InvalidInput(
            f"{function.__qualname__} is a method, whose object is not captured: give a key, as in "
            f"guard(key=lambda self, order: …), and call dlq.bind(thing.method) once, for retries"
        )
    if options.on_failure not in ("raise", "handle"):
        raise InvalidInput(f"on_failure is 'raise' or 'handle', not {options.on_failure!r:.40}")
    if options.on_cancel not in ("ignore", "capture"):
        raise InvalidInput(f"on_cancel is 'ignore' or 'capture', not {options.on_cancel!r:.40}")
    if options.timeout is not None and not _is_async(function):
        raise InvalidInput("timeout is for coroutine functions: a function in a thread cannot be ended from outside")


def _check_kind(function: Callable[..., Any]) -> None:
    """Raise InvalidInput for a function that a retry cannot call in the same way."""
    called = (
        function if inspect.isroutine(function) or isinstance(function, functools.partial) else type(function).__call__
    )
    if not _is_async(function) and inspect.iscoroutinefunction(inspect.unwrap(called)):
        raise InvalidInput(
            f"{short_repr(function, 60)} wraps a coroutine function, and is none: guard the coroutine function itself, "
            f"below other decorators"
        )
    try:
        inspect.signature(function)
    except ValueError:
        raise InvalidInput(
            f"{short_repr(function, 60)} does not say which arguments it takes; guard a function that calls it"
        ) from None


def _needs_object(function: Callable[..., Any]) -> bool:
    """Return whether a retry needs an object for the call: for a method in its class, or a class method."""
    return not inspect.ismethod(function) and next(iter(inspect.signature(function).parameters), "") in ("self", "cls")


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function)


def _default_name(function: Callable[..., Any]) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or name is None or name.endswith("<lambda>"):
        raise InvalidInput("this function has no name by which a retry finds it; give one: guard(name='…')")
    return f"{_importable(module)}.{name}".replace("<locals>.", "").removeprefix(".")


def _importable(module: str) -> str:
    """Return the name by which `redrive work` imports a module; empty in an interactive shell."""
    if module != "__main__":
        return module
    main = sys.modules[module]
    spec, file = getattr(main, "__spec__", None), Path(getattr(main, "__file__", None) or "")
    if spec is not None:  # python -m shop.calls
        return str(spec.name)
    return file.stem if file.stem.isidentifier() else ""
