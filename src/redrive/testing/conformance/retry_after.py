"""Retry-After: an item waits at least as long as its error asks, if the setting of its queue says so."""

from __future__ import annotations

import email.message
from datetime import timedelta
from email.utils import format_datetime
from typing import Any
from urllib.error import HTTPError

import pytest

from redrive import Broker, Failure, RetryVerdict
from redrive.clock import to_datetime
from redrive.errors import InvalidSetting
from redrive.model.duration import HOUR, MINUTE, SECOND
from redrive.model.queue import RetryAfter
from redrive.testing.conformance.actions import take, take_all
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock

COOLDOWN = {"attempts": 9, "cooldown": "30s"}
BY_CLASS = {"attempts": 9, "classes": True, "by_class": {"transient": "30s"}}


def refused(retry_after: str) -> HTTPError:
    """Return the error of a call that a server answered with 429."""
    headers = email.message.Message()
    headers["Retry-After"] = retry_after
    with HTTPError("http://api.example.com", 429, "Too Many Requests", headers, None) as error:
        return error


def date_in(clock: FakeClock, **distance: int) -> str:
    """Return a date in the format of headers."""
    return format_datetime(to_datetime(clock.now()) + timedelta(**distance), usegmt=True)


def wait_of(broker: Broker, clock: FakeClock, error: BaseException | Failure, **options: Any) -> float:
    """Put an item in "jobs", let it fail, and return the seconds that it waits."""
    broker.put("jobs", 1)
    settled = broker.fail(take(broker), error, **options)
    assert settled.status == "failed"
    return ((settled.ready_at or 0) - clock.now()) / SECOND


class RetryAfterConformance(Suite):
    """The setting `retry_after`, and the Retry-After that failures store."""

    def test_item_is_ready_when_the_other_side_asks_for_it(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry=COOLDOWN, retry_after="delay")
        receipt = broker.put("jobs", 1)
        settled = broker.fail(take(broker), refused("300"))
        item = broker.get(receipt.id)
        assert (settled.status, settled.ready_at) == ("failed", clock.now() + 5 * MINUTE)
        assert (item.status, item.ready_at) == ("failed", settled.ready_at)
        assert [entry.failure.retry_after for entry in item.history if entry.failure] == [5 * MINUTE]
        clock.advance("299s")
        assert take_all(broker) == []
        clock.advance("1s")
        lease = take(broker)
        assert (lease.id, lease.attempts) == (receipt.id, 2)

    @pytest.mark.parametrize(
        ("header", "wait"),
        [("300", 300), ("5", 30), ("0", 30), ("-5", 30), ("soon", 30), ("", 30), ("1.5e2", 150), ("31536000", 3600)],
    )
    def test_wait_is_never_shorter_than_the_delay_nor_longer_than_an_hour(
        self, broker: Broker, clock: FakeClock, header: str, wait: float
    ) -> None:
        broker.create_queue("jobs", retry=COOLDOWN, retry_after="delay")
        assert wait_of(broker, clock, refused(header)) == wait

    def test_date_is_compared_with_the_clock_of_the_broker(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry=COOLDOWN, retry_after="delay")
        second = clock.now() % SECOND / SECOND  # headers have whole seconds
        assert wait_of(broker, clock, refused(date_in(clock, minutes=10))) == pytest.approx(600 - second)
        assert wait_of(broker, clock, refused(date_in(clock, days=365))) == 3600
        assert wait_of(broker, clock, refused(date_in(clock, minutes=-10))) == 30
        kept = [
            item.last_failure.retry_after
            for item in broker.find(queue="jobs", status="failed").items
            if item.last_failure
        ]
        assert sorted(each or 0 for each in kept)[::2] == [0, HOUR]
        assert None not in kept

    @pytest.mark.parametrize(
        ("settings", "wait"),
        [
            ({"retry": COOLDOWN}, 30),
            ({"retry": COOLDOWN, "retry_after": "ignore"}, 30),
            ({"retry": COOLDOWN, "retry_after": "delay"}, 300),
            ({"retry": BY_CLASS}, 300),
            ({"retry": BY_CLASS, "retry_after": "ignore"}, 30),
            ({"retry": {**COOLDOWN, "by_type": {"KeyError": "5s"}}}, 300),
        ],
        ids=repr,
    )
    def test_queue_goes_by_it_if_it_is_asked_to_or_if_errors_decide_about_retries(
        self, broker: Broker, clock: FakeClock, settings: dict[str, Any], wait: float
    ) -> None:
        broker.create_queue("jobs", **settings)
        assert wait_of(broker, clock, refused("300")) == wait
        (item,) = broker.find(queue="jobs", status="failed").items
        assert item.last_failure is not None
        assert item.last_failure.retry_after == 5 * MINUTE, "it is kept in any case"

    def test_setting_is_kept_changed_and_taken_back(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        broker = open_broker()
        broker.create_queue("jobs", retry=COOLDOWN)
        assert broker.get_queue("jobs").settings.retry_after is None
        for mode in RetryAfter:
            broker.update_queue("jobs", retry_after=mode.value)
            assert broker.get_queue("jobs").settings.retry_after is mode
        broker.update_queue("jobs", retry_after=None)
        assert broker.get_queue("jobs").settings.retry_after is None
        with pytest.raises(InvalidSetting, match="must be ignore, delay or gate"):
            broker.update_queue("jobs", retry_after="wait")
        assert wait_of(broker, clock, refused("300")) == 30
        broker.update_queue("jobs", retry_after="delay")
        assert wait_of(broker, clock, refused("300")) == 300

    @pytest.mark.parametrize(
        ("given", "kept"), [(5 * MINUTE, 5 * MINUTE), (365 * 24 * HOUR, HOUR), (-1, 0), (None, None)], ids=repr
    )
    def test_failure_may_be_reported_with_it(
        self, broker: Broker, clock: FakeClock, given: int | None, kept: int | None
    ) -> None:
        broker.create_queue("jobs", retry=COOLDOWN, retry_after="delay")
        wait = max(30 * SECOND, kept or 0)
        failure = Failure("go/http.Error", "429", retry_after=given)
        broker.put("jobs", 1)
        reported = broker.fail(take(broker), failure).id
        by_hand = broker.put("jobs", 2).id
        broker.fail_items(by_hand, failure)
        captured = broker.put_failed("jobs", 3, failure).id
        for item in map(broker.get, (reported, by_hand, captured)):
            assert item.last_failure is not None
            assert (item.last_failure.retry_after, item.ready_at) == (kept, clock.now() + wait)

    def test_it_gives_no_further_try(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 1}, retry_after="delay")
        broker.put("jobs", 1)
        settled = broker.fail(take(broker), refused("300"))
        assert (settled.status, settled.dead_reason) == ("dead", "retries_exhausted")

    def test_program_that_brings_a_verdict_goes_before_it(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry=COOLDOWN, retry_after="delay")
        assert wait_of(broker, clock, refused("300"), verdict=RetryVerdict.after("1m")) == 60

    def test_one_wait_does_not_delay_the_next(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry=COOLDOWN, retry_after="delay")
        broker.put("jobs", 1)
        broker.fail(take(broker), refused("300"))
        clock.advance("5m")
        settled = broker.fail(take(broker), ConnectionError("gone"))
        assert settled.ready_at == clock.now() + 30 * SECOND
