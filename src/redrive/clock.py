"""The only reader of time.

An instant is an integer: microseconds since 1970 in UTC. A duration is an integer number of microseconds.
Everything that waits does it through a clock too, so that a test can move time instead of sleeping.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NewType, Protocol

Instant = NewType("Instant", int)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_WAIT_SECONDS = 3600.0


def to_datetime(at: Instant) -> datetime:
    """Return an instant as a datetime in UTC, exact to the microsecond."""
    return EPOCH + timedelta(microseconds=at)


class Clock(Protocol):
    """Tells the time, and waits for it."""

    def now(self) -> Instant:
        """The current instant. It may stand still and, when the system's clock is set back, go back."""
        ...

    def wait(self, event: threading.Event, until: Instant | None) -> None:
        """Return when the event is set or the instant has come, and now and then for no reason: check both again."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> Instant:
        return Instant(time.time_ns() // 1000)

    def wait(self, event: threading.Event, until: Instant | None) -> None:
        if until is None:
            event.wait(_LONGEST_WAIT_SECONDS)
            return
        seconds = (until - self.now()) / 1_000_000
        if seconds > 0:
            event.wait(min(seconds, _LONGEST_WAIT_SECONDS))


def at_intervals(clock: Clock, every: int, end: threading.Event) -> Iterator[None]:
    """Now, and then whenever `every` microseconds have passed since the last tick came, until the event is set."""
    while not end.is_set():
        until = Instant(clock.now() + every)
        yield
        while not end.is_set() and clock.now() < until:
            clock.wait(end, until)


class ServerClock:
    """The time of the server, as far as this process knows it: it follows every commit."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self._ahead = 0

    def follow(self, now: Instant) -> None:
        """The server said that it is this time."""
        self._ahead = now - self._system.now()

    def now(self) -> Instant:
        return Instant(self._system.now() + self._ahead)

    def wait(self, event: threading.Event, until: Instant | None) -> None:
        self._system.wait(event, None if until is None else Instant(until - self._ahead))
