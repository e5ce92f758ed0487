"""Signals as a queue: a handler records that one arrived, and a thread acts on it.

A handler runs between any two instructions of the main thread, also while that thread holds a lock of `threading`. An
`Event.set()` there waits for the interrupted `Event.clear()` without end. `SimpleQueue.put` is reentrant.
"""

from __future__ import annotations

import queue
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class SignalQueue:
    """Records signals from `__enter__` to `__exit__`. Other threads may add entries, to wake the one that waits."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers
        self._arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers, if this is the main thread: no other one may."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._record) for number in self._numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wake(self) -> None:
        """End the wait of `next`, as a signal would, with the number 0."""
        self._arrived.put(0)

    def next(self, seconds: float = 0.0) -> int | None:
        """Return the number of the next signal. Wait for it this long at most; None: none arrived."""
        try:
            return self._arrived.get(timeout=seconds) if seconds > 0 else self._arrived.get_nowait()
        except queue.Empty:
            return None

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._arrived.put(number)
