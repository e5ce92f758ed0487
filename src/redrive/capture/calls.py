"""Calls of functions that may be coroutine functions, and the test for a failed result."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from redrive.capture.capture_errors import CallbackFailed
from redrive.capture.capture_hooks import running_loop
from redrive.errors import InvalidInput

FAILED = frozenset({"failed", "error"})
"""Values of `status` in the result of a failed call."""


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


def invoke(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, and run its coroutine, if any, in a new event loop. Raises InvalidInput if a loop runs here."""
    value = function(*args, **kwargs)
    if not inspect.isawaitable(value):
        return value
    if running_loop() is None:
        return asyncio.run(_awaited(value))
    close = getattr(value, "close", None)
    if close is not None:
        close()
    raise InvalidInput("an event loop runs in this thread; use AsyncDeadLetterQueue for coroutine functions")


def awaiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that also runs a coroutine which the given one returns, unless an event loop runs here."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        return asyncio.run(value) if inspect.iscoroutine(value) and running_loop() is None else value

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


async def _awaited(value: Any) -> Any:
    return await value
