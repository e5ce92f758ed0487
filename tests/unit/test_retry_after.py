"""Retry-After: how long an error asks to wait, wherever it says so, and whatever a server sends."""

from __future__ import annotations

import email.message
import urllib.error
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from email.utils import format_datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.clock import Instant, to_datetime
from redrive.errors import InvalidSetting
from redrive.model.duration import HOUR, MINUTE, SECOND
from redrive.model.failure import Failure, failure_from_exception, failure_from_fields, normalize_failure
from redrive.model.item import Counters, Overrides, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict, judge
from redrive.model.queue import QueueSettings, RetryAfter
from redrive.model.queue_options import parse_settings, validate_settings
from redrive.model.retry_after import MAX_RETRY_AFTER, parse_retry_after, retry_after_of
from redrive.model.retry_policy import parse_retry_policy
from redrive.task.app import App
from redrive.testing import FakeClock, run_tasks
from redrive.worker.worker import Worker

NOW = Instant(1_700_000_000 * SECOND)
LATER = "Tue, 14 Nov 2023 22:15:20 GMT"
"""Two minutes after NOW."""


class Carrier(Exception):
    """Anything with attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Hostile(Exception):
    """An error whose attributes raise."""

    def __getattr__(self, name: str) -> Any:
        raise KeyboardInterrupt


def answered(retry_after: str, name: str = "Retry-After") -> urllib.error.HTTPError:
    headers = email.message.Message()
    headers[name] = retry_after
    with urllib.error.HTTPError("http://localhost", 429, "no", headers, None) as error:
        return error


class ExitingZone(tzinfo):
    """A zone that ends the program when it is asked."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        raise SystemExit


def with_headers(**headers: Any) -> Carrier:
    return Carrier(response=Carrier(headers={name.replace("_", "-"): value for name, value in headers.items()}))


@pytest.mark.parametrize(
    ("error", "delay"),
    [
        (answered("120"), 2 * MINUTE),
        (answered(LATER), 2 * MINUTE),
        (answered("Tue, 14 Nov 2023 22:15:20 -0000"), 2 * MINUTE),
        (answered("Tuesday, 14-Nov-23 22:15:20 GMT"), 2 * MINUTE),
        (answered("Tue Nov 14 22:15:20 2023"), 2 * MINUTE),
        (with_headers(retry_after="1.5"), 1_500_000),
        (with_headers(Retry_After="3"), 3 * SECOND),
        (with_headers(Retry_After=3), 3 * SECOND),
        (with_headers(retry_after_ms="250", retry_after="1"), 250_000),
        (with_headers(retry_after_ms="soon", retry_after="1"), SECOND),
        (Carrier(headers={"Retry-After": "7"}), 7 * SECOND),
        (Carrier(response={"ResponseMetadata": {"HTTPHeaders": {"retry-after": "9"}}}), 9 * SECOND),
        (Carrier(retry_after=30), 30 * SECOND),
        (Carrier(retry_after=0.25), 250_000),
        (Carrier(retry_after=timedelta(minutes=2)), 2 * MINUTE),
        (Carrier(retry_after="120"), 2 * MINUTE),
        (Carrier(retry_after=to_datetime(NOW) + timedelta(minutes=2)), 2 * MINUTE),
        (Carrier(retry_after=(to_datetime(NOW) + timedelta(minutes=2)).replace(tzinfo=None)), 2 * MINUTE),
        (
            Carrier(retry_after=(to_datetime(NOW) + timedelta(minutes=2)).astimezone(timezone(timedelta(hours=9)))),
            2 * MINUTE,
        ),
        (Carrier(headers={"Retry-After": datetime.max}), HOUR),
        (Carrier(retry_after=datetime.min), 0),
        (Carrier(retry_after=datetime(2023, 11, 14, tzinfo=ExitingZone())), None),
        (Carrier(reason=with_headers(retry_after="4")), 4 * SECOND),
        (answered("31536000"), HOUR),
        (answered("1" * 100), HOUR),
        (answered("inf"), HOUR),
        (answered("Fri, 31 Dec 9999 23:59:59 GMT"), HOUR),
        (Carrier(retry_after=10**400), HOUR),
        (Carrier(retry_after=timedelta.max), HOUR),
        (answered("-5"), 0),
        (answered("0"), 0),
        (answered("Tue, 14 Nov 2000 22:15:20 GMT"), 0),
        (Carrier(retry_after=-(10**400)), 0),
        (answered("nan"), None),
        (answered("soon"), None),
        (answered(""), None),
        (answered("1" * 101), None),
        (Carrier(retry_after=True), None),
        (Carrier(retry_after=b"5"), None),
        (Carrier(headers=["Retry-After"]), None),
        (Carrier(), None),
    ],
)
def test_what_an_error_asks_for(error: BaseException, delay: int | None) -> None:
    assert retry_after_of(error, NOW) == delay
    assert failure_from_exception(error, now=NOW).retry_after == delay


def send() -> None:
    try:
        raise answered("7")
    except urllib.error.HTTPError as problem:
        raise RuntimeError("could not send") from problem


def test_cause_is_asked_where_the_error_says_nothing() -> None:
    with pytest.raises(RuntimeError) as caught:
        send()
    assert retry_after_of(caught.value, NOW) == 7 * SECOND
    caught.value.__cause__ = None
    assert retry_after_of(caught.value, NOW) is None, "what was merely being handled is not a cause"


def test_group_asks_for_the_longest_of_its_members() -> None:
    group = ExceptionGroup("two", [answered("7"), ValueError(), ExceptionGroup("one", [answered("9")])])
    assert retry_after_of(group, NOW) == 9 * SECOND
    assert retry_after_of(ExceptionGroup("none", [ValueError()]), NOW) is None


def test_date_says_nothing_where_the_time_is_unknown() -> None:
    assert retry_after_of(answered(LATER)) is None
    assert retry_after_of(answered("120")) == 2 * MINUTE


def test_attributes_that_raise_say_nothing() -> None:
    assert retry_after_of(Hostile(), NOW) is None
    assert retry_after_of(Carrier(headers=Hostile()), NOW) is None
    assert retry_after_of(Carrier(response=Hostile()), NOW) is None


@given(st.text() | st.text("0123456789-+.:,eE infaMonTueNovGMTZ", max_size=40))
def test_any_header_is_a_time_within_bounds_or_none(text: str) -> None:
    wait = parse_retry_after(text, NOW)
    assert wait is None or (type(wait) is int and 0 <= wait <= MAX_RETRY_AFTER)


@given(st.floats() | st.integers() | st.timedeltas() | st.none() | st.binary() | st.lists(st.integers()))
def test_any_value_is_a_time_within_bounds_or_none(value: Any) -> None:
    wait = parse_retry_after(value, NOW)
    assert wait is None or (type(wait) is int and 0 <= wait <= MAX_RETRY_AFTER)


@given(st.datetimes(datetime(1971, 1, 1), datetime(9999, 12, 31)))
def test_any_date_is_how_far_it_lies_ahead_up_to_an_hour(at: datetime) -> None:
    at = at.replace(microsecond=0, tzinfo=UTC)
    wait = parse_retry_after(format_datetime(at, usegmt=True), NOW)
    assert wait == min(max(at - to_datetime(NOW), timedelta()), timedelta(hours=1)) // timedelta(microseconds=1)


@given(st.integers(0, 3600))
def test_any_number_of_seconds_within_an_hour_is_exact(seconds: int) -> None:
    assert parse_retry_after(str(seconds), NOW) == parse_retry_after(seconds, NOW) == seconds * SECOND


@pytest.mark.parametrize(
    ("given", "kept"),
    [(5, 5), (0, 0), (-5, 0), (365 * 24 * HOUR, HOUR), (10**80, HOUR), (True, None), ("5s", None), (1.5, None)],
)
def test_reported_failure_is_bounded(given: Any, kept: int | None) -> None:
    assert normalize_failure(Failure("E", "x", retry_after=given)).retry_after == kept
    assert failure_from_fields("E", "x", retry_after=given).retry_after == kept


def test_failure_says_it_in_words_and_survives_the_wire() -> None:
    failure = failure_from_exception(answered("90"), now=NOW)
    assert "asks to wait 1m30s" in str(failure)
    assert msgspec.json.decode(msgspec.json.encode(failure), type=Failure) == failure
    assert "asks to wait" not in str(failure_from_exception(ValueError()))


BY_CLASS = {"attempts": 9, "cooldown": "30s", "by_class": {"network": "5s"}}


@pytest.mark.parametrize(
    ("retry", "mode"),
    [
        (None, "ignore"),
        ({"attempts": 9, "cooldown": "30s"}, "ignore"),
        ({"attempts": 9, "classes": True}, "delay"),
        (BY_CLASS, "delay"),
        ({"attempts": 9, "by_type": {"KeyError": "5s"}}, "delay"),
    ],
)
def test_default_goes_by_whether_the_error_decides_about_retries(retry: Any, mode: str) -> None:
    settings = parse_settings({"retry": retry})
    assert (settings.retry_after, settings.retry_after_mode) == (None, mode)
    for chosen in RetryAfter:
        assert parse_settings({"retry": retry, "retry_after": chosen.value}).retry_after_mode is chosen


@pytest.mark.parametrize("value", ["wait", "", "Delay", 5, True, [], {}, "\ud800"], ids=ascii)
def test_bad_setting_is_refused_with_what_there_is(value: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"^retry_after must be ignore, delay or gate, not "):
        parse_settings({"retry_after": value})


def test_setting_is_unset_by_none_and_checked_again_when_it_is_sent() -> None:
    settings = parse_settings({"retry_after": "gate"})
    assert parse_settings({"retry_after": None}, settings).retry_after is None
    assert validate_settings(settings) == settings


def verdict(settings: QueueSettings, retry_after: int | None, failures: int = 1, **more: Any) -> Any:
    failure = Failure("E", "", retry_after=retry_after)
    counters = Counters(deliveries=failures, attempts=failures, failures=failures)
    return judge(settings, OutcomeKind.FAILED, counters, failure=failure, **more)


@pytest.mark.parametrize(
    ("mode", "asked", "waits"),
    [
        ("ignore", 120, 30), ("delay", 120, 120), ("gate", 120, 120), (None, 120, 30),
        ("delay", 10, 30), ("delay", 0, 30), ("delay", None, 30),
    ],
)  # fmt: skip
def test_item_waits_at_least_as_long_as_it_is_asked_to(mode: str | None, asked: int | None, waits: int) -> None:
    settings = parse_settings({"retry": {"attempts": 3, "cooldown": "30s"}, "retry_after": mode})
    asked_for = None if asked is None else asked * SECOND
    assert verdict(settings, asked_for) == RetryVerdict(waits * SECOND, Status.FAILED)


def test_neither_cap_nor_jitter_shorten_what_the_other_side_asks() -> None:
    retry = {"attempts": 3, "delay": "exponential", "base": "1s", "cap": "2s", "jitter": True}
    settings = parse_settings({"retry": retry, "retry_after": "delay"})
    assert verdict(settings, MINUTE, jitter=0.0) == RetryVerdict(MINUTE, Status.FAILED)


def test_it_gives_no_further_try() -> None:
    settings = parse_settings({"retry": {"attempts": 2}, "retry_after": "delay"})
    assert isinstance(verdict(settings, MINUTE, 2), Dead)
    assert isinstance(verdict(parse_settings({"retry_after": "delay"}), MINUTE), Dead)


def test_own_policy_of_an_item_changes_the_default_and_not_the_setting() -> None:
    own = Overrides(retry=parse_retry_policy({"attempts": 3, "classes": True, "by_class": {"permanent": "5s"}}))
    assert verdict(parse_settings({}), MINUTE, overrides=own) == RetryVerdict(MINUTE, Status.FAILED)
    ignoring = parse_settings({"retry_after": "ignore"})
    assert verdict(ignoring, MINUTE, overrides=own) == RetryVerdict(5 * SECOND, Status.FAILED)


@pytest.mark.parametrize(
    "run", [lambda app: run_tasks(app, advance=False), lambda app: Worker(app).run(until_idle=True)]
)
def test_date_in_the_error_of_a_task_is_compared_with_the_clock_of_its_broker(run: Any) -> None:
    clock = FakeClock(to_datetime(NOW))
    app = App("memory://", clock=clock)
    queue = app.queue("calls", retry={"attempts": 3}, retry_after="delay")

    @queue.task
    def call() -> None:
        raise answered(LATER)

    @queue.task
    async def call_async() -> None:
        raise answered(LATER)

    with app:
        ids = [call.put().id, call_async.put().id]
        run(app)
        for item in app.open().get_many(ids):
            assert item is not None
            assert (item.status, item.ready_at) == (Status.FAILED, NOW + 2 * MINUTE)
