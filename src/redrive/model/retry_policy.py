"""Retry policies: the number of attempts of a failing item, and the back-off before the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeAlias, assert_never

import msgspec

from redrive.errors import InvalidDuration, InvalidName, InvalidSetting
from redrive.model.caller_input import exact_str, is_of_a_signal, set_member, table
from redrive.model.classify import ErrorClass
from redrive.model.duration import DAY, HOUR, MAX_DURATION, MINUTE, SECOND, format_duration, parse_duration
from redrive.model.failure import Failure
from redrive.model.limits import check_name
from redrive.model.text import suggest

MAX_RETRY_ATTEMPTS = 1_000_000
MAX_LISTED_DELAYS = 1_000
_MOST_RULES = 1_000
"""The maximum number of entries of a table that is no dict, and may be infinite."""

# From the number of failures so far, 1 at the first, to seconds.
DelayFunction: TypeAlias = Callable[[int], float | timedelta]


class BackoffKind(StrEnum):
    """The growth of the delay with n, the number of failures so far."""

    NEVER = "never"  # no further attempt
    IMMEDIATE = "immediate"  # no delay
    FIXED = "fixed"  # base
    LINEAR = "linear"  # base × n
    EXPONENTIAL = "exponential"  # base × 2^(n−1)
    LIST = "list"  # the n-th of delays; after its end, the last one
    FUNCTION = "function"  # the result of the function passed to connect() under this name


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One rule for the delay before the next attempt. Durations are microseconds.

    `jitter` takes a random share of the delay (full jitter), so that items that fail together are retried apart.
    """

    schedule: BackoffKind = BackoffKind.IMMEDIATE
    base: int = SECOND
    cap: int | None = None
    delays: tuple[int, ...] = ()
    function: str | None = None
    jitter: bool = False

    def __post_init__(self) -> None:
        for setting, delays in (("base", [self.base]), ("cap", [self.cap or 0]), ("delays", self.delays)):
            if any(not 0 <= delay <= MAX_DURATION for delay in delays):
                raise InvalidSetting(f"delay.{setting}", "must be from 0 microseconds to 100 years")
        set_member(self, "schedule", BackoffKind, "delay.schedule")
        if (self.schedule is BackoffKind.LIST) != bool(self.delays):
            raise InvalidSetting("delay.delays", "must be given with schedule 'list', and only then")
        if (self.schedule is BackoffKind.FUNCTION) != (self.function is not None):
            raise InvalidSetting("delay.function", "must be given with schedule 'function', and only then")


NEVER = Backoff(BackoffKind.NEVER)
IMMEDIATE = Backoff(BackoffKind.IMMEDIATE)

MAX_FUNCTION_DELAY = 365 * DAY
# The rule if a function is unknown, raises or returns an invalid value: the item must be retried nevertheless.
FALLBACK_BACKOFF = Backoff(BackoffKind.EXPONENTIAL, base=SECOND, cap=HOUR)

# The rules of `use_classes` for classes without a rule in `by_class`. Other classes are never retried.
BACKOFF_BY_CLASS: Mapping[ErrorClass, Backoff] = {
    ErrorClass.TRANSIENT: FALLBACK_BACKOFF,
    ErrorClass.NETWORK: FALLBACK_BACKOFF,
    ErrorClass.RESOURCE: Backoff(BackoffKind.LINEAR, base=MINUTE, cap=HOUR),
}


class RetryPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The retry setting of a queue or an item.

    `attempts` is the number of attempts of a failing item; with 0 or 1 its first failure is final. In order of
    precedence: `by_type`, `by_class`, the defaults of the classes (`use_classes`), `delay`.
    """

    attempts: int = 0
    delay: Backoff = IMMEDIATE
    use_classes: bool = False
    by_class: dict[ErrorClass, Backoff] = {}
    by_type: dict[str, Backoff] = {}

    def __post_init__(self) -> None:
        _check_attempts(self.attempts, "retry.attempts")

    @property
    def depends_on_error(self) -> bool:
        """True if retries depend on the class or type of an error."""
        return self.use_classes or bool(self.by_class or self.by_type)


RetryInput: TypeAlias = RetryPolicy | Mapping[str, Any]
"""A policy, or a table that `parse_retry_policy` accepts."""


def check_attempts_limit(max_attempts: int | None, retry: RetryPolicy) -> None:
    """Raise InvalidSetting if an item would die before its retries are used up. None and 0 are no limit."""
    if max_attempts and max_attempts < retry.attempts:
        raise InvalidSetting(
            "max_attempts",
            f"{max_attempts} is lower than retry.attempts {retry.attempts}: an item would die before its retries are "
            f"used up; raise max_attempts or lower retry.attempts",
        )


def check_retry_policy(retry: RetryPolicy) -> RetryPolicy:
    """Return a policy that a program created or that was sent, if `parse_retry_policy` can produce it.

    Raise InvalidSetting for a list that is too long, or an invalid name.
    """
    for rule in (retry.delay, *retry.by_class.values(), *retry.by_type.values()):
        _check_rule(rule)
    return retry


def _check_rule(rule: Backoff) -> None:
    if len(rule.delays) > MAX_LISTED_DELAYS:
        raise InvalidSetting("delay.delays", f"must be a list of 1 to {MAX_LISTED_DELAYS:,} durations")
    if rule.function is not None:
        try:
            check_name("function", rule.function)
        except InvalidName as error:
            raise InvalidSetting("delay.function", error.problem) from None


def backoff_for(retry: RetryPolicy, failure: Failure | None) -> Backoff:
    """Return the rule for a failure; among those by type, the one for the nearest base."""
    if failure is None:
        return retry.delay
    if retry.by_type:
        for name in failure.type_names:
            if name in retry.by_type:
                return retry.by_type[name]
    if failure.error_class in retry.by_class:
        return retry.by_class[failure.error_class]
    return BACKOFF_BY_CLASS.get(failure.error_class, NEVER) if retry.use_classes else retry.delay


def retry_delay(
    rule: Backoff, n: int, jitter: float = 1.0, functions: Mapping[str, DelayFunction] | None = None
) -> int | None:
    """Return the microseconds to wait after the n-th failure (from 1) before the next attempt; None means never.

    `jitter` is a random number in [0, 1), used only if the rule has jitter.
    """
    delay = _raw_delay(rule, max(n, 1), functions or {})
    if delay is None:
        return None
    delay = min(delay, MAX_DURATION if rule.cap is None else rule.cap)
    return int(delay * jitter) if rule.jitter else delay


def _raw_delay(rule: Backoff, n: int, functions: Mapping[str, DelayFunction]) -> int | None:
    match rule.schedule:
        case BackoffKind.NEVER:
            return None
        case BackoffKind.IMMEDIATE:
            return 0
        case BackoffKind.FIXED:
            return rule.base
        case BackoffKind.LINEAR:
            return rule.base * n
        case BackoffKind.EXPONENTIAL:
            # Any base of one microsecond or more exceeds 100 years before the 64th doubling.
            return rule.base << min(n - 1, 64)
        case BackoffKind.LIST:
            return rule.delays[min(n, len(rule.delays)) - 1]
        case BackoffKind.FUNCTION:
            delay = _ask(functions.get(rule.function or ""), n)
            return retry_delay(FALLBACK_BACKOFF, n) if delay is None else delay
        case _:
            assert_never(rule.schedule)


def _ask(function: DelayFunction | None, n: int) -> int | None:
    """Return the microseconds that the function returns; None if it fails or returns no valid number."""
    if function is None:
        return None
    try:
        answer = function(n)
        if isinstance(answer, timedelta):
            answer = answer.total_seconds()
        # `not >=` also catches NaN, for which all comparisons are false.
        if isinstance(answer, bool) or not answer >= 0:
            return None
        return int(min(answer, MAX_FUNCTION_DELAY // SECOND) * SECOND)
    except BaseException as error:  # also SystemExit: a broken function must not end the program
        if isinstance(error, KeyboardInterrupt) or is_of_a_signal(error):
            raise
        return None


def parse_retry_policy(value: object) -> RetryPolicy:
    """Parse the retry setting as users write it: None, a RetryPolicy, or a mapping with durations as text.

    `{"attempts": 3, "cooldown": "30s"}`, `{"attempts": 5, "delay": "exponential", "base": "1s", "cap": "1h", "jitter":
    True}`, `{"attempts": 4, "delays": ["1s", "1m"]}`, `{"attempts": 5, "function": "name"}`; optionally with `classes`,
    `by_class` and `by_type`.
    """
    if value is None:
        return RetryPolicy()
    if isinstance(value, RetryPolicy):
        return check_retry_policy(value)
    settings = _mapping(value, "retry", RETRY_KEYS)
    retry = RetryPolicy(
        attempts=_check_attempts(settings.get("attempts", 0), "retry.attempts"),
        delay=_delay_from({key: settings[key] for key in _DELAY_KEYS if key in settings}, "retry"),
        use_classes=_flag(settings, "classes", "retry"),
        by_class={
            _error_class(key, "retry.by_class"): _rule_from(rule, f"retry.by_class.{key}")
            for key, rule in _mapping(settings.get("by_class") or {}, "retry.by_class").items()
        },
        by_type={
            exact_str(key): _rule_from(rule, f"retry.by_type.{key}")
            for key, rule in _mapping(settings.get("by_type") or {}, "retry.by_type").items()
        },
    )
    if settings and "attempts" not in settings:
        raise InvalidSetting("retry.attempts", "is missing: say how many tries a failing item gets")
    return retry


def format_retry_policy(retry: RetryPolicy) -> dict[str, Any]:
    """Return the setting as users write it, in the form that `parse_retry_policy` accepts."""
    tables = {
        "by_class": {key: _written_delay(rule) for key, rule in retry.by_class.items()},
        "by_type": {key: _written_delay(rule) for key, rule in retry.by_type.items()},
    }
    return {
        "attempts": retry.attempts,
        **_written_delay(retry.delay),
        **({"classes": True} if retry.use_classes else {}),
        **{name: table for name, table in tables.items() if table},
    }


def _written_delay(rule: Backoff) -> dict[str, Any]:
    written: dict[str, Any]
    match rule.schedule:
        case BackoffKind.FIXED:
            written = {"cooldown": format_duration(rule.base)}
        case BackoffKind.LIST:
            written = {"delays": [format_duration(delay) for delay in rule.delays]}
        case BackoffKind.FUNCTION:
            written = {"function": rule.function}
        case BackoffKind.LINEAR | BackoffKind.EXPONENTIAL:
            written = {"delay": rule.schedule, "base": format_duration(rule.base)}
        case _:
            written = {"delay": rule.schedule}
    if rule.cap is not None:
        written["cap"] = format_duration(rule.cap)
    if rule.jitter:
        written["jitter"] = True
    return written


_DELAY_KEYS = ("delay", "cooldown", "base", "cap", "delays", "function", "jitter")
RETRY_KEYS = ("attempts", *_DELAY_KEYS, "classes", "by_class", "by_type")
# The names of these settings in other programs.
_FOREIGN_NAMES = {
    "max_attempts": "attempts",
    "max_retries": "attempts",
    "retries": "attempts",
    "times": "attempts",
    "tries": "attempts",
    "backoff": "delay",
    "schedule": "delay",
    "strategy": "delay",
    "countdown": "cooldown",
    "interval": "cooldown",
    "wait": "cooldown",
    "initial": "base",
    "max_backoff": "cap",
    "max_delay": "cap",
    "max_interval": "cap",
}
_NAMED_SCHEDULES = tuple(s.value for s in BackoffKind if s not in (BackoffKind.LIST, BackoffKind.FUNCTION))


def _rule_from(value: object, what: str) -> Backoff:
    """Return a rule inside by_class or by_type, from a mapping, the name of a schedule, or one duration."""
    if isinstance(value, Backoff):
        return value
    if isinstance(value, Mapping):
        return _delay_from(_mapping(value, what, _DELAY_KEYS), what)
    if isinstance(value, str) and value in _NAMED_SCHEDULES:
        return _delay_from({"delay": value}, what)
    return Backoff(BackoffKind.FIXED, base=_duration(value, what))


def _delay_from(settings: Mapping[str, Any], what: str) -> Backoff:
    given = [key for key in ("delay", "cooldown", "delays", "function") if settings.get(key) is not None]
    if len(given) > 1:
        raise InvalidSetting(f"{what}.{given[1]}", f"cannot be given together with {what}.{given[0]}")
    cap = None if settings.get("cap") is None else _duration(settings["cap"], f"{what}.cap")
    jitter = _flag(settings, "jitter", what)
    how = given[0] if given else "delay"
    if how != "delay" and settings.get("base") is not None:
        raise InvalidSetting(f"{what}.base", f"cannot be given together with {what}.{how}")
    if how == "cooldown":
        return Backoff(
            BackoffKind.FIXED, base=_duration(settings["cooldown"], f"{what}.cooldown"), cap=cap, jitter=jitter
        )
    if how == "delays":
        return Backoff(
            BackoffKind.LIST, delays=_durations(settings["delays"], f"{what}.delays"), cap=cap, jitter=jitter
        )
    if how == "function":
        if callable(settings["function"]):
            problem = "must be a name, since queues store no code: give the function to connect(backoffs={name: …})"
            raise InvalidSetting(f"{what}.function", problem)
        try:
            function = check_name("function", settings["function"])
        except InvalidName as error:
            raise InvalidSetting(f"{what}.function", error.problem) from None
        return Backoff(BackoffKind.FUNCTION, function=function, cap=cap, jitter=jitter)
    return _growing(settings, cap, jitter, what)


def _growing(settings: Mapping[str, Any], cap: int | None, jitter: bool, what: str) -> Backoff:
    base = None if settings.get("base") is None else _duration(settings["base"], f"{what}.base")
    name = settings.get("delay")
    if name is None:
        schedule = BackoffKind.IMMEDIATE if base is None else BackoffKind.FIXED
    elif name in _NAMED_SCHEDULES:
        schedule = BackoffKind(name)
    else:
        raise InvalidSetting(f"{what}.delay", f"must be one of {', '.join(_NAMED_SCHEDULES)}{_meant_by_delay(name)}")
    if base is None and schedule in (BackoffKind.FIXED, BackoffKind.LINEAR):
        raise InvalidSetting(f"{what}.base", f"must be given with delay '{schedule}'")
    return Backoff(schedule, base=SECOND if base is None else base, cap=cap, jitter=jitter)


def _meant_by_delay(value: Any) -> str:
    """Return a hint to the key that a value under `delay` belongs to; empty if there is none."""
    if isinstance(value, list | tuple):
        return "; a list of delays goes under delays"
    if callable(value):
        return "; a function is given to connect(backoffs={name: …}), and its name goes under function"
    try:
        parse_duration(value)
    except InvalidDuration:
        return ""
    return "; one delay for every try goes under cooldown, the first of growing ones under base"


def _mapping(value: object, what: str, known: tuple[str, ...] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidSetting(what, f"must be a table, not {type(value).__name__}")
    given = table(what, value, _MOST_RULES)
    for key in given:
        if not isinstance(key, str) or (known is not None and key not in known):
            choice = f"; known are {', '.join(known)}" if known else ""
            raise InvalidSetting(
                f"{what}.{key}", f"is not a setting{suggest(key, known or (), _FOREIGN_NAMES)}{choice}"
            )
    return given


def _check_attempts(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_RETRY_ATTEMPTS:
        raise InvalidSetting(what, f"must be a whole number from 0 to {MAX_RETRY_ATTEMPTS:,}")
    return value


def _flag(settings: Mapping[str, Any], key: str, what: str) -> bool:
    value = settings.get(key, False)
    if not isinstance(value, bool):
        raise InvalidSetting(f"{what}.{key}", "must be true or false")
    return value


def _error_class(value: str, what: str) -> ErrorClass:
    try:
        return ErrorClass(value)
    except ValueError:
        raise InvalidSetting(f"{what}.{value}", f"is not an error class; those are {', '.join(ErrorClass)}") from None


def _durations(value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_LISTED_DELAYS:
        raise InvalidSetting(what, f"must be a list of 1 to {MAX_LISTED_DELAYS:,} durations")
    return tuple(_duration(item, f"{what}[{index}]") for index, item in enumerate(value))


def _duration(value: Any, what: str) -> int:
    try:
        return parse_duration(value, what)
    except InvalidDuration as error:
        raise InvalidSetting(what, str(error).removeprefix(what).lstrip()) from None
