"""Durations: written by users as `1h30m`, stored everywhere as integer microseconds."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, TypeAlias

from redrive.errors import InvalidDuration, RedriveError
from redrive.model.caller_input import exact_str, is_of_a_signal, unreadable

MILLISECOND = 1_000
SECOND = 1_000 * MILLISECOND
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

# Longer than any sensible delay, and short enough that now + delay is always an instant that can be stored.
MAX_DURATION = 36_525 * DAY

Duration: TypeAlias = Annotated[int, "microseconds"]
"""A duration in stored form. The annotation marks the numbers of a field as durations."""
DurationInput: TypeAlias = str | int | float | timedelta

_ACCEPTED = "is not a duration; write it like 250ms, 30s, 5m, 1h30m or 7d, or as a number of seconds"
_TOO_LONG = "is longer than 100 years"
_MAX_TEXT_CHARS = 64
_UNITS = (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", MILLISECOND))
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# Each unit at most once, from large to small.
_PARTS = re.compile("".join(rf"(?:({_NUMBER.pattern}){unit})?" for unit, _ in _UNITS))


def parse_duration(value: DurationInput, what: str = "duration") -> int:
    """Parse a duration as users write it, and return microseconds; `what` names it in the error.

    Text is whole numbers with units from large to small; only the last may have a fraction (`1h1.5s`). A bare number
    is seconds. The result is rounded to microseconds.
    """
    if type(value) is int and 0 <= value <= MAX_DURATION // SECOND:
        return value * SECOND
    try:
        duration = _microseconds(value, what)
    except RedriveError:
        raise
    except Exception as error:
        if is_of_a_signal(error):
            raise
        raise unreadable(what, error) from error
    if duration < 0:
        raise InvalidDuration(what, value, "is negative")
    if duration > MAX_DURATION:
        raise InvalidDuration(what, value, _TOO_LONG)
    return duration


def _microseconds(value: DurationInput, what: str) -> int:
    if isinstance(value, bool):
        raise InvalidDuration(what, value, _ACCEPTED)
    if isinstance(value, str):
        return _parse_text(exact_str(value), what)
    if isinstance(value, timedelta):
        return timedelta.__floordiv__(value, timedelta(microseconds=1))
    if isinstance(value, int):
        return int.__index__(value) * SECOND
    return _parse_float(value, what)


def format_duration(duration: int) -> str:
    """Return the text that `parse_duration` reads back as exactly these microseconds, without parts that are zero."""
    if duration < 0:
        return "-" + format_duration(-duration)
    parts: list[str] = []
    rest = duration
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    if 0 < rest < SECOND:
        parts.append(f"{_decimal(rest, MILLISECOND)}ms")
    elif rest or not parts:
        parts.append(f"{_decimal(rest, SECOND)}s")
    return "".join(parts)


def _parse_text(value: str, what: str) -> int:
    text = value.strip()
    if not text or len(text) > _MAX_TEXT_CHARS:
        raise InvalidDuration(what, value, _ACCEPTED)
    if _NUMBER.fullmatch(text):
        return round(Decimal(text) * SECOND)
    if text[0] == "-" and (_NUMBER.fullmatch(text[1:]) or _PARTS.fullmatch(text[1:])):
        raise InvalidDuration(what, value, "is negative")
    match = _PARTS.fullmatch(text)
    if match is None:
        raise InvalidDuration(what, value, _ACCEPTED)
    parts = [(number, size) for number, (_, size) in zip(match.groups(), _UNITS, strict=True) if number]
    if any("." in number for number, _ in parts[:-1]):
        raise InvalidDuration(what, value, "has a fraction before its last unit; only the last may have one")
    return round(sum(Decimal(number) * size for number, size in parts))


def _parse_float(value: object, what: str) -> int:
    # Values from files, and from callers without a type checker, can be of any type.
    number = float.__float__(value) if isinstance(value, float) else math.nan
    if not math.isfinite(number):
        raise InvalidDuration(what, value, _ACCEPTED)
    # Converted through the decimal text, so that 0.1 is exactly 0.1 and not its binary approximation.
    return round(Decimal(repr(number)) * SECOND)


def _decimal(rest: int, unit: int) -> str:
    whole, fraction = divmod(rest, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{fraction:0{digits}}".rstrip("0").rstrip(".") if fraction else str(whole)
