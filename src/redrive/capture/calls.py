"""Calls of functions that may be coroutine functions, copies of their arguments, and the test for a failed result."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import MemberDescriptorType
from typing import Any
from uuid import UUID

import msgspec

from redrive.capture.capture_errors import CallbackFailed
from redrive.capture.capture_hooks import running_loop
from redrive.errors import InvalidInput
from redrive.model.caller_input import is_of_a_signal
from redrive.task.arguments import fields_of
from redrive.worker.execution import run_awaitable

FAILED = frozenset({"failed", "error"})
"""Values of `status` in the result of a failed call."""

_FIXED = frozenset({str, int, float, bool, type(None), bytes, datetime, date, time, timedelta, UUID, Decimal})
"""Types of values that nothing changes."""


def copy_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, with copies of all values that it may change and that JSON can hold. A value that
    cannot be copied stays itself."""
    try:
        if not _FIXED.issuperset(map(type, args)):
            args = tuple(map(_copied, args))
        if kwargs and not _FIXED.issuperset(map(type, kwargs.values())):
            kwargs = {name: _copied(value) for name, value in kwargs.items()}
    except Exception as error:
        if is_of_a_signal(error):
            raise
    return args, kwargs


def _copied(value: Any) -> Any:
    """Return a copy. One of a container of a derived class is made without its methods."""
    kind = type(value)
    if kind in _FIXED:
        return value
    if issubclass(kind, dict):
        plain = {name: each if type(each) in _FIXED else _copied(each) for name, each in dict.items(value)}
        return plain if kind is dict else _of_class(value, plain)
    if issubclass(kind, list):
        items = [each if type(each) in _FIXED else _copied(each) for each in list.__iter__(value)]
        return items if kind is list else _of_class(value, items)
    if issubclass(kind, tuple):  # a named one too
        return tuple.__new__(kind, [_copied(each) for each in tuple.__iter__(value)])
    if issubclass(kind, set | bytearray):
        return set(set.__iter__(value)) if issubclass(kind, set) else bytearray(value)
    return _copied_record(value, fields_of(kind))  # type: ignore[arg-type]  # mypy does not see that it is hashable


def _of_class(value: dict[Any, Any] | list[Any], copied: dict[Any, Any] | list[Any]) -> Any:
    """Return a copied dict or list as one of the class of its original, for a `key` that uses what that class has."""
    kind: Any = type(value)
    if isinstance(value, OrderedDict):
        return OrderedDict(copied)  # whose order the methods of dict would lose
    made = kind.__new__(kind)
    if hasattr(value, "__dict__"):
        made.__dict__.update(value.__dict__)
    if isinstance(made, dict):
        dict.update(made, copied)
    else:
        list.extend(made, copied)
    return made


def _copied_record(value: Any, names: Sequence[str]) -> Any:
    """Return a copy of a record. Other descriptors than slots are not called: those of an ORM write to the original."""
    record = copy.copy(value) if names else value
    held: dict[str, Any] = getattr(record, "__dict__", {})
    for name in names:
        if name in held:
            held[name] = _copied(held[name])
        elif isinstance(getattr(type(value), name, None), MemberDescriptorType):
            field = getattr(value, name)
            if (copied := _copied(field)) is not field:
                if isinstance(record, msgspec.Struct):
                    msgspec.structs.force_setattr(record, name, copied)
                else:
                    object.__setattr__(record, name, copied)
    return record


def is_failed_result(result: Any) -> bool:
    """Return whether a result is a failed one: a mapping with the status `failed` or `error`."""
    status = result.get("status") if isinstance(result, Mapping) else None
    return isinstance(status, str) and status in FAILED


def checked_result(result: Any, is_failure: Callable[[Any], bool]) -> Any:
    """Return the result of a call. Raises CallbackFailed for a failed result."""
    if not is_failure(result):
        return result
    said = result.get("error") if isinstance(result, Mapping) else None
    raise CallbackFailed(str(said if said is not None else result)[:2000])


def is_interruption(error: BaseException) -> bool:
    """Return whether an exception ends the wait for a call, and not the call: Ctrl-C, an exit by a signal handler, a
    cancellation of the task that waits. Anything else that a call raises, such as SystemExit, is its failure."""
    if isinstance(error, asyncio.CancelledError):
        task = None if running_loop() is None else asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit) or (
        not isinstance(error, Exception) and is_of_a_signal(error)
    )


def invoke(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, and run its coroutine, if any, in a new event loop. Raises InvalidInput if a loop runs here."""
    value = function(*args, **kwargs)
    if not inspect.isawaitable(value):
        return value
    if running_loop() is None:
        return run_awaitable(value)
    close = getattr(value, "close", None)
    if close is not None:
        close()
    raise InvalidInput("an event loop runs in this thread; use AsyncDeadLetterQueue for coroutine functions")


def awaiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that also runs a coroutine which the given one returns, unless an event loop runs here."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        return run_awaitable(value) if inspect.iscoroutine(value) and running_loop() is None else value

    return run


async def invoke_async(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, and await its return value if that is awaitable."""
    value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def run_blocking(function: Callable[..., Any], *args: Any) -> Any:
    """Call a blocking function."""
    return function(*args)


async def run_blocking_async(function: Callable[..., Any], *args: Any) -> Any:
    """Call a blocking function in a thread, so that the event loop continues."""
    return await asyncio.to_thread(function, *args)
