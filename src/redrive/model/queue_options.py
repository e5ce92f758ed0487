"""The settings of a queue in the form that users write, each declared once, with their parsers and checks."""

# No `from __future__ import annotations`: `declaration` reads types, not texts.
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from redrive.errors import InvalidSetting, short_repr
from redrive.model.breaker import BreakerRule, parse_breaker_rules
from redrive.model.caller_input import checking_input, exact_str, table
from redrive.model.classify import ErrorClass, ErrorRule
from redrive.model.declaration import options_of
from redrive.model.duration import MAX_DURATION, DurationInput, parse_duration
from redrive.model.feed import FeedKind
from redrive.model.limits import MAX_COUNT, MAX_STORABLE_BYTES, check_address
from redrive.model.options import Count, PositiveDuration
from redrive.model.queue import WITH_ITEM, OnDead, QueueSettings, RetryAfter
from redrive.model.redact_rules import RedactRules, redact_rules_from
from redrive.model.retry_policy import RetryInput, check_attempts_limit, parse_retry_policy
from redrive.model.text import suggest


class QueueOptions(TypedDict, total=False):
    """The settings of a queue. Defaults are those of `QueueSettings`; None resets a setting that may be unset."""

    lease_timeout: PositiveDuration
    """The visibility timeout: the time that a worker holds a leased item before the lease expires."""
    max_attempts: Count | None
    """The maximum number of deliveries of an item; unset: the larger of 5 and `retry.attempts`; 0: unlimited; not lower
    than `retry.attempts`."""
    max_losses: Count
    """The maximum number of expired leases of an item; 0: unlimited."""
    retry: RetryInput | None
    """The retry policy after a reported failure; none: the first failure is final."""
    retry_after: RetryAfter | str | None
    """The reaction to an error that says how long to wait: ignore it, delay the item, or gate the queue; unset: delay
    if `retry` has `classes`, `by_class` or `by_type`, else ignore."""
    final_errors: Collection[str]
    """Error types and classes that are never retried."""
    error_rules: Sequence[ErrorRule | Mapping[str, Any]]
    """Rules that classify errors in this queue, before the built-in rules."""
    dead_queue: str | Mapping[str, str] | None
    """The queue that dead items move to, or a table from error type or class to queue, with a `default`; `name@store`
    is a queue in another store; unset: they stay."""
    on_dead: OnDead | str
    """The action for an item that dies and has no dead queue."""
    expire_timeout: PositiveDuration | None
    """The time from the put until an item expires; unset: no limit."""
    idempotency_timeout: PositiveDuration
    """The lifetime of an idempotency key, from the first put; `item`: while its item exists and is not completed."""
    max_size: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None
    """The maximum number of items that are pending, failed or active; unset: no limit."""
    max_payload_size: Annotated[int, Meta(ge=1, le=MAX_STORABLE_BYTES)]
    """The maximum size of a payload, and of a result, in bytes."""
    keep_completed: DurationInput
    """The time that completed items are kept, with their results; 0: they are removed immediately."""
    keep_dead: DurationInput | None
    """The time that dead letters are kept in this queue, from their death; unset: no limit."""
    archive_after: DurationInput | None
    """The time after their death at which dead letters are archived automatically; unset: never."""
    keep_archived: DurationInput | None
    """The time that archived items are kept, from their death or completion, else from archiving; unset: no limit."""
    keep_dropped: DurationInput
    """The time that dropped items can be restored, from the drop; 0: a drop removes them immediately."""
    search: bool
    """True if dead letters are indexed by the words of their error and payload."""
    feed: str | Iterable[str]
    """The events that are kept in the feed: `all`, `none`, or a list of kinds."""
    breakers: Mapping[str, BreakerRule | Mapping[str, Any]] | None
    """Circuit breakers: a table from `queue`, `fingerprint` or an error class to a rule. After too many failures of a
    kind, the items that would fail in the same way wait."""
    redact: RedactRules | Mapping[str, Any] | None
    """Rules for what to hide or to show in output, in addition to detected secrets."""


SETTINGS = options_of(QueueOptions)
DEFAULTS = QueueSettings()
_DURATIONS = frozenset(name for name, option in SETTINGS.items() if option.type == DurationInput)
_MOST_ENTRIES = 1_000
"""The maximum number of entries that are read of a list or table in a setting, because it may be infinite."""
_Choice = TypeVar("_Choice", bound=StrEnum)
# The names of settings in other programs.
_FOREIGN_NAMES = {
    "dead_letter_queue": "dead_queue",
    "dlq": "dead_queue",
    "max_receive_count": "max_attempts",
    "retries": "retry",
    "retry_policy": "retry",
    "ttl": "expire_timeout",
    "visibility_timeout": "lease_timeout",
}


def parse_settings(values: Mapping[str, Any], base: QueueSettings | None = None) -> QueueSettings:
    """Parse and check settings as users write them, and return them on top of those in `base`."""
    unknown = sorted(values.keys() - SETTINGS.keys())
    if unknown:
        meant = suggest(unknown[0], SETTINGS, _FOREIGN_NAMES)
        raise InvalidSetting(unknown[0], f"is not a setting of a queue{meant}; there are {', '.join(SETTINGS)}")
    changes = {name: _read(name, value) for name, value in values.items()}
    settings = msgspec.structs.replace(base or DEFAULTS, **changes)
    for name in changes:
        try:
            msgspec.json.encode(getattr(settings, name))
        except UnicodeEncodeError:
            raise InvalidSetting(name, "has a lone surrogate, which UTF-8 cannot hold") from None
    check_attempts_limit(settings.max_attempts, settings.retry)
    if settings.breakers and not {FeedKind.FAILED, FeedKind.DEAD} <= set(settings.feed):
        raise InvalidSetting("breakers", "count the failures in the feed: let 'feed' keep failed and dead")
    return settings


def validate_settings(settings: QueueSettings) -> QueueSettings:
    """Return the settings if `parse_settings` can produce them; for settings that arrive in stored form."""
    values = {name: _as_written(name, getattr(settings, name)) for name in settings.__struct_fields__}
    return parse_settings(values)


def _as_written(name: str, value: Any) -> Any:
    """Convert a stored value to the form that users write: a duration from microseconds to a timedelta."""
    if name not in _DURATIONS or value is None or value == WITH_ITEM:
        return value
    if not 0 <= value <= MAX_DURATION:
        raise InvalidSetting(name, "must be from 0 microseconds to 100 years")
    return timedelta(microseconds=value)


def _read(name: str, value: Any) -> Any:
    with checking_input(name):
        return _checked(name, table(name, value, _MOST_ENTRIES) if isinstance(value, Mapping) else value)


def _checked(name: str, value: Any) -> Any:
    option = SETTINGS[name]
    if value is None and option.is_optional:
        return getattr(DEFAULTS, name)
    if name in _PARSERS:
        return _PARSERS[name](name, value)
    if option.type == DurationInput:
        return parse_duration(value, name) if option.bounds.gt is None else _positive_duration(name, value)
    if option.type is bool:
        return _switch(name, value)
    if option.choices is not None:
        return _choice(name, option.choices, value)
    return _count(name, value, option.bounds.ge, option.bounds.le)


def _positive_duration(name: str, value: Any) -> int:
    duration = parse_duration(value, name)
    if duration == 0:
        raise InvalidSetting(name, "must be longer than 0")
    return duration


def _idempotency_timeout(name: str, value: Any) -> int | str:
    with_item = isinstance(value, str) and exact_str(value) == WITH_ITEM
    return WITH_ITEM if with_item else _positive_duration(name, value)


def _count(name: str, value: Any, smallest: Any, largest: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise InvalidSetting(
            name, f"must be a whole number from {smallest} to {largest:,}, not {short_repr(value, 40)}"
        )
    return int.__index__(value)


def _names(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(n, str) and n for n in value):
        raise InvalidSetting(name, "must be a list of error types (such as 'myapp.BadRequest') and classes")
    return tuple(map(exact_str, value))


def _error_rules(name: str, value: Any) -> tuple[ErrorRule, ...]:
    try:
        rules = msgspec.convert(value, tuple[ErrorRule, ...])
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InvalidSetting(name, f"cannot be used: {error}") from None
    for index, rule in enumerate(rules):
        if not rule.has_condition:
            raise InvalidSetting(
                f"{name}[{index}]", "has no condition and would never apply; give type, status_codes or contains"
            )
    return rules


def _choice(name: str, choices: type[_Choice], value: Any) -> _Choice:
    try:
        return choices(value)
    except ValueError:
        *others, last = choices
        known = f"{', '.join(others)} or {last}"
        raise InvalidSetting(name, f"must be {known}, not {short_repr(value, 40)}") from None


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidSetting(name, f"must be true or false, not {short_repr(value, 40)}")
    return value


def _feed(name: str, value: Any) -> tuple[FeedKind, ...]:
    """Return the kinds in the order of their definition, so that equal settings compare equal in any written order."""
    if type(value) is str and value in ("all", "none"):
        return tuple(FeedKind) if value == "all" else ()
    kinds = f"'all', 'none', or a list of {', '.join(FeedKind)}"
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidSetting(name, f"must be {kinds}, not {short_repr(value, 40)}")
    try:
        chosen = {FeedKind(kind) for kind in islice(value, _MOST_ENTRIES)}
    except ValueError as error:
        raise InvalidSetting(name, f"has something that does not exist ({error}); it must be {kinds}") from None
    return tuple(kind for kind in FeedKind if kind in chosen)


def _dead_queue(name: str, value: Any) -> str | dict[str, str]:
    if isinstance(value, Mapping):
        if not value:
            raise InvalidSetting(name, "is an empty table; name a queue under 'default', or leave it out")
        return {_route(key): check_address(name, queue) for key, queue in value.items()}
    return check_address(name, value)


def _route(key: Any) -> str:
    if not isinstance(key, str) or not key:
        kinds = f"error types, classes ({', '.join(ErrorClass)}) or 'default'"
        raise InvalidSetting("dead_queue", f"has the key {short_repr(key, 40)}; keys are {kinds}")
    return exact_str(key)


_PARSERS: Mapping[str, Callable[[str, Any], Any]] = {
    "retry": lambda _, value: parse_retry_policy(value),
    "final_errors": _names,
    "error_rules": _error_rules,
    "dead_queue": _dead_queue,
    "idempotency_timeout": _idempotency_timeout,
    "feed": _feed,
    "breakers": parse_breaker_rules,
    "redact": lambda _, value: redact_rules_from(value),
}
"""Parsers of the settings that need more checks than a type and bounds."""
