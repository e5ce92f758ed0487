"""The line of an event: its name and fields as a record and a log have them.

Secrets are redacted, and long texts cut. Values other than texts, lists of them, numbers and booleans show their type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from redrive.model.limits import KIB
from redrive.model.redact import redact_text
from redrive.model.text import clean_text, visible

MAX_VALUE_BYTES = KIB
MAX_TRACEBACK_BYTES = 8 * KIB
MAX_LOOKED_AT_BYTES = 32 * KIB
MAX_LISTED = 20
"""Members of a list that are shown at most."""
MAX_REMEMBERED_CHARS = 256
"""Longest text that is cached. A longer one is redacted each time."""
_IS_ID = re.compile(r"[0-9a-f]{32}").fullmatch
_NEEDS_QUOTES = re.compile(r'[ ="\\]').search


def form(event: str, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the line of an event, and the extra attributes of its record."""
    event, line = _shown(event, MAX_VALUE_BYTES)[0], ""
    shown = {}
    for name, value in fields.items():
        if value is not None:
            limit = MAX_TRACEBACK_BYTES if name == "traceback" else MAX_VALUE_BYTES
            shown[name], written = _shown(value, limit)
            line += f" {name}={written}"
    return f"{event}{line}", {"event": event, "fields": shown}


def form_again(event: str, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the same for one event of many, with a cache: often they differ only in their first field, an id."""
    names, values = tuple(fields), tuple(fields.values())
    if not names or not isinstance(values[0], str) or not _IS_ID(values[0]) or not _are_short(values):
        return form(event, fields)
    name, id = names[0], values[0]
    event, line, others = _remembered_fields(event, names[1:], *values[1:])
    return f"{event} {name}={id}{line}", {"event": event, "fields": {name: id, **others}}


def _are_short(values: Sequence[Any]) -> bool:
    """Return whether these can be cached: texts, integers, booleans and None, none of them long."""
    for value in values:
        if isinstance(value, str):
            if len(value) > MAX_REMEMBERED_CHARS:
                return False
        elif not isinstance(value, int | None):  # 0.0 is equal to -0.0, but written differently
            return False
    return True


@lru_cache(maxsize=1024, typed=True)
def _remembered_fields(event: str, names: Sequence[str], *values: Any) -> tuple[str, str, Mapping[str, Any]]:
    """Return the event, its line without it, and the fields."""
    line, extra = form(event, dict(zip(names, values, strict=True)))
    return extra["event"], line.removeprefix(extra["event"]), extra["fields"]


def _shown(value: Any, limit: int) -> tuple[Any, str]:
    """Return a value as a record has it, and as it is written in a line."""
    if isinstance(value, str):
        # Also of string enumerations, which are shown by their value.
        text = str.__str__(value)
        if _IS_ID(text):  # no secret has this form
            return text, text
        return _remembered_text(text, limit) if len(text) <= MAX_REMEMBERED_CHARS else _safe_text(text, limit)
    if isinstance(value, bool):
        return value, str(value).lower()
    if isinstance(value, int | float):
        return value, str(value)
    if isinstance(value, list | tuple | set | frozenset) and all(isinstance(member, str) for member in value):
        return _safe_text(_listed(value), limit)
    # A payload, a lease, an item: nothing of its content.
    return _safe_text(f"<{type(value).__name__}>", limit)


def _safe_text(text: str, limit: int) -> tuple[str, str]:
    # Secrets are redacted before the text is cut, which could split one.
    safe = clean_text(redact_text(clean_text(text, MAX_LOOKED_AT_BYTES)), limit)
    return safe, safe if safe and safe.isprintable() and not _NEEDS_QUOTES(safe) else _quoted(safe)


_remembered_text = lru_cache(maxsize=1024)(_safe_text)


def _listed(members: Iterable[str]) -> str:
    shown = list(members)
    rest = f" and {len(shown) - MAX_LISTED:,} more" if len(shown) > MAX_LISTED else ""
    return ", ".join(shown[:MAX_LISTED]) + rest


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{visible(escaped)}"'
