"""Periodic tasks: when they are due. Pure functions of time; `redrive.worker.scheduler` puts them."""

from __future__ import annotations

from datetime import UTC, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from redrive.clock import EPOCH, Instant, to_datetime
from redrive.errors import InvalidDuration, InvalidInput, short_repr
from redrive.model.duration import MINUTE, SECOND, DurationInput, format_duration, parse_duration

ON_TIME = MINUTE
"""Longest delay of a tick that is not missed."""
MAX_MISSED = 100
"""Most ticks that are put for one task together; of more, the oldest are skipped."""


class MissedTicks(StrEnum):
    """The policy for ticks that passed while no worker was running to put them."""

    SKIP = "skip"
    """None of them is put."""
    ONCE = "once"
    """One item is put for all of them."""
    ALL = "all"
    """Each is put, the newest MAX_MISSED of them."""


class Every(msgspec.Struct, frozen=True, tag="every"):
    """Ticks at multiples of an interval since 1970 (UTC): with one of an hour, at every full hour."""

    interval: int
    """In microseconds."""

    def next_tick(self, after: Instant) -> Instant:
        """Return the first tick later than this."""
        return Instant((after // self.interval + 1) * self.interval)

    def __str__(self) -> str:
        return f"every {format_duration(self.interval)}"


class Cron(msgspec.Struct, frozen=True, tag="cron"):
    """Ticks of a crontab expression, in the local time of a time zone.

    When clocks are set forward, a tick at a time that does not exist comes right after the gap. When they are set back,
    one at a time that comes twice comes the first time only. Debian's cron does the same.
    """

    expression: str
    timezone: str = "UTC"

    def next_tick(self, after: Instant) -> Instant | None:
        """Return the first tick later than this; None without a tick within 50 years."""
        zone = _zone(self.timezone)
        for tick in CronSim(self.expression, to_datetime(after).astimezone(zone)):
            instant = Instant((tick.astimezone(UTC) - EPOCH) // timedelta(microseconds=1))
            # When clocks are set back, cronsim counts by local time, which repeats.
            if instant > after:
                return instant
        return None

    def __str__(self) -> str:
        return f"cron {self.expression} ({self.timezone})"


Ticks: TypeAlias = Every | Cron


class Periodic(msgspec.Struct, frozen=True):
    """The schedule of a periodic task, and its policy for missed ticks."""

    ticks: Ticks
    on_missed: MissedTicks = MissedTicks.ONCE

    def due(self, last: Instant, now: Instant) -> tuple[Instant, list[Instant]]:
        """Return the newest tick that has come since the tick `last`, or `last` if none has; and those to put now."""
        ticks = self._newest(last, now)
        newest = ticks[-1] if ticks else last
        match self.on_missed:
            case MissedTicks.ALL:
                return newest, ticks
            case MissedTicks.ONCE:
                return newest, ticks[-1:]
            case MissedTicks.SKIP:
                return newest, [tick for tick in ticks[-1:] if now - tick <= ON_TIME]

    def _newest(self, last: Instant, now: Instant) -> list[Instant]:
        """Return the ticks later than `last` and not later than `now`, at most the newest MAX_MISSED of them.

        It searches back in growing spans, so that not all ticks of a year without workers are computed.
        """
        span = MINUTE
        while True:
            begin = max(last, Instant(now - span))
            ticks: list[Instant] = []
            tick = self.ticks.next_tick(begin)
            while tick is not None and tick <= now:
                ticks.append(tick)
                tick = self.ticks.next_tick(tick)
            if begin == last or len(ticks) >= MAX_MISSED:
                return ticks[-MAX_MISSED:]
            span *= 2


def periodic_from(
    every: DurationInput | None, cron: str | None, timezone: str, missed: str | MissedTicks
) -> Periodic | None:
    """Return the schedule that a task is declared with; None if it is not periodic."""
    try:
        policy = MissedTicks(missed)
    except ValueError:
        raise InvalidInput(f"missed is {', '.join(MissedTicks)}, not {short_repr(missed, 40)}") from None
    if every is not None and cron is not None:
        raise InvalidInput("a periodic task has every= or cron=, not both")
    if every is not None:
        interval = parse_duration(every, "every")
        if interval < SECOND:
            raise InvalidDuration("every", every, "is shorter than a second")
        return Periodic(Every(interval), policy)
    if cron is None:
        return None
    ticks = Cron(cron, timezone)
    try:
        never = ticks.next_tick(Instant(0)) is None
    except (CronSimError, AttributeError, AssertionError) as error:
        raise InvalidInput(
            f"cron {short_repr(cron, 80)} cannot be read: {error}; write it as in '0 3 * * MON-FRI'"
        ) from None
    if never:
        raise InvalidInput(f"cron {short_repr(cron, 80)} has no tick within 50 years")
    return Periodic(ticks, policy)


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # also on a machine without a time zone database
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError, TypeError):  # ZoneInfoNotFoundError is a KeyError
        raise InvalidInput(
            f"this machine knows no time zone {short_repr(name, 60)}; write it as in 'Europe/Berlin'"
        ) from None
