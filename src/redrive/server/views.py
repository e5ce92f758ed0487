"""Values of the model as answers tell them: instants and durations as texts, None left out.

What a Struct of the model says about itself is enough: `told` makes the answer, and `told_type` the type that the
document describes it by. So a new field of the model is in the answers without anybody doing anything.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from redrive.clock import Instant
from redrive.model.duration import format_duration
from redrive.model.failure import Failure
from redrive.model.feed import FeedEntry
from redrive.model.item import Counters
from redrive.model.operation import Operation
from redrive.model.queue import QueueSettings
from redrive.model.retry import Delay, Retry, Schedule
from redrive.server.times import DurationText, InstantText
from redrive.server.times import told as told_instant
from redrive.store import AuditEntry, FeedPage

_S = TypeVar("_S", bound=msgspec.Struct)
Tell = Callable[[Any], Any]
_DURATIONS: dict[type[msgspec.Struct], frozenset[str]] = {
    QueueSettings: frozenset(
        {
            "lease_timeout",
            "expire_timeout",
            "idempotency_timeout",
            "keep_completed",
            "keep_dead",
            "archive_after",
            "keep_archived",
        }
    ),
    Failure: frozenset({"duration"}),
}
"""Fields that are microseconds."""
_AS_TEXT: dict[type[msgspec.Struct], frozenset[str]] = {
    FeedEntry: frozenset({"number"}),
    FeedPage: frozenset({"last"}),
    AuditEntry: frozenset({"number"}),
}
"""Numbers of 63 bits, told as texts: what reads JSON elsewhere keeps 53 of them."""
_KEPT_BACK: dict[type[msgspec.Struct], frozenset[str]] = {Operation: frozenset({"mark", "position"})}
"""What is of use to stores only."""


def told(value: msgspec.Struct) -> dict[str, Any]:
    """A value of the model, as an answer tells it."""
    answer: dict[str, Any] = _teller(type(value))(value)
    return answer


@cache
def _teller(kind: type[msgspec.Struct]) -> Tell:
    if kind is Retry:
        return _retry_told
    fields = [(name, _tell_field(kind, name, type_)) for name, type_ in _fields(kind)]

    def tell(value: Any) -> dict[str, Any]:
        given = ((name, how, getattr(value, name)) for name, how in fields)
        return {name: each if how is None else how(each) for name, how, each in given if each is not None}

    return tell


def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    hidden = _KEPT_BACK.get(kind, frozenset())
    return [(name, type_) for name, type_ in get_type_hints(kind).items() if name not in hidden]


def _tell_field(kind: type[msgspec.Struct], name: str, type_: Any) -> Tell | None:
    if name in _DURATIONS.get(kind, ()):
        return format_duration
    return str if name in _AS_TEXT.get(kind, ()) else _tell(type_)


def _tell(kind: Any) -> Tell | None:
    """How a value of that type is told. None: as it is."""
    if kind is Instant:
        return told_instant
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _teller(kind)
    arguments = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        inner = [how for each in arguments if each is not type(None) and (how := _tell(each)) is not None]
        return inner[0] if inner else None
    if get_origin(kind) is tuple and (each := _tell(arguments[0])) is not None:
        return lambda values: [each(value) for value in values]
    if get_origin(kind) in (Mapping, dict):
        key, item = _tell(arguments[0]), _tell(arguments[1])
        return None if key is item is None else _table_teller(key or _same, item or _same)
    return None


def _table_teller(key: Tell, item: Tell) -> Tell:
    return lambda table: {key(name): item(value) for name, value in table.items()}


def _same(value: Any) -> Any:
    return value


def _retry_told(retry: Retry) -> dict[str, Any]:
    """As the setting is written, so that what was read can be given back."""
    tables = {
        "by_class": {key: _delay_told(rule) for key, rule in retry.by_class.items()},
        "by_type": {key: _delay_told(rule) for key, rule in retry.by_type.items()},
    }
    return {
        "attempts": retry.attempts,
        **_delay_told(retry.delay),
        **({"classes": True} if retry.use_classes else {}),
        **{name: table for name, table in tables.items() if table},
    }


def _delay_told(rule: Delay) -> dict[str, Any]:
    answer: dict[str, Any]
    match rule.schedule:
        case Schedule.FIXED:
            answer = {"cooldown": format_duration(rule.base)}
        case Schedule.LIST:
            answer = {"delays": [format_duration(delay) for delay in rule.delays]}
        case Schedule.FUNCTION:
            answer = {"function": rule.function}
        case Schedule.LINEAR | Schedule.EXPONENTIAL:
            answer = {"delay": rule.schedule, "base": format_duration(rule.base)}
        case _:
            answer = {"delay": rule.schedule}
    if rule.cap is not None:
        answer["cap"] = format_duration(rule.cap)
    if rule.jitter:
        answer["jitter"] = True
    return answer


@cache
def told_type(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """What the answer to a value of that type looks like, for the document."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, type_ in _fields(kind):
        shape = str if name in _AS_TEXT.get(kind, ()) else _shape(type_, name in _DURATIONS.get(kind, ()))
        fields.append((name, shape, None) if _is_optional(type_) else (name, shape))
    return defined(kind.__name__, fields, kind.__doc__)


def defined(name: str, fields: list[Any], doc: str | None) -> type[msgspec.Struct]:
    """A type that only the document needs."""
    return msgspec.defstruct(name, fields, kw_only=True, namespace={"__doc__": doc}, module=__name__)


def extended(kind: type[msgspec.Struct], fields: list[Any], name: str | None = None) -> type[msgspec.Struct]:
    """A type of the document with more fields, or fields of other types."""
    more = {field[0] for field in fields}
    given = [
        (each.name, each.type) if each.required else (each.name, each.type, None)
        for each in msgspec.structs.fields(kind)
        if each.name not in more
    ]
    return defined(name or kind.__name__, [*given, *fields], kind.__doc__)


def without(kind: type[msgspec.Struct], *names: str) -> type[msgspec.Struct]:
    """A type of the document without some of its fields."""
    given = [
        (each.name, each.type) if each.required else (each.name, each.type, None)
        for each in msgspec.structs.fields(kind)
        if each.name not in names
    ]
    return defined(kind.__name__, given, kind.__doc__)


def _shape(kind: Any, is_duration: bool = False) -> Any:
    if is_duration:
        return DurationText | None if _is_optional(kind) else DurationText
    if kind is Instant:
        return InstantText
    if kind is Retry:
        return dict[str, Any]
    if kind is Counters:
        return Counters  # it is told as it is
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return told_type(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    arguments = get_args(kind)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return Union[tuple(_shape(each) for each in arguments)]  # noqa: UP007  # made of parts
    if origin is tuple:
        return list[_shape(arguments[0])]  # type: ignore[misc]
    if origin in (Mapping, dict):
        return dict[_shape(arguments[0]), _shape(arguments[1])]  # type: ignore[misc]
    return getattr(kind, "__supertype__", kind)


def _is_optional(kind: Any) -> bool:
    return type(None) in get_args(kind)
