"""When periodic tasks are due: pure functions of time."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import App, Context
from redrive.clock import Instant
from redrive.errors import InvalidInput
from redrive.task.periodic import MAX_MISSED, Cron, Every, MissedTicks, Periodic, periodic_from

SECOND = 1_000_000
HOUR = 3600 * SECOND
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(*parts: int, zone: Any = UTC, fold: int = 0) -> Instant:
    moment = datetime(*parts, tzinfo=zone, fold=fold).astimezone(UTC)  # type: ignore[misc, arg-type]
    return Instant((moment - EPOCH) // timedelta(microseconds=1))


def ticks(cron: Cron, after: Instant, count: int) -> list[str]:
    zone, found = ZoneInfo(cron.timezone), []
    for _ in range(count):
        tick = cron.next_tick(after)
        assert tick is not None
        assert tick > after
        found.append((EPOCH + timedelta(microseconds=tick)).astimezone(zone).strftime("%d %H:%M %Z"))
        after = tick
    return found


def test_interval_ticks_at_its_multiples() -> None:
    quarter = Every(15 * 60 * SECOND)
    assert quarter.next_tick(at(2026, 1, 1, 12, 3)) == at(2026, 1, 1, 12, 15)
    assert quarter.next_tick(at(2026, 1, 1, 12, 15)) == at(2026, 1, 1, 12, 30)


@given(st.integers(SECOND, 10**12), st.integers(0, 2**52))
def test_next_tick_of_an_interval_is_the_first_that_is_later(interval: int, after: int) -> None:
    tick = Every(interval).next_tick(Instant(after))
    assert tick % interval == 0
    assert after < tick <= after + interval


def test_cron_ticks_by_the_clocks_of_its_time_zone() -> None:
    cron = Cron("0 3 * * MON-FRI", "Europe/Berlin")
    assert ticks(cron, at(2026, 1, 2, 12), 3) == ["05 03:00 CET", "06 03:00 CET", "07 03:00 CET"]


def test_cron_with_seconds() -> None:
    assert Cron("*/10 * * * * *").next_tick(at(2026, 1, 1, 0, 0, 5)) == at(2026, 1, 1, 0, 0, 10)
    assert Cron("0 0 * * * *").next_tick(at(2026, 1, 1, 0, 0, 0, 1)) == at(2026, 1, 1, 1)


def test_job_at_a_time_that_does_not_exist_runs_after_the_gap() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    cron = Cron("30 2 * * *", "Europe/Berlin")
    assert ticks(cron, at(2026, 3, 28, 12, zone=berlin), 2) == ["29 03:00 CEST", "30 02:30 CEST"]


def test_job_at_a_time_that_comes_twice_runs_once() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    cron = Cron("30 2 * * *", "Europe/Berlin")
    assert ticks(cron, at(2026, 10, 24, 12, zone=berlin), 2) == ["25 02:30 CEST", "26 02:30 CET"]
    # Between the first half past two and the second, the one of this night is over.
    assert ticks(cron, at(2026, 10, 25, 2, 10, zone=berlin, fold=1), 1) == ["26 02:30 CET"]


@given(
    st.sampled_from(["0 * * * *", "30 2 * * *", "*/20 1-3 * * *", "15,45 2 * * SUN", "0 0 1 * *"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    st.integers(at(2026, 1, 1), at(2027, 1, 1)),
)
def test_next_tick_is_later_and_nothing_lies_between(expression: str, zone: str, after: int) -> None:
    cron = Cron(expression, zone)
    tick = cron.next_tick(Instant(after))
    assert tick is not None
    assert tick > after
    assert cron.next_tick(Instant(tick - 1)) == tick
    assert cron.next_tick(Instant((after + tick) // 2)) == tick


@pytest.mark.parametrize("missed", list(MissedTicks))
def test_tick_on_time_is_put_whatever_becomes_of_missed_ones(missed: MissedTicks) -> None:
    hourly = Periodic(Every(HOUR), missed)
    last, now = at(2026, 1, 1, 12), Instant(at(2026, 1, 1, 13) + 5)
    assert hourly.due(last, now) == (at(2026, 1, 1, 13), [at(2026, 1, 1, 13)])


def test_nothing_is_due_before_the_next_tick() -> None:
    hourly = Periodic(Every(HOUR), MissedTicks.ALL)
    last = at(2026, 1, 1, 12)
    assert hourly.due(last, Instant(last + HOUR - 1)) == (last, [])
    assert hourly.due(last, Instant(last - HOUR)) == (last, [])  # the clock was set back


@pytest.mark.parametrize(
    ("missed", "put"), [(MissedTicks.SKIP, []), (MissedTicks.ONCE, [15]), (MissedTicks.ALL, [13, 14, 15])], ids=str
)
def test_missed_ticks_are_left_out_or_put_as_one_or_all(missed: MissedTicks, put: list[int]) -> None:
    hourly = Periodic(Every(HOUR), missed)
    newest, due = hourly.due(at(2026, 1, 1, 12), at(2026, 1, 1, 15, 30))
    assert newest == at(2026, 1, 1, 15)
    assert due == [at(2026, 1, 1, hour) for hour in put]


@pytest.mark.parametrize("kind", [Every(SECOND), Cron("* * * * * *"), Cron("*/1 * * * *")], ids=str)
def test_a_year_of_missed_ticks_is_bounded(kind: Every | Cron) -> None:
    now = at(2027, 1, 1)
    newest, due = Periodic(kind, MissedTicks.ALL).due(at(2026, 1, 1), now)
    assert newest == due[-1] == now
    assert len(due) == MAX_MISSED
    assert due == sorted(set(due))


def test_missed_ticks_are_all_that_lie_between() -> None:
    hourly = Periodic(Cron("0 9-17 * * *", "Europe/Berlin"), MissedTicks.ALL)
    _, due = hourly.due(at(2026, 3, 27), at(2026, 3, 31))
    assert len(due) == 4 * 9


@pytest.mark.parametrize("cron", ["", "* * *", "61 * * * *", "0 0 31 2 *", "a b c d e", "0 0 * * MON#6"])
def test_cron_that_cannot_be_read_or_never_ticks_is_refused(cron: str) -> None:
    with pytest.raises(InvalidInput, match="cron"):
        periodic_from(None, cron, "UTC", "once")


@pytest.mark.parametrize("zone", ["", "Nowhere", "../etc/passwd", 3])
def test_unknown_time_zone_is_refused(zone: Any) -> None:
    with pytest.raises(InvalidInput, match="time zone"):
        periodic_from(None, "* * * * *", zone, "once")


def test_periodic_task_needs_no_arguments() -> None:
    jobs = App().queue("jobs")

    @jobs.task(every="1h")
    def fine(context: Context, number: int = 1) -> None: ...

    assert fine.periodic == Periodic(Every(HOUR), MissedTicks.ONCE)
    with pytest.raises(InvalidInput, match="gets no value for number"):

        @jobs.task(cron="0 3 * * *")
        def wrong(number: int) -> None: ...
