"""A clock that only a test moves."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from redrive.clock import Instant
from redrive.model.duration import DurationInput, parse_duration

START = datetime(2026, 1, 1, tzinfo=UTC)
"""The default start of a fake clock."""

PATIENCE_SECONDS = 120.0
"""Seconds that a test waits for another thread before it fails. A passing test waits a thousand times shorter."""

_SLICE_SECONDS = 0.001


class FakeClock:
    """A clock that only `advance` and `set_back` move. Safe to share between threads, and between brokers on one store.

    No thread sleeps in real time: a caller that waits for an instant continues when the test moves the clock there.
    """

    def __init__(self, start: datetime = START) -> None:
        since = start - datetime(1970, 1, 1, tzinfo=UTC)
        self._now = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        self._waiting = 0
        self._changed = threading.Condition()

    def now(self) -> Instant:
        return Instant(self._now)

    def advance(self, duration: DurationInput) -> Instant:
        """Move forward by `31s`, `1h30m`, a timedelta or a number of seconds. Returns the new instant."""
        moved = parse_duration(duration, "advance")
        with self._changed:
            self._now += moved
            return Instant(self._now)

    def set_back(self, duration: DurationInput) -> Instant:
        """Move back, like a system clock that is corrected. Returns the new instant."""
        moved = parse_duration(duration, "set_back")
        with self._changed:
            self._now -= moved
            return Instant(self._now)

    def wait(self, event: threading.Event, until: Instant | None) -> None:
        # advance() does not set the event, which belongs to the caller and may have another meaning there. A thread
        # cannot wait for the event and the clock together, so it checks the clock every millisecond.
        self._count(+1)
        try:
            while (until is None or self._now < until) and not event.wait(_SLICE_SECONDS):
                pass
        finally:
            self._count(-1)

    def until_waiting(self, count: int = 1) -> None:
        """Wait until at least `count` threads wait on this clock; raise AssertionError after PATIENCE_SECONDS."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting >= count, PATIENCE_SECONDS):
                raise AssertionError(f"{self._waiting} threads wait on the clock, and the test expected {count}")

    def _count(self, change: int) -> None:
        with self._changed:
            self._waiting += change
            self._changed.notify_all()
