"""Retry policy: limits, backoff, error classes; and expiry."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker
from redrive.model.duration import DAY, SECOND
from redrive.model.item import Counters
from redrive.testing.conformance.actions import Boom, kill, lose, places, take, take_all
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock

MINUTE = 60 * SECOND


class LimitConformance(Suite):
    """`max_attempts` limits deliveries, regardless of how they end."""

    @pytest.mark.parametrize(
        ("settings", "deliveries"),
        [
            ({}, 5),
            ({"retry": {"attempts": 3}}, 5),
            ({"retry": {"attempts": 7}}, 7),
            ({"max_attempts": 2}, 2),
            ({"max_attempts": 1}, 1),
            ({"max_attempts": 9, "retry": {"attempts": 3}}, 9),
        ],
        ids=repr,
    )
    def test_item_given_back_too_often_is_dead(self, broker: Broker, settings: dict[str, Any], deliveries: int) -> None:
        broker.create_queue("jobs", **settings)
        broker.put("jobs", 1)
        endings = [broker.release(take(broker)) for _ in range(deliveries)]
        assert [settled.status for settled in endings] == ["pending"] * (deliveries - 1) + ["dead"]
        assert endings[-1].dead_reason == "max_attempts"
        assert endings[-1].counters == Counters(deliveries=deliveries, attempts=deliveries)

    def test_zero_is_unlimited(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_attempts=0)
        broker.put("jobs", 1)
        for n in range(1, 31):
            settled = broker.release(take(broker))
            assert (settled.status, settled.counters.attempts) == ("pending", n)

    def test_limit_of_an_item_goes_before_that_of_its_queue(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_attempts=9)
        broker.put("jobs", 1, max_attempts=2)
        assert [broker.release(take(broker)).status for _ in range(2)] == ["pending", "dead"]

    def test_item_may_be_unlimited_in_a_limited_queue(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_attempts=1)
        broker.put("jobs", 1, max_attempts=0)
        assert [broker.release(take(broker)).status for _ in range(8)] == ["pending"] * 8

    def test_failures_and_releases_count_together(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 3}, max_attempts=3)
        broker.put("jobs", 1)
        broker.release(take(broker))
        broker.fail(take(broker), "boom")
        settled = broker.fail(take(broker), "boom")
        assert (settled.status, settled.dead_reason) == ("dead", "max_attempts")
        assert settled.counters == Counters(deliveries=3, attempts=3, failures=2)

    def test_limit_edited_while_leased_holds(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_attempts=9)
        broker.put("jobs", 1)
        lease = take(broker)
        broker.update_queue("jobs", max_attempts=1)
        assert broker.release(lease).dead_reason == "max_attempts"


class DelayConformance(Suite):
    """The delay of a failed item."""

    @pytest.mark.parametrize(
        ("retry", "seconds"),
        [
            ({}, [0, 0, 0, 0]),
            ({"delay": "immediate"}, [0, 0, 0, 0]),
            ({"cooldown": "30s"}, [30, 30, 30, 30]),
            ({"delay": "fixed", "base": "30s"}, [30, 30, 30, 30]),
            ({"delay": "linear", "base": "5m"}, [300, 600, 900, 1200]),
            ({"delay": "linear", "base": "5m", "cap": "12m"}, [300, 600, 720, 720]),
            ({"delay": "exponential", "base": "2s"}, [2, 4, 8, 16]),
            ({"delay": "exponential", "base": "1m", "cap": "3m"}, [60, 120, 180, 180]),
            ({"delays": ["1s", "1m", "1h"]}, [1, 60, 3600, 3600]),
            ({"delays": ["1s", "1m", "1h"], "cap": "5m"}, [1, 60, 300, 300]),
        ],
        ids=repr,
    )
    def test_delay_grows_with_the_failures(
        self, broker: Broker, clock: FakeClock, retry: dict[str, Any], seconds: list[int]
    ) -> None:
        broker.create_queue("jobs", retry={"attempts": 5, **retry})
        broker.put("jobs", 1)
        for delay in seconds:
            settled = broker.fail(take(broker), "boom")
            assert (settled.status, settled.ready_at) == ("failed", clock.now() + delay * SECOND)
            if delay:
                clock.advance(delay - 0.5)
                assert take_all(broker) == []
                clock.advance(0.5)
        assert broker.fail(take(broker), "boom").status == "dead"

    def test_function_of_the_program_gives_the_delay(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        broker = open_broker(backoffs={"minutes": lambda failures: min(2**failures, 60) * 60})
        broker.create_queue("jobs", retry={"attempts": 9, "function": "minutes"})
        broker.put("jobs", 1)
        for minutes in (2, 4, 8, 16, 32, 60, 60):
            assert broker.fail(take(broker), "boom").ready_at == clock.now() + minutes * MINUTE
            clock.advance(minutes * 60)

    def test_delay_of_a_function_is_cut_at_a_year_with_a_warning(
        self, open_broker: OpenBroker, clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        broker = open_broker(backoffs={"never": lambda n: 1e300})
        broker.create_queue("jobs", retry={"attempts": 3, "function": "never"})
        broker.put("jobs", 1)
        settled = broker.fail(take(broker), "boom")
        assert settled.ready_at == clock.now() + 365 * DAY
        assert "delay_function_cut function=never days=365" in caplog.text

    def test_function_that_is_unknown_here_does_not_lose_the_item(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "function": "elsewhere"})
        broker.put("jobs", 1)
        settled = broker.fail(take(broker), "boom")
        assert settled.status == "failed"
        assert settled.ready_at is not None
        assert clock.now() < settled.ready_at <= clock.now() + MINUTE

    def test_full_jitter_takes_a_share_of_the_delay(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1h", "jitter": True})
        broker.put_many("jobs", range(40))
        ready = [broker.fail(lease, "boom").ready_at or 0 for lease in take_all(broker)]
        assert all(clock.now() <= at < clock.now() + 60 * MINUTE for at in ready)
        assert len(set(ready)) > 30

    def test_never_means_dead_at_the_first_failure(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 9, "delay": "never"})
        broker.put("jobs", 1)
        assert broker.fail(take(broker), "boom").status == "dead"


class ErrorClassConformance(Suite):
    """Error classes decide only if the settings of the queue say so."""

    def test_classes_decide_nothing_by_themselves(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        for error in (PermissionError("denied"), ValueError("malformed"), Boom("?"), TimeoutError("t")):
            broker.put("jobs", 1)
            settled = broker.fail(take(broker), error)
            assert settled.status == "failed"
            broker.drop(settled.id)

    @pytest.mark.parametrize(
        ("error", "delays"),
        [
            (ConnectionResetError("peer"), [1, 2, 4]),
            (TimeoutError("t"), [1, 2, 4]),
            (Boom("429 too many requests, rate limit"), [1, 2, 4]),
            (MemoryError("m"), [60, 120, 180]),
            (PermissionError("denied"), None),
            (ValueError("malformed"), None),
            (Boom("?"), None),
        ],
        ids=repr,
    )
    def test_classes_decide_where_asked_for(
        self, broker: Broker, clock: FakeClock, error: Exception, delays: list[int] | None
    ) -> None:
        broker.create_queue("jobs", retry={"attempts": 5, "classes": True})
        broker.put("jobs", 1)
        if delays is None:
            settled = broker.fail(take(broker), error)
            assert (settled.status, settled.dead_reason) == ("dead", "final_error")
            return
        for delay in delays:
            assert broker.fail(take(broker), error).ready_at == clock.now() + delay * SECOND
            clock.advance(delay)

    def test_rule_for_a_class_goes_before_that_of_the_queue(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue(
            "jobs", retry={"attempts": 3, "cooldown": "1s", "by_class": {"network": "1m", "validation": "never"}}
        )
        for error, delay in ((Boom("?"), 1), (ConnectionError("x"), 60), (ValueError("x"), None)):
            broker.put("jobs", 1)
            settled = broker.fail(take(broker), error)
            assert settled.ready_at == (None if delay is None else clock.now() + delay * SECOND)

    def test_rule_for_a_type_goes_before_that_of_its_class(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue(
            "jobs",
            retry={
                "attempts": 3,
                "by_class": {"network": "never"},
                "by_type": {"ConnectionError": "1m", "ConnectionResetError": "2m"},
            },
        )
        for error, delay in ((ConnectionError("x"), 60), (ConnectionResetError("x"), 120), (BrokenPipeError("x"), 60)):
            broker.put("jobs", 1)
            assert broker.fail(take(broker), error).ready_at == clock.now() + delay * SECOND

    def test_rule_of_the_queue_says_what_class_an_error_is(self, broker: Broker) -> None:
        broker.create_queue("jobs", error_rules=[{"error_class": "resource", "type": "Boom", "contains": ["no seats"]}])
        classes = []
        for text in ("there are no seats left", "something else"):
            failure = broker.get(kill(broker, error=Boom(text)).id).last_failure
            classes.append(failure and failure.error_class)
        assert classes == ["resource", "permanent"]


class ExpiryConformance(Suite):
    """An item dies after its `expire_deadline`, unless the current delivery completes it."""

    def test_step_makes_expired_items_dead(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        receipt = broker.put("jobs", 1)
        clock.advance("9.999999s")
        assert broker.run_maintenance().expired == 0
        clock.advance(0.000001)
        assert broker.run_maintenance().expired == 1
        item = broker.get(receipt.id)
        assert (item.status, item.dead_reason, item.ended_at) == ("dead", "expired", clock.now())
        assert [entry.event for entry in item.history] == ["expired"]

    def test_lease_makes_expired_items_of_its_queue_dead(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        broker.put_many("jobs", range(5))
        clock.advance("10s")
        broker.put("jobs", "fresh")
        assert take(broker).value == "fresh"
        assert places(broker.stats("jobs")) == {"dead": 5, "active": 1}

    def test_scheduled_item_can_expire_before_it_is_ready(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1, delay="1h", expire_timeout="10s")
        clock.advance("10s")
        broker.run_maintenance()
        assert broker.get(receipt.id).dead_reason == "expired"

    def test_failed_item_can_expire_while_it_waits(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1h"})
        receipt = broker.put("jobs", 1, expire_timeout="10s")
        broker.fail(take(broker), "boom")
        clock.advance("10s")
        broker.run_maintenance()
        item = broker.get(receipt.id)
        assert (item.status, item.dead_reason, item.counters.failures) == ("dead", "expired", 1)

    def test_held_item_can_expire(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1, held_by="breaker", expire_timeout="10s")
        clock.advance("10s")
        broker.run_maintenance()
        assert broker.get(receipt.id).dead_reason == "expired"

    def test_active_item_is_left_alone_and_may_complete(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        broker.put("jobs", 1)
        lease = take(broker, lease_timeout="1h")
        clock.advance("10s")
        assert broker.run_maintenance().expired == 0
        assert broker.complete(lease).status is None

    def test_active_item_that_fails_after_its_deadline_is_dead(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s", retry={"attempts": 9})
        broker.put("jobs", 1)
        lease = take(broker)
        clock.advance("10s")
        settled = broker.fail(lease, "boom")
        assert (settled.status, settled.dead_reason, settled.counters.failures) == ("dead", "expired", 1)

    def test_active_item_that_is_given_back_after_its_deadline_is_dead(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        broker.put("jobs", 1)
        lease = take(broker)
        clock.advance("10s")
        assert broker.release(lease).dead_reason == "expired"

    def test_active_item_that_is_lost_after_its_deadline_is_dead(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="1s")
        broker.put("jobs", 1)
        item = lose(broker, clock)
        assert (item.status, item.dead_reason, item.counters.losses) == ("dead", "expired", 1)

    def test_uncounted_release_after_the_deadline_leaves_it_to_the_sweep(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        broker.put("jobs", 1)
        lease = take(broker)
        clock.advance("10s")
        broker.release(lease, counted=False)
        assert take_all(broker) == []
        assert broker.get(lease.id).dead_reason == "expired"

    def test_failure_by_hand_after_the_deadline_is_death_by_expiry(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 9})
        receipt = broker.put("jobs", 1, expire_timeout="10s")
        clock.advance("10s")
        settled = broker.fail_items(receipt.id, "boom")
        assert (settled.status, settled.dead_reason) == ("dead", "expired")

    def test_expiry_does_not_count_for_the_dead(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        receipt = broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        clock.advance("10s")
        broker.run_maintenance()
        assert broker.get(receipt.id).dead_reason == "retries_exhausted"
        assert len(broker.get(receipt.id).deaths) == 1

    def test_person_sets_the_deadline_anew(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        receipt = broker.put("jobs", 1)
        clock.advance("10s")
        broker.run_maintenance()
        clock.advance("1h")
        broker.retry(receipt.id)
        assert broker.get(receipt.id).expire_deadline == clock.now() + 10 * SECOND
        assert take(broker).id == receipt.id

    def test_automatic_retry_keeps_the_deadline(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s", retry={"attempts": 3, "cooldown": "1s"})
        receipt = broker.put("jobs", 1)
        deadline = clock.now() + 10 * SECOND
        broker.fail(take(broker), "boom")
        clock.advance("1s")
        assert broker.get(receipt.id).expire_deadline == deadline
        assert take(broker).expire_deadline == deadline
