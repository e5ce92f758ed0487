"""Clocks: the only code that reads the time.

An instant is an integer: microseconds since 1970 in UTC. A duration is an integer number of microseconds.
All waits go through a clock too, so that a test can advance time instead of sleeping.
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
    """A source of time that can also wait."""

    def now(self) -> Instant:
        """Return the current instant, which may repeat, and goes backwards if the system clock is set back."""
        ...

    def wait(self, event: threading.Event, until: Instant | None) -> None:
        """Wait until the event is set or the instant is reached. Wake-ups may be spurious: check both again."""
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
    """Yield immediately, and then `every` microseconds after each previous tick, until the event is set."""
    while not end.is_set():
        until = Instant(clock.now() + every)
        yield
        while not end.is_set() and clock.now() < until:
            clock.wait(end, until)


class ServerClock:
    """An estimate of the server's time: the offset to the system clock, updated by `follow` with every commit."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self._ahead = 0

    def follow(self, now: Instant) -> None:
        """Set the offset from the time that the server reported."""
        self._ahead = now - self._system.now()

    def now(self) -> Instant:
        return Instant(self._system.now() + self._ahead)

    def wait(self, event: threading.Event, until: Instant | None) -> None:
        self._system.wait(event, None if until is None else Instant(until - self._ahead))
