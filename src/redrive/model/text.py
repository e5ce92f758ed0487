"""Texts as every store, terminal and log can hold them."""

from __future__ import annotations

import re

from redrive.model.limits import KIB

MAX_TYPE_BYTES = 256
"""Of the name of a type, a worker or a host."""
MAX_TEXT_BYTES = 8 * KIB
"""Of an error, or a note."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links, device strings
    r"|\x1b[ -/]*[0-~]?|[\x9b\x9c]"  # anything else that begins with an escape
)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def clean_text(text: str, limit: int) -> str:
    """The text as every store, terminal and log can hold it, in at most `limit` bytes: long ones lose their middle."""
    size = len(text)
    if size > limit:
        # Cut before looking closely, so that 50 MB cost no more than 8 KiB.
        text = text[:limit] + text[-limit:]
    # Two scans at the speed of memory decide for nearly every text that there is nothing to do.
    if "\x1b" in text or "\0" in text or not text.isascii():
        text = _UNSTORABLE.sub(_REPLACEMENT, _ESCAPE.sub("", text))
    elif size <= limit:
        return text
    data = text.encode()
    if size <= limit and len(data) <= limit:
        return text
    return _without_middle(data, limit, size)


def visible(text: str, keep: str = "") -> str:
    """The text with escapes such as `\\x1b` and `\\u202e` in place of all that cannot be seen in it, but for `keep`.

    Neither in a terminal nor in a log does it then move a cursor, end a line, turn the direction of reading, or hide.
    These are the control characters of ASCII and ISO 8859, formatting characters such as those of bidirectional text,
    separators but the space, and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def visible_json(text: str) -> str:
    """JSON that means the same, and in which everything can be seen but its line ends."""
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
