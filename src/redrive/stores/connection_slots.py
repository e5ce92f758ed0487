"""A limit on the number of concurrent calls to a server."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

_POLL_SECONDS = 0.1
"""Interval at which a waiting call polls: the call that should have woken it may have been interrupted."""


class Slots:
    """A fixed number of slots. A call loses its slot when it ends, at whichever point an exception ended it: a slot
    exists before it is taken, and is free when nothing refers to it."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._mutex = threading.Lock()
        self._taken: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
        """Slots in use. A slot is the lock that its call waits on."""
        self._waiting: dict[threading.Lock, None] = {}

    @contextmanager
    def one(self, timeout_seconds: float) -> Iterator[bool]:
        """Hold a slot within this context. False if none was free within `timeout_seconds`."""
        slot = threading.Lock()
        slot.acquire()
        try:
            yield self._take(slot, time.monotonic() + timeout_seconds)
        finally:
            with self._mutex:
                self._taken.discard(slot)
                self._waiting.pop(slot, None)
                first = next((waiting for waiting in self._waiting if waiting.locked()), None)
                if first is not None:
                    first.release()

    def _take(self, slot: threading.Lock, end: float) -> bool:
        while True:
            with self._mutex:
                if len(self._taken) < self._count:
                    self._waiting.pop(slot, None)
                    self._taken.add(slot)
                    return True
                self._waiting[slot] = None
            left = end - time.monotonic()
            if left <= 0:
                return False
            slot.acquire(timeout=min(left, _POLL_SECONDS))
