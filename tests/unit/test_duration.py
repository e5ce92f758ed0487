"""Durations are read as people write them, and written so that they are read back exactly."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import InvalidDuration
from redrive.model.duration import DAY, HOUR, MAX_DURATION, MILLISECOND, MINUTE, SECOND, format_duration, parse_duration


@pytest.mark.parametrize(
    ("written", "duration"),
    [
        ("250ms", 250 * MILLISECOND),
        ("30s", 30 * SECOND),
        ("5m", 5 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("7d", 7 * DAY),
        ("1d2h3m4s5ms", DAY + 2 * HOUR + 3 * MINUTE + 4 * SECOND + 5 * MILLISECOND),
        ("1.5s", 1_500_000),
        ("1h0.5m", HOUR + 30 * SECOND),
        ("0.001ms", 1),
        ("90m", 90 * MINUTE),
        ("0s", 0),
        (" 30s ", 30 * SECOND),
        ("30", 30 * SECOND),
        ("1.5", 1_500_000),
        (30, 30 * SECOND),
        (0, 0),
        (0.1, 100_000),
        (1e-6, 1),
        (timedelta(minutes=1, microseconds=7), MINUTE + 7),
        ("36525d", MAX_DURATION),
    ],
)
def test_durations_as_people_write_them(written: str | float | timedelta, duration: int) -> None:
    assert parse_duration(written) == duration


REFUSED: list[Any] = [
    "", " ", "s", "5 m", "5M", "5min", "5us", "1m1h", "1m1m", "1h30", "1e3", ".5s", "5.s", "nan", "inf", "٣s", "1.5h1m",
    "1" * 5000, "1,5s", "5\0s", float("nan"), float("inf"), True, None, b"5s", [], 1j,
]  # fmt: skip


@pytest.mark.parametrize("written", REFUSED, ids=lambda value: repr(value)[:12])
def test_anything_else_is_refused(written: Any) -> None:
    with pytest.raises(InvalidDuration, match=r"is not a duration; write it like 250ms|fraction before its last"):
        parse_duration(written)


@pytest.mark.parametrize("written", ["-5s", "-5", -1, -0.5, timedelta(seconds=-1)])
def test_negative_durations_are_refused(written: Any) -> None:
    with pytest.raises(InvalidDuration, match="is negative"):
        parse_duration(written)


@pytest.mark.parametrize("written", ["36526d", "9" * 60, 10**400, 1e300, timedelta.max])
def test_more_than_a_hundred_years_is_refused(written: Any) -> None:
    with pytest.raises(InvalidDuration, match="longer than 100 years"):
        parse_duration(written)


def test_the_error_names_the_setting() -> None:
    with pytest.raises(InvalidDuration, match=r"^lease_timeout 'soon' is not a duration"):
        parse_duration("soon", "lease_timeout")


@pytest.mark.parametrize(
    ("duration", "text"),
    [(0, "0s"), (1, "0.001ms"), (250_000, "250ms"), (1_500_000, "1.5s"), (90 * MINUTE, "1h30m"), (7 * DAY, "7d")],
)
def test_durations_are_written_without_parts_that_are_zero(duration: int, text: str) -> None:
    assert format_duration(duration) == text


@given(st.integers(0, MAX_DURATION))
def test_what_is_written_is_read_back_exactly(duration: int) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(st.text(alphabet="0123456789.dhms- e", max_size=12) | st.text() | st.floats() | st.integers())
def test_reading_answers_or_refuses_and_nothing_else(written: str | float) -> None:
    with contextlib.suppress(InvalidDuration):
        assert 0 <= parse_duration(written) <= MAX_DURATION
