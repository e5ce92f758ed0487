"""Retry: the delay before the next try, and the setting as people write it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import InvalidSetting
from redrive.model.classify import ErrorClass
from redrive.model.duration import HOUR, MAX_DURATION, MINUTE, SECOND
from redrive.model.failure import Failure
from redrive.model.retry_policy import (
    FALLBACK_BACKOFF,
    MAX_FUNCTION_DELAY,
    Backoff,
    BackoffKind,
    RetryPolicy,
    backoff_for,
    parse_retry_policy,
    retry_delay,
)


def seconds(value: dict[str, Any] | None, count: int, **kwargs: Any) -> list[float | None]:
    rule = parse_retry_policy(value if value is None else {"attempts": 9, **value}).delay
    delays = [retry_delay(rule, n, **kwargs) for n in range(1, count + 1)]
    return [None if delay is None else delay / SECOND for delay in delays]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 0, 0]),
        ({"attempts": 3}, [0, 0, 0]),
        ({"delay": "never"}, [None, None, None]),
        ({"delay": "immediate"}, [0, 0, 0]),
        ({"cooldown": "30s"}, [30, 30, 30]),
        ({"delay": "fixed", "base": 2}, [2, 2, 2]),
        ({"delay": "linear", "base": "10s"}, [10, 20, 30]),
        ({"delay": "exponential"}, [1, 2, 4]),
        ({"delay": "exponential", "base": "1s", "cap": "3s"}, [1, 2, 3]),
        ({"delays": ["1s", "1m"]}, [1, 60, 60]),
    ],
)
def test_schedules(value: object, expected: list[float | None]) -> None:
    assert seconds(value, 3) == expected


def test_oj_cooldown_is_a_fixed_delay() -> None:
    assert parse_retry_policy({"attempts": 3, "cooldown": "30s"}) == RetryPolicy(
        3, Backoff(BackoffKind.FIXED, base=30 * SECOND)
    )


def test_linear_can_be_5_minutes_times_retries_plus_1() -> None:
    # Its retry_count is 0 at the first failure, n is 1.
    expected = [5 * (retry_count + 1) * 60 for retry_count in range(6)]
    assert seconds({"delay": "linear", "base": "5m"}, 6) == expected


def test_exponential_can_be_2_to_the_retries_up_to_60_minutes() -> None:
    expected = [min(2**retry_count, 60) * 60 for retry_count in range(10)]
    assert seconds({"delay": "exponential", "base": "1m", "cap": "60m"}, 10) == expected


def test_linear_can_be_a_minute_per_delivery_up_to_15() -> None:
    expected = [min(60 * deliveries, 900) for deliveries in range(1, 21)]
    assert seconds({"delay": "linear", "base": "60s", "cap": "900s"}, 20) == expected


def test_full_jitter_takes_a_share_of_the_capped_delay() -> None:
    value = {"delay": "exponential", "base": "10s", "cap": "15s", "jitter": True}
    assert seconds(value, 2, jitter=0.5) == [5, 7.5]
    assert seconds(value, 2, jitter=0.0) == [0, 0]
    assert seconds({"cooldown": "10s"}, 1, jitter=0.0) == [10]


def test_a_function_by_name_decides() -> None:
    rule = parse_retry_policy({"attempts": 5, "function": "squares", "cap": "10s"}).delay
    functions = {"squares": lambda n: float(n * n)}
    assert [retry_delay(rule, n, functions=functions) for n in (1, 2, 3, 4)] == [s * SECOND for s in (1, 4, 9, 10)]
    assert retry_delay(rule, 1, functions={"squares": lambda n: timedelta(seconds=n)}) == SECOND


@pytest.mark.parametrize("answer", [float("nan"), -1, None, "5s", True, [], object()])
def test_a_function_that_answers_nonsense_gives_way_to_the_default(answer: Any) -> None:
    rule = Backoff(BackoffKind.FUNCTION, function="f")
    assert retry_delay(rule, 3, functions={"f": lambda n: answer}) == retry_delay(FALLBACK_BACKOFF, 3) == 4 * SECOND


def test_a_function_that_raises_or_is_unknown_gives_way_to_the_default() -> None:
    rule = Backoff(BackoffKind.FUNCTION, function="f")
    assert retry_delay(rule, 1, functions={"f": lambda n: 1 / 0}) == SECOND
    assert retry_delay(rule, 100, functions={}) == HOUR


@pytest.mark.parametrize("answer", [float("inf"), 10**400, 1e300])
def test_a_function_that_answers_too_much_is_cut_at_a_year(answer: float) -> None:
    rule = Backoff(BackoffKind.FUNCTION, function="f")
    assert retry_delay(rule, 1, functions={"f": lambda n: answer}) == MAX_FUNCTION_DELAY


rules = st.builds(
    Backoff,
    schedule=st.sampled_from([s for s in BackoffKind if s not in (BackoffKind.LIST, BackoffKind.FUNCTION)]),
    base=st.integers(0, MAX_DURATION),
    cap=st.none() | st.integers(0, MAX_DURATION),
    jitter=st.booleans(),
) | st.builds(lambda d: Backoff(BackoffKind.LIST, delays=tuple(d)), st.lists(st.integers(0, MAX_DURATION), min_size=1))


@given(rules, st.integers(-5, 10**9), st.floats(0, 1, exclude_max=True))
def test_delays_are_never_negative_and_saturate_at_100_years(rule: Backoff, n: int, jitter: float) -> None:
    delay = retry_delay(rule, n, jitter)
    assert delay is None if rule.schedule is BackoffKind.NEVER else delay is not None and 0 <= delay <= MAX_DURATION


TIMEOUT = Failure("requests.exceptions.Timeout", "", error_class=ErrorClass.NETWORK, bases=("OSError", "Exception"))


def test_without_classes_the_queue_has_one_rule() -> None:
    retry = parse_retry_policy({"attempts": 5, "cooldown": "7s"})
    assert backoff_for(retry, TIMEOUT) == backoff_for(retry, None) == retry.delay


@pytest.mark.parametrize(
    ("error_class", "schedule"),
    [
        ("transient", "exponential"), ("network", "exponential"), ("resource", "linear"), ("permission", "never"),
        ("validation", "never"), ("permanent", "never"), ("poison", "never"),
    ],
)  # fmt: skip
def test_classes_decide_where_they_are_asked_to(error_class: str, schedule: str) -> None:
    failure = Failure("E", "", error_class=ErrorClass(error_class))
    assert backoff_for(parse_retry_policy({"attempts": 5, "classes": True}), failure).schedule == schedule


def test_a_rule_by_type_goes_before_one_by_class_and_the_nearest_type_first() -> None:
    retry = parse_retry_policy(
        {
            "attempts": 5,
            "classes": True,
            "by_class": {"network": {"delay": "fixed", "base": "5s"}},
            "by_type": {"OSError": "9s", "requests.Timeout": "never"},
        }
    )
    assert backoff_for(retry, TIMEOUT).schedule is BackoffKind.NEVER
    assert backoff_for(retry, Failure("E", "", error_class=ErrorClass.NETWORK)).base == 5 * SECOND
    assert backoff_for(retry, Failure("X", "", bases=("OSError",))).base == 9 * SECOND
    assert backoff_for(retry, Failure("E", "", error_class=ErrorClass.RESOURCE)).base == MINUTE


BAD: list[tuple[Any, str]] = [
    (5, "retry must be a table"),
    ({"attempts": -1}, r"retry\.attempts must be a whole number"),
    ({"attempts": True}, r"retry\.attempts"),
    ({"attempts": "3"}, r"retry\.attempts"),
    ({"cooldown": "soon"}, r"^retry\.cooldown 'soon' is not a duration"),
    ({"cooldown": "5s", "delay": "fixed"}, r"retry\.cooldown cannot be given together with retry\.delay"),
    ({"cooldown": "5s", "base": "1s"}, r"retry\.base cannot"),
    ({"delay": "sometimes"}, r"retry\.delay must be one of never, immediate, fixed, linear, exponential"),
    ({"delay": "linear"}, r"retry\.base must be given"),
    ({"delay": "list"}, r"retry\.delay must be one of"),
    ({"delays": []}, r"retry\.delays must be a list"),
    ({"delays": "1s"}, r"retry\.delays must be a list"),
    ({"delays": ["1s", "x"]}, r"retry\.delays\[1\]"),
    ({"delay": ["x"]}, r"retry\.delay must be"),
    ({"cap": -1}, r"retry\.cap -1 is negative"),
    ({"jitter": 1}, r"retry\.jitter must be true or false"),
    ({"function": "no spaces"}, r"retry\.function"),
    ({"atempts": 3}, r"retry\.atempts is not a setting \(did you mean attempts\?\); known are attempts"),
    ({"max_retries": 3}, r"retry\.max_retries is not a setting \(did you mean attempts\?\)"),
    ({"max_delay": "1h"}, r"retry\.max_delay is not a setting \(did you mean cap\?\)"),
    ({"colour": 3}, r"retry\.colour is not a setting; known are"),
    ({"by_type": {"E": {"retries": 3}}}, r"retry\.by_type\.E\.retries is not a setting; known are delay"),
    ({"delay": "10s"}, r"retry\.delay must be one of never.*; one delay for every try goes under cooldown"),
    ({"delay": 10}, r"retry\.delay must be one of never.*cooldown"),
    ({"delay": timedelta(seconds=10)}, r"retry\.delay must be one of never.*cooldown"),
    ({"delay": ["1s", "5s"]}, r"retry\.delay must be one of never.*; a list of delays goes under delays"),
    ({"delay": abs}, r"retry\.delay must be one of never.*its name goes under function"),
    ({"delay": "sometimes"}, r"exponential$"),
    ({"function": abs}, r"retry\.function must be a name, .*connect\(backoffs="),
    ({3: 3}, r"retry\.3 is not a setting"),
    ({"by_class": {"weird": "never"}}, r"retry\.by_class\.weird is not an error class"),
    ({"by_class": {"network": {"base": "x"}}}, r"retry\.by_class\.network\.base"),
    ({"by_type": {"E": {"attempts": 3}}}, r"retry\.by_type\.E\.attempts is not a setting"),
    ({"by_type": {"E": "now and then"}}, r"retry\.by_type\.E "),
]


@pytest.mark.parametrize(("value", "problem"), BAD, ids=[str(value)[:40] for value, _ in BAD])
def test_mistakes_are_refused_with_the_path_of_the_key(value: Any, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        parse_retry_policy(value)


@pytest.mark.parametrize("make", [lambda: RetryPolicy(-1), lambda: Backoff(base=-1), lambda: Backoff(BackoffKind.LIST)])
def test_values_made_by_hand_are_checked_too(make: Any) -> None:
    with pytest.raises(InvalidSetting):
        make()


@pytest.mark.parametrize(
    "rule",
    [Backoff(BackoffKind.LIST, delays=(1,) * 1001), Backoff(BackoffKind.FUNCTION, function="no name")],
    ids=["list", "name"],
)
@pytest.mark.parametrize("where", ["delay", "by_class", "by_type"])
def test_policy_that_no_one_could_have_written_is_refused(where: str, rule: Backoff) -> None:
    rules = {"delay": rule, "by_class": {ErrorClass.NETWORK: rule}, "by_type": {"E": rule}}
    with pytest.raises(InvalidSetting, match=r"delay\."):
        parse_retry_policy(msgspec.structs.replace(RetryPolicy(3), **{where: rules[where]}))


def test_a_setting_survives_json() -> None:
    retry = parse_retry_policy(
        {"attempts": 5, "function": "f", "by_class": {"network": "5s"}, "by_type": {"a.B": "never"}}
    )
    assert msgspec.json.decode(msgspec.json.encode(retry), type=RetryPolicy) == retry
    assert parse_retry_policy(retry) is retry
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"attempts":1,"colour":2}', type=RetryPolicy)
