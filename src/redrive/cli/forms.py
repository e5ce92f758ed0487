"""Values as JSON that programs read: complete, in stable words. Instants are RFC 3339, durations as in `1m30s`.

The words are the fields of the values themselves (docs/guides/command-line.md#for-programs).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.model.duration import format_duration
from redrive.model.group import Group
from redrive.model.item import Item, Result
from redrive.model.payload import is_json
from redrive.model.queue import QueueSettings
from redrive.model.retry import Delay, Retry, Schedule

_INSTANTS = frozenset({"at", "since", "until", "moving_since"})
_DURATIONS = frozenset(
    {"lease_timeout", "expire_timeout", "idempotency_timeout", "keep_completed", "keep_dead", "archive_after",
     "keep_archived", "duration"}
)  # fmt: skip


def instant(at: Instant) -> str:
    """As in `2026-07-01T03:12:55.000123Z`."""
    seconds, rest = divmod(at, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:06}Z"


def form(value: Any) -> Any:
    """A value of the broker as JSON has it."""
    match value:
        case QueueSettings():
            return settings_form(value)
        case Item() | Result():
            return {**_payload(value), **_fields(value, leave="payload")}
        case Group():
            hours = {instant(at): count for at, count in value.hours.items()}
            return {**_fields(value, leave="hours"), "hours": hours, "advice": value.advice}
        case msgspec.Struct():
            return _fields(value)
        case Enum():
            return value.value
        case Mapping():
            return {str(key): form(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [form(each) for each in value]
        case bytes():
            return b64encode(value).decode()
        case _:
            return value


def _fields(value: msgspec.Struct, leave: str | None = None) -> dict[str, Any]:
    return {name: _named(name, getattr(value, name)) for name in value.__struct_fields__ if name != leave}


def _named(name: str, value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if name in _INSTANTS or name.endswith(("_at", "_deadline")):
            return instant(Instant(value))
        if name in _DURATIONS:
            return format_duration(value)
    return form(value)


def _payload(value: Item | Result) -> dict[str, Any]:
    """Under `payload` where it is JSON, else `payload_text`, else `payload_base64`."""
    data = bytes(value.payload)
    if is_json(value.content_type):
        try:
            return {"payload": msgspec.json.decode(data)}
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
    try:
        return {"payload_text": data.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": b64encode(data).decode()}


def settings_form(settings: QueueSettings, *, changed_only: bool = False) -> dict[str, Any]:
    """Settings as they are written for `create_queue`; those that are not the default only, if asked for."""
    usual = QueueSettings()
    return {
        name: _setting(name, getattr(settings, name))
        for name in settings.__struct_fields__
        if not changed_only or getattr(settings, name) != getattr(usual, name)
    }


def _setting(name: str, value: Any) -> Any:
    if isinstance(value, Retry):
        return _retry(value) if value != Retry() else None
    if name == "error_rules":
        return msgspec.to_builtins(value)
    return _named(name, value)


def _retry(retry: Retry) -> dict[str, Any]:
    written: dict[str, Any] = {"attempts": retry.attempts, **_delay(retry.delay)}
    if retry.use_classes:
        written["classes"] = True
    if retry.by_class:
        written["by_class"] = {key.value: _delay(rule) for key, rule in retry.by_class.items()}
    if retry.by_type:
        written["by_type"] = {key: _delay(rule) for key, rule in retry.by_type.items()}
    return written


def _delay(rule: Delay) -> dict[str, Any]:
    written: dict[str, Any]
    match rule.schedule:
        case Schedule.LIST:
            written = {"delays": [format_duration(each) for each in rule.delays]}
        case Schedule.FUNCTION:
            written = {"function": rule.function}
        case Schedule.NEVER | Schedule.IMMEDIATE:
            written = {"delay": rule.schedule.value}
        case _:
            written = {"delay": rule.schedule.value, "base": format_duration(rule.base)}
    if rule.cap is not None:
        written["cap"] = format_duration(rule.cap)
    if rule.jitter:
        written["jitter"] = True
    return written
