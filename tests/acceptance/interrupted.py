"""Exceptions raised from outside, at every line that a call runs through: what a signal handler may do."""

from __future__ import annotations

import contextlib
import dis
import itertools
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import psycopg
import redis

import redrive
from redrive.worker.thread_runner import raise_here


class Alarm(Exception):
    """Raised by a handler, of a class that no library knows."""


RAISED: tuple[type[BaseException], ...] = (TimeoutError, KeyboardInterrupt, Alarm, ConnectionResetError)
"""What handlers raise. Drivers take two of them for their own."""
STORES = os.path.join(os.path.dirname(redrive.__file__), "stores")
DRIVERS = tuple(os.path.dirname(package.__file__) for package in (psycopg, redis))


class _Stale(BaseException):
    """Raised in this thread to clear what was meant for another."""


def forget_async_exceptions() -> None:
    """Clear the flag of an exception that was sent to a thread which ended before it arrived. While it is set, CPython
    3.11 hangs in the first function that is traced or profiled, and no signal ends that."""
    with contextlib.suppress(_Stale):
        raise_here(_Stale)


class Outcome(NamedTuple):
    """How a call ended that something was raised in."""

    place: str
    """Where it was raised."""
    raised: BaseException
    result: Any
    error: BaseException | None
    """None: the call was acknowledged all the same."""


def at_line(number: int, raised: BaseException, call: Callable[[], Any], under: tuple[str, ...]) -> Outcome | None:
    """Do the call, with this raised at the line of this number of files in these folders. None where it has fewer."""
    left = itertools.count(number, -1)
    place = ""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal place
        if not frame.f_code.co_filename.startswith(under) or frame.f_code.co_name == "__del__":
            return None
        if event == "line" and not is_between(frame) and next(left) == 1:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            sys.settrace(None)
            raise raised
        return trace

    result, error = None, None
    before = sys.gettrace()
    forget_async_exceptions()
    sys.settrace(trace)
    try:
        result = call()
    except BaseException as problem:
        error = problem
    finally:
        sys.settrace(before)
    if not place and error is not None:
        raise error
    return Outcome(place, raised, result, error) if place else None


def is_between(frame: FrameType) -> bool:
    """Whether nothing is done here: `try:`, or the line of a `with` that comes a second time as its block ends. Python
    runs no handler there, as it would then leave a lock locked."""
    code, line = frame.f_code, frame.f_lineno
    if code.co_code[frame.f_lasti] == dis.opmap["NOP"]:
        return True
    if not linecache.getline(code.co_filename, line).lstrip().startswith("with "):
        return False
    return frame.f_lasti > min(start for start, _, number in code.co_lines() if number == line)


def at_every_line(
    call: Callable[[int], Any], under: tuple[str, ...], *, first: int = 1, step: int = 1
) -> Iterator[Outcome]:
    """The call, interrupted at one line after the other until it runs through. It is given the number of the line."""
    for number in itertools.count(first, step):
        raised = RAISED[number % len(RAISED)](f"raised at line {number}")
        outcome = at_line(number, raised, lambda number=number: call(number), under)
        if outcome is None:
            return
        yield outcome
