"""A queue's settings: every one with its default, checked when the queue is created and when it is updated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, Final, Literal, TypeVar, get_args, get_type_hints

import msgspec

from redrive.clock import Instant
from redrive.errors import InvalidSetting, short_repr
from redrive.model.breaker import Breaker, BreakerRule, parse_breaker_rules
from redrive.model.caller_input import checking_input, exact_str, table
from redrive.model.classify import ErrorClass, ErrorRule
from redrive.model.duration import DAY, MAX_DURATION, MINUTE, SECOND, Duration, format_duration, parse_duration
from redrive.model.failure import Failure
from redrive.model.feed import DEFAULT_FEED_KINDS, FeedKind
from redrive.model.gate import Gates
from redrive.model.limits import MAX_COUNT, MAX_PAYLOAD_BYTES, MAX_STORABLE_BYTES, check_address
from redrive.model.redact_rules import NO_RULES, RedactRules, redact_rules_from
from redrive.model.retry_policy import RetryPolicy, check_attempts_limit, parse_retry_policy
from redrive.model.text import format_counts, suggest

DEFAULT_ATTEMPTS = 5
WITH_ITEM: Final = "item"
"""The idempotency_timeout of keys that end with their items."""
_MOST_ENTRIES = 1_000
"""Of a list or a table in a setting, which may have no end."""
_DEFAULT_ROUTE = "default"
_Choice = TypeVar("_Choice", bound=StrEnum)
# What settings are called in other programs.
_FOREIGN_NAMES = {
    "dead_letter_queue": "dead_queue",
    "dlq": "dead_queue",
    "max_receive_count": "max_attempts",
    "retries": "retry",
    "retry_policy": "retry",
    "ttl": "expire_timeout",
    "visibility_timeout": "lease_timeout",
}


class OnDead(StrEnum):
    """What becomes of an item that dies where no dead queue takes it."""

    KEEP = "keep"
    """It stays, with status dead."""
    DROP = "drop"
    """It is removed, with a warning in the log and an audit row."""


class RetryAfter(StrEnum):
    """What follows where a failure says how long the other side asks to wait (`Failure.retry_after`)."""

    IGNORE = "ignore"
    """Nothing."""
    DELAY = "delay"
    """The item waits at least this long before its next try."""
    GATE = "gate"
    """The whole queue waits."""


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a queue treats its items. Durations are microseconds; `parse_settings` takes texts such as `30s`."""

    lease_timeout: Duration = MINUTE
    """How long a worker holds an item before a sweep may take it."""
    max_attempts: int | None = None
    """Deliveries an item gets; unset = the larger of 5 and retry.attempts; 0 = unlimited."""
    max_losses: int = DEFAULT_ATTEMPTS
    """Leases of an item that may run out; 0 = unlimited."""
    retry: RetryPolicy = RetryPolicy()
    """What happens after a reported failure. Without it the first one is final."""
    retry_after: RetryAfter | None = None
    """What follows where an error says how long to wait; unset = delay where retry goes by class or type of the error,
    else ignore."""
    final_errors: tuple[str, ...] = ()
    """Error types and classes that are never retried."""
    error_rules: tuple[ErrorRule, ...] = ()
    """How errors are classified in this queue, before the built-in rules."""
    dead_queue: str | dict[str, str] | None = None
    """Where dead items go: a queue, or a table from error type or class to queue, with a `default`. `name@store` is a
    queue in another store."""
    on_dead: OnDead = OnDead.KEEP
    """What becomes of an item that dies where no dead queue takes it."""
    expire_timeout: Duration | None = None
    """How long after the put an item is worth doing; unset = for ever."""
    idempotency_timeout: Duration | Literal["item"] = DAY
    """How long an idempotency key is known, from the first put; `item`: while its item exists and is not completed."""
    max_size: int | None = None
    """Most items that may be pending, failed or active; unset = no limit."""
    max_payload_size: int = MAX_PAYLOAD_BYTES
    """Largest payload in bytes."""
    keep_completed: Duration = 0
    """How long completed items are kept; 0 = removed at once."""
    keep_dead: Duration | None = None
    """How long dead letters are kept, from their death; unset = for ever."""
    archive_after: Duration | None = None
    """When dead letters are archived by themselves, from their death; unset = never."""
    keep_archived: Duration | None = None
    """How long archived items are kept, from their death or completion, else from the archiving; unset = no limit."""
    keep_dropped: Duration = 7 * DAY
    """How long dropped items can be restored, from the drop; 0 = removed immediately."""
    search: bool = True
    """Whether dead letters can be found by the words of their error and payload."""
    feed: tuple[FeedKind, ...] = DEFAULT_FEED_KINDS
    """What of all that happens is kept in the feed."""
    breakers: dict[str, BreakerRule] = {}
    """Circuit breakers: a table from `queue`, `fingerprint` or an error class to when that one opens."""
    redact: RedactRules = NO_RULES
    """What is hidden from whoever looks, and what is not, beside what looks like a secret."""

    @property
    def attempts_limit(self) -> int:
        """`max_attempts` with its default; 0 = unlimited."""
        return max(DEFAULT_ATTEMPTS, self.retry.attempts) if self.max_attempts is None else self.max_attempts

    @property
    def retry_after_mode(self) -> RetryAfter:
        """`retry_after` with its default."""
        if self.retry_after is not None:
            return self.retry_after
        return RetryAfter.DELAY if self.retry.depends_on_error else RetryAfter.IGNORE

    def dead_queues(self) -> Iterator[str]:
        """Every queue that dead items of this one may go to."""
        if isinstance(self.dead_queue, str):
            yield self.dead_queue
        elif self.dead_queue:
            yield from dict.fromkeys(self.dead_queue.values())

    def dead_queue_for(self, failure: Failure | None) -> str | None:
        """Where an item goes that dies of this failure: by type first, then by class, then the default."""
        if not isinstance(self.dead_queue, dict):
            return self.dead_queue
        keys = (*failure.type_names, failure.error_class) if failure else ()
        return next(
            (self.dead_queue[key] for key in keys if key in self.dead_queue), self.dead_queue.get(_DEFAULT_ROUTE)
        )


_DURATIONS = frozenset(
    name
    for name, kind in get_type_hints(QueueSettings, include_extras=True).items()
    if Duration in (kind, *get_args(kind))
)


class Queue(msgspec.Struct, frozen=True):
    """A queue as it is now."""

    name: str
    settings: QueueSettings
    version: int
    """Grows with each update of the settings or breakers; never used again, not even by another queue of that name."""
    paused: bool
    created_at: Instant
    is_dead_queue: bool
    """It is, or once was, the dead queue of another."""
    source_queues: tuple[str, ...] = ()
    """Queues of other stores that name it as their dead queue, as `name@store`."""
    gates: Gates = ()
    """Until when it gives no leases, and how many after that. Independent of `paused`."""
    breakers: tuple[Breaker, ...] = ()
    """Its circuit breakers that are not closed."""


class QueueStats(msgspec.Struct, frozen=True):
    """How many items of a queue are in each status, and how it is doing."""

    queue: str
    pending: int
    failed: int
    active: int
    completed: int
    dead: int
    archived: int
    dead_letters: int
    """Dead items, and items in this queue that died in another."""
    oldest_ready_at: Instant | None
    """Since when the longest-waiting ready item is ready."""
    put_total: int
    completed_total: int
    failed_total: int
    dead_total: int
    at: Instant
    """When this was read. The totals of two readings give rates."""
    moving: int = 0
    """On their way to a queue in another store. Those that died are dead letters of this one until they are there."""
    redriven_total: int = 0
    """Retries and redrives by an operator, each in the queue in which the item then was. An undo subtracts nothing."""
    archived_total: int = 0
    """Times that an item was archived, by an operator or by `archive_after`."""
    exhausted_total: int = 0
    """Deaths with the reason retries_exhausted or max_attempts: a part of dead_total."""
    captured_total: int = 0
    """Failures that were put (`put_failed`), as a new item or under a known key: a part of failed_total."""

    def __str__(self) -> str:
        names = ["pending", "failed", "active", "dead_letters", *(["moving"] if self.moving else []), "archived"]
        counts = {name: getattr(self, name) for name in names}
        age = format_duration(self.oldest_age // SECOND * SECOND)
        waits = "" if self.oldest_ready_at is None else f"; the oldest has waited for {age}"
        return f"{self.queue}: {format_counts(counts)}{waits}"

    @property
    def oldest_age(self) -> Duration:
        """How long the oldest ready item has waited, in microseconds; 0 when nothing is ready."""
        return 0 if self.oldest_ready_at is None else max(0, self.at - self.oldest_ready_at)


def parse_settings(values: Mapping[str, Any], base: QueueSettings | None = None) -> QueueSettings:
    """Settings from what a person wrote, on top of those in `base`. Every value is checked."""
    unknown = sorted(set(values) - set(QueueSettings.__struct_fields__))
    if unknown:
        known = QueueSettings.__struct_fields__
        meant = suggest(unknown[0], known, _FOREIGN_NAMES)
        raise InvalidSetting(unknown[0], f"is not a setting of a queue{meant}; there are {', '.join(known)}")
    changes = {name: _read(name, value) for name, value in values.items()}
    settings = msgspec.structs.replace(base or QueueSettings(), **changes)
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
    """The settings themselves, if `parse_settings` could have made them; for those that were sent as they are kept."""
    values = {name: _as_written(name, getattr(settings, name)) for name in settings.__struct_fields__}
    return parse_settings(values)


def _as_written(name: str, value: Any) -> Any:
    """Numbers that are durations are microseconds here, and seconds where people write them."""
    if name not in _DURATIONS or value is None or value == WITH_ITEM:
        return value
    if not 0 <= value <= MAX_DURATION:
        raise InvalidSetting(name, "must be from 0 microseconds to 100 years")
    return timedelta(microseconds=value)


def _read(name: str, value: Any) -> Any:
    with checking_input(name):
        return _checked(name, table(name, value, _MOST_ENTRIES) if isinstance(value, Mapping) else value)


def _checked(name: str, value: Any) -> Any:
    match name:
        case "lease_timeout":
            return _positive_duration(name, value)
        case "idempotency_timeout":
            with_item = isinstance(value, str) and exact_str(value) == WITH_ITEM
            return WITH_ITEM if with_item else _positive_duration(name, value)
        case "expire_timeout":
            return None if value is None else _positive_duration(name, value)
        case "keep_completed" | "keep_dropped":
            return parse_duration(value, name)
        case "keep_dead" | "archive_after" | "keep_archived":
            return None if value is None else parse_duration(value, name)
        case "max_losses":
            return _count(name, value, 0)
        case "max_attempts":
            return None if value is None else _count(name, value, 0)
        case "max_size":
            return None if value is None else _count(name, value, 1)
        case "max_payload_size":
            return _count(name, value, 1, MAX_STORABLE_BYTES)
        case "retry":
            return parse_retry_policy(value)
        case "final_errors":
            return _names(name, value)
        case "error_rules":
            return _error_rules(name, value)
        case "on_dead":
            return _choice(name, OnDead, value)
        case "retry_after":
            return None if value is None else _choice(name, RetryAfter, value)
        case "search":
            return _switch(name, value)
        case "feed":
            return _feed(name, value)
        case "redact":
            return NO_RULES if value is None else redact_rules_from(value)
        case "breakers":
            return {} if value is None else parse_breaker_rules(name, value)
        case "dead_queue":
            return _dead_queue(value)
        case _:
            raise AssertionError(name)


def _positive_duration(name: str, value: Any) -> int:
    duration = parse_duration(value, name)
    if duration == 0:
        raise InvalidSetting(name, "must be longer than 0")
    return duration


def _count(name: str, value: Any, smallest: int, largest: int = MAX_COUNT) -> int:
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
    """Kinds in the order of their definition, so that the same settings are equal however they were written."""
    if type(value) is str and value in ("all", "none"):
        return tuple(FeedKind) if value == "all" else ()
    kinds = f"'all', 'none', or a list of {', '.join(FeedKind)}"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidSetting(name, f"must be {kinds}, not {short_repr(value, 40)}")
    try:
        chosen = {FeedKind(kind) for kind in islice(value, _MOST_ENTRIES)}
    except ValueError as error:
        raise InvalidSetting(name, f"has something that does not exist ({error}); it must be {kinds}") from None
    return tuple(kind for kind in FeedKind if kind in chosen)


def _dead_queue(value: Any) -> str | dict[str, str] | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        if not value:
            raise InvalidSetting("dead_queue", "is an empty table; name a queue under 'default', or leave it out")
        return {_route(key): check_address("dead_queue", name) for key, name in value.items()}
    return check_address("dead_queue", value)


def _route(key: Any) -> str:
    if not isinstance(key, str) or not key:
        kinds = f"error types, classes ({', '.join(ErrorClass)}) or 'default'"
        raise InvalidSetting("dead_queue", f"has the key {short_repr(key, 40)}; keys are {kinds}")
    return exact_str(key)
