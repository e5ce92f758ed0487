"""Text for storage, terminals and logs: cleaning, formatting of values, and suggestions for misspelt words."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache

from redrive.clock import Instant
from redrive.model.duration import MILLISECOND, MINUTE, SECOND, format_duration
from redrive.model.limits import KIB

MAX_TYPE_BYTES = 256
"""The maximum length of the name of a type, a worker or a host."""
MAX_TEXT_BYTES = 8 * KIB
"""The maximum length of the text of an error, or of a note."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links, device strings
    r"|\x1b[ -/]*[0-~]?|[\x9b\x9c]"  # any other text that starts with an escape
)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def clean_text(text: str, limit: int) -> str:
    """Return the text in a form for every store, terminal and log, in at most `limit` bytes: the middle is cut out."""
    size = len(text)
    if size > limit:
        # Cut before the detailed checks, so that 50 MB cost no more than 8 KiB.
        text = text[:limit] + text[-limit:]
    # Two scans at the speed of memory are sufficient for nearly every text.
    if "\x1b" in text or "\0" in text or not text.isascii():
        text = _UNSTORABLE.sub(_REPLACEMENT, _ESCAPE.sub("", text))
    elif size <= limit:
        return text
    data = text.encode()
    if size <= limit and len(data) <= limit:
        return text
    return _without_middle(data, limit, size)


def visible(text: str, keep: str = "") -> str:
    """Return the text with escapes such as `\\x1b` and `\\u202e` for all invisible characters except those in `keep`.

    In a terminal or a log it then cannot move a cursor, end a line, change the direction of reading, or hide text.
    Invisible are the control characters of ASCII and ISO 8859, formatting characters such as those of bidirectional
    text, separators except the space, and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def visible_json(text: str) -> str:
    """Return equivalent JSON with escapes for all invisible characters except its line ends."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _json_escape(char) for char in text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _without_middle(data: bytes, limit: int, size: int) -> str:
    mark = f"\n… cut: {size:,} characters …\n"
    room = limit - len(mark.encode())
    if room < limit // 2:
        return data[:limit].decode("utf-8", "ignore")
    tail = room // 3
    return data[: room - tail].decode("utf-8", "ignore") + mark + data[-tail:].decode("utf-8", "ignore")


def format_instant(at: Instant) -> str:
    """Return an instant to the second, as in `2026-07-01 03:12:55 UTC`."""
    return f"{datetime.fromtimestamp(at // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def to_rfc3339(at: int) -> str:
    """Return an instant for JSON, RFC 3339 with microseconds, as in `2026-07-01T03:12:55.000123Z`."""
    seconds, microseconds = divmod(at, SECOND)
    return f"{_second(seconds)}.{microseconds:06}Z"


# Cached, because most instants of a response are in the same few seconds.
@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def format_elapsed(duration: int) -> str:
    """Return a duration in few digits, as in `1.2 s`, `340 ms` and `2m5s`."""
    if duration >= MINUTE:
        return format_duration(duration // SECOND * SECOND)
    unit, name = (SECOND, "s") if duration >= SECOND else (MILLISECOND, "ms")
    return f"{_few_digits(duration / unit)} {name}"


def format_bytes(count: int) -> str:
    """Return a number of bytes in few digits, as in `512 MiB`."""
    amount, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{_few_digits(amount)} {unit}"


def _few_digits(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 100 else f"{amount:.1f}".removesuffix(".0")


def format_counts(counts: Mapping[str, int]) -> str:
    """Return names with their numbers, as in `orders 78, mails 20`."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def pluralize(count: int, what: str) -> str:
    """Return a number with its noun, as in `1 item` and `1,000 items`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def join_lines(*parts: str | None) -> str:
    """Return the non-empty parts, one on each line, all but the first indented."""
    return "\n  ".join(part for part in parts if part)


_NEAR = 0.7
"""The minimum similarity of two words, from 0 to 1: one wrong letter in four is accepted."""


def suggest(word: object, known: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """Return a suggestion to append to an unknown word, as in ` (did you mean attempts?)`; empty if none is near.

    `elsewhere` maps words of other programs to the equivalent known ones.
    """
    if not isinstance(word, str):
        return ""
    meant = elsewhere.get(word.lower()) or next(iter(get_close_matches(word, known, 1, _NEAR)), None)
    return f" (did you mean {meant}?)" if meant in known else ""
