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
"""A tick that is put later than this was missed."""
MAX_MISSED = 100
"""Most ticks that are put for one task at once; of more, the oldest are left out."""


class MissedTicks(StrEnum):
    """What becomes of ticks that passed while no worker was there to put them."""

    SKIP = "skip"
    """They are left out."""
    ONCE = "once"
    """One item stands for all of them."""
    ALL = "all"
    """Each is put, the newest MAX_MISSED of them."""


class Every(msgspec.Struct, frozen=True, tag="every"):
    """Ticks at multiples of an interval since 1970 (UTC): with one of an hour, at every full hour."""

    interval: int
    """In microseconds."""

    def next_tick(self, after: Instant) -> Instant:
        """The first tick later than this."""
        return Instant((after // self.interval + 1) * self.interval)

    def __str__(self) -> str:
        return f"every {format_duration(self.interval)}"


class Cron(msgspec.Struct, frozen=True, tag="cron"):
    """Ticks as a crontab says, by the clocks of a time zone.

    Where clocks are set forward, a job at a time that does not exist runs right after the gap; where they are set back,
    one at a time that comes twice runs the first time only: as Debian's cron does.
    """

    expression: str
    timezone: str = "UTC"

    def next_tick(self, after: Instant) -> Instant | None:
        """The first tick later than this; None where there is none within 50 years."""
        zone = _zone(self.timezone)
        for tick in CronSim(self.expression, to_datetime(after).astimezone(zone)):
            instant = Instant((tick.astimezone(UTC) - EPOCH) // timedelta(microseconds=1))
            # Where clocks are set back, cronsim counts by the time on the wall, which comes again.
            if instant > after:
                return instant
        return None

    def __str__(self) -> str:
        return f"cron {self.expression} ({self.timezone})"


Ticks: TypeAlias = Every | Cron


class Periodic(msgspec.Struct, frozen=True):
    """When a task is put by itself, and what becomes of ticks that were missed."""

    ticks: Ticks
    on_missed: MissedTicks = MissedTicks.ONCE

    def due(self, last: Instant, now: Instant) -> tuple[Instant, list[Instant]]:
        """The newest tick that has come since the tick `last`, which is `last` where none has; and those to put now."""
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
        """The ticks later than `last` and not later than `now`, at most the newest MAX_MISSED of them.

        It looks back further and further, so that nobody counts all that a year without workers would have had.
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
    """What a task was declared with; None where it is not periodic."""
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
        return UTC  # there is one, whatever the machine knows of time zones
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError, TypeError):  # ZoneInfoNotFoundError is a KeyError
        raise InvalidInput(
            f"this machine knows no time zone {short_repr(name, 60)}; write it as in 'Europe/Berlin'"
        ) from None
