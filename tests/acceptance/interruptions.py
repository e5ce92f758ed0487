"""An exception out of nowhere: at the n-th line of Redrive, or the n-th point where CPython runs signal handlers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from tests.acceptance.interrupted import forget_async_exceptions, is_between

import redrive

SOURCES = str(Path(redrive.__file__).parent)
_T = TypeVar("_T")


class Interruption(Exception):
    """What a signal handler raises, for example an alarm that is used as a time limit."""


def interrupt(*_: object) -> None:
    """What a program may install as a signal handler."""
    raise Interruption


class Point(StrEnum):
    """Where it can strike."""

    LINE = "line"
    """Before a line of Redrive."""
    CALL = "call"
    """On entry to a function, and when one written in C returns: there CPython runs signal handlers, as it does at the
    end of each turn of a loop, which is the line at its head."""
    OWN_CALL = "own call"
    """The same in Redrive's own code only: locks of other libraries cannot be released from outside. And not between
    `__enter__` and the block: Python 3.14 looks for signals there, when a lock is taken and its release is not sure.
    No signal comes in the thread that commits, and the main thread is struck there too."""


class Interrupter:
    """Raises once, at the n-th point of what it runs; counts the points."""

    def __init__(self, point: Point, nth: int) -> None:
        self._point = point
        self._nth = nth
        self.count = 0

    @property
    def has_struck(self) -> bool:
        return self.count >= self._nth

    def run(self, work: Callable[[], _T]) -> _T:
        """Do the work in this thread, unless it strikes."""
        strikes = self._trace if self._point is Point.LINE else self._profile  # CPython uses it after it lets go of it
        forget_async_exceptions()
        if self._point is Point.LINE:
            sys.settrace(strikes)
        else:
            sys.setprofile(strikes)
        try:
            return work()
        finally:
            sys.settrace(None)
            sys.setprofile(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        if event == "line" and not is_between(frame):
            self._strike()
        return self._trace

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if self._point is Point.OWN_CALL:
            is_meant = file.startswith(SOURCES) and getattr(argument, "__name__", "") != "__enter__"
        else:
            is_meant = file != __file__
        if is_meant and event in ("call", "c_return"):
            self._strike()

    def _strike(self) -> None:
        self.count += 1
        if self.count == self._nth:
            interrupt()


def fork_and_wait() -> None:
    """Fork a child that ends, and wait for it. Only what runs before and after each fork can be struck."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def every_point(point: Point, attempt: Callable[[Interrupter], None], *, stride: int = 1, first: int = 1) -> int:
    """Attempt it with an exception at each point in turn, until one attempt ends before it. Gives the attempts."""
    nth, attempts = first, 0
    while True:
        interrupter = Interrupter(point, nth)
        attempt(interrupter)
        attempts += 1
        if not interrupter.has_struck:
            return attempts
        nth += stride
