"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from redrive.clock import Instant
from redrive.model.duration import DurationInput, parse_duration

START = datetime(2026, 1, 1, tzinfo=UTC)
"""Where a fake clock starts unless told otherwise."""

PATIENCE_SECONDS = 120.0
"""How long a test waits for another thread before it fails. A passing test waits a thousand times shorter."""

_SLICE_SECONDS = 0.001


class FakeClock:
    """Stands still until `advance`. Safe to share between threads, and between brokers on one store.

    Nothing sleeps on it: whoever waits for an instant goes on when the test has moved the clock there.
    """

    def __init__(self, start: datetime = START) -> None:
        since = start - datetime(1970, 1, 1, tzinfo=UTC)
        self._now = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        self._waiting = 0
        self._changed = threading.Condition()

    def now(self) -> Instant:
        return Instant(self._now)

    def advance(self, duration: DurationInput) -> Instant:
        """Move on by `31s`, `1h30m`, a timedelta or a number of seconds. Returns the new instant."""
        moved = parse_duration(duration, "advance")
        with self._changed:
            self._now += moved
            return Instant(self._now)

    def set_back(self, duration: DurationInput) -> Instant:
        """Move back, as a clock that is corrected. Returns the new instant."""
        moved = parse_duration(duration, "set_back")
        with self._changed:
            self._now -= moved
            return Instant(self._now)

    def wait(self, event: threading.Event, until: Instant | None) -> None:
        # The event belongs to the caller and may mean more to him than "look again", so advance() does not set it.
        # Two things cannot be waited for at once; a look at the clock every millisecond takes the place of that.
        self._count(+1)
        try:
            while (until is None or self._now < until) and not event.wait(_SLICE_SECONDS):
                pass
        finally:
            self._count(-1)

    def until_waiting(self, count: int = 1) -> None:
        """Return when at least `count` threads wait on this clock; fail the test if that does not happen."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting >= count, PATIENCE_SECONDS):
                raise AssertionError(f"{self._waiting} threads wait on the clock, and the test expected {count}")

    def _count(self, change: int) -> None:
        with self._changed:
            self._waiting += change
            self._changed.notify_all()
