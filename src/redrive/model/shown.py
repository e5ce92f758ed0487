"""How values read where they are printed: instants for programs too, all else for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

from redrive.clock import Instant
from redrive.model.duration import MILLISECOND, MINUTE, SECOND, format_duration


def moment(at: Instant) -> str:
    """An instant to the second, as in `2026-07-01 03:12:55 UTC`."""
    return f"{datetime.fromtimestamp(at // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def instant_text(at: int) -> str:
    """An instant as JSON has it, RFC 3339 with microseconds, as in `2026-07-01T03:12:55.000123Z`."""
    seconds, microseconds = divmod(at, SECOND)
    return f"{_second(seconds)}.{microseconds:06}Z"


# Most instants of an answer are of the same second, or of a few.
@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def lasting(duration: int) -> str:
    """A duration in few digits, as in `1.2 s`, `340 ms` and `2m5s`."""
    if duration >= MINUTE:
        return format_duration(duration // SECOND * SECOND)
    unit, name = (SECOND, "s") if duration >= SECOND else (MILLISECOND, "ms")
    return f"{_few_digits(duration / unit)} {name}"


def size(count: int) -> str:
    """A number of bytes in few digits, as in `512 MiB`."""
    amount, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{_few_digits(amount)} {unit}"


def _few_digits(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 100 else f"{amount:.1f}".removesuffix(".0")


def tally(counts: Mapping[str, int]) -> str:
    """Names with their numbers, as in `orders 78, mails 20`."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def several(count: int, what: str) -> str:
    """A number of things, as in `1 item` and `1,000 items`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def lines(*parts: str | None) -> str:
    """The parts that there are, one on a line, all but the first indented."""
    return "\n  ".join(part for part in parts if part)
