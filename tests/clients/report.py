"""What Redrive reads from the errors that calls raise, as JSON on standard output."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

from redrive.clock import Instant
from redrive.model.error_attributes import codes_of, status_code_of
from redrive.model.failure import failure_from_exception

NOW = Instant(1_700_000_000_000_000)

_read: dict[str, Any] = {}


def calls(name: str, call: Callable[[], Any]) -> None:
    """Make a call that must fail, and note what its error says."""
    try:
        call()
    except Exception as error:
        _note(name, error)
    else:
        raise AssertionError(f"{name} did not fail")


def awaits(name: str, call: Callable[[], Awaitable[Any]]) -> None:
    """The same for a coroutine, on an event loop of its own."""

    async def run() -> None:
        await call()

    calls(name, lambda: asyncio.run(run()))


def _note(name: str, error: Exception) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        failure = failure_from_exception(error, now=NOW)
        status, codes = status_code_of(error), codes_of(error)
    assert not warned, [str(each.message) for each in warned]
    seconds = None if failure.retry_after is None else failure.retry_after / 1_000_000
    _read[name] = [failure.type, failure.error_class, status, sorted(codes), seconds]


def write() -> None:
    """Write what was noted."""
    print(json.dumps(_read))
