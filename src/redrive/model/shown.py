"""How values read where a person prints them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from redrive.clock import Instant


def moment(at: Instant) -> str:
    """An instant to the second, as in `2026-07-01 03:12:55 UTC`."""
    return f"{datetime.fromtimestamp(at // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def tally(counts: Mapping[str, int]) -> str:
    """Names with their numbers, as in `orders 78, mails 20`."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def several(count: int, what: str) -> str:
    """A number of things, as in `1 item` and `1,000 items`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def lines(*parts: str | None) -> str:
    """The parts that there are, one on a line, all but the first indented."""
    return "\n  ".join(part for part in parts if part)
