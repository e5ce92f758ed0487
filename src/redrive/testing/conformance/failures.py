"""Fail: tried again or dead, by the counters, the settings and the error."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Again, Broker, Dead, DeadReason, Failure, Status
from redrive.model.item import Counters
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import Boom, kill, take, take_all
from redrive.testing.conformance.suite import OpenBroker, Suite

SECOND = 1_000_000
MINUTE = 60 * SECOND


class FailConformance(Suite):
    """A worker reports a failure."""

    @pytest.mark.parametrize("retry", [None, {"attempts": 0}, {"attempts": 1}], ids=repr)
    def test_without_retry_the_first_failure_is_a_dead_letter_with_its_error(self, broker: Broker, retry: Any) -> None:
        broker.create_queue("jobs", **({} if retry is None else {"retry": retry}))
        broker.put("jobs", {"to": "ada"})
        settled = broker.fail(take(broker, worker="w1"), Boom("no such host"))
        item = broker.get(settled.id)
        assert (settled.status, settled.dead_reason) == ("dead", "retries_exhausted")
        assert (item.status, item.dead_reason, item.value) == ("dead", "retries_exhausted", {"to": "ada"})
        assert item.counters == Counters(deliveries=1, attempts=1, failures=1)
        assert item.last_failure is not None
        assert item.last_failure.type.endswith("Boom")
        assert item.last_failure.text == "no such host"
        assert [(entry.event, entry.worker) for entry in item.history] == [("failed", "w1")]

    def test_failing_item_gets_as_many_tries_as_retry_says(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        broker.put("jobs", 1)
        endings = [broker.fail(take(broker), "boom") for _ in range(3)]
        assert [settled.status for settled in endings] == ["failed", "failed", "dead"]
        assert [settled.counters.failures for settled in endings] == [1, 2, 3]
        assert endings[-1].dead_reason == "retries_exhausted"
        assert take_all(broker) == []

    def test_settle_tells_status_counters_and_when_it_is_ready(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"})
        broker.put("jobs", 1)
        settled = broker.fail(take(broker), "boom")
        assert (settled.status, settled.ready_at) == (Status.FAILED, clock.now() + 30 * SECOND)
        assert settled.counters == Counters(deliveries=1, attempts=1, failures=1)
        item = broker.get(settled.id)
        assert (item.status, item.ready_at, item.counters) == (settled.status, settled.ready_at, settled.counters)
        assert (item.worker, item.lease_deadline, item.dead_reason) == (None, None, None)

    def test_automatic_retry_keeps_the_counters(self, broker: Broker, clock: FakeClock) -> None:
        """The cooldown of one ancestor zeroed the count, so that items with two tries or more never died."""
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"})
        receipt = broker.put("jobs", 1)
        for n in (1, 2):
            broker.fail(take(broker), "boom")
            clock.advance("30s")
            broker.step()
            item = broker.get(receipt.id)
            assert (item.status, item.counters) == ("pending", Counters(deliveries=n, attempts=n, failures=n))
        assert broker.fail(take(broker), "boom").status == "dead"

    def test_retries_of_an_item_go_before_those_of_its_queue(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 2})
        broker.put("jobs", 1, retry_attempts=3)
        assert [broker.fail(take(broker), "boom").status for _ in range(3)] == ["failed", "failed", "dead"]

    def test_item_may_have_fewer_retries_than_its_queue(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 5})
        broker.put("jobs", 1, retry_attempts=0)
        assert broker.fail(take(broker), "boom").status == "dead"

    def test_setting_edited_after_the_put_holds_for_the_next_failure(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        first = take(broker)
        broker.update_queue("jobs", retry={"attempts": 2})
        assert broker.fail(first, "boom").status == "failed"
        second = take(broker)
        broker.update_queue("jobs", retry={"attempts": 3})
        assert broker.fail(second, "boom").status == "failed"

    def test_lowered_setting_holds_for_the_next_failure(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 9})
        broker.put("jobs", 1)
        lease = take(broker)
        broker.update_queue("jobs", retry=None)
        assert broker.fail(lease, "boom").status == "dead"

    def test_setting_edited_by_another_broker_holds_too(self, open_broker: OpenBroker) -> None:
        self.require("shared")
        worker, person = open_broker(), open_broker()
        worker.create_queue("jobs", retry={"attempts": 9})
        worker.put("jobs", 1)
        assert worker.fail(take(worker), "boom").status == "failed"
        lease = take(worker)
        person.update_queue("jobs", retry=None)
        assert worker.fail(lease, "boom").status == "dead"

    def test_final_failure_is_dead_at_once(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 9})
        broker.put("jobs", 1)
        settled = broker.fail(take(broker), "boom", final=True)
        assert (settled.status, settled.dead_reason, settled.counters.failures) == ("dead", "final_error", 1)

    @pytest.mark.parametrize(
        ("listed", "error", "status"),
        [
            ("ValueError", ValueError("x"), "dead"),
            ("ValueError", UnicodeError("x"), "dead"),
            ("Exception", Boom("x"), "dead"),
            ("Boom", Boom("x"), "dead"),
            ("redrive.testing.conformance.deliveries.Boom", Boom("x"), "dead"),
            ("UnicodeError", ValueError("x"), "failed"),
            ("Value", ValueError("x"), "failed"),
            ("validation", ValueError("x"), "dead"),
            ("network", ConnectionResetError("x"), "dead"),
            ("network", ValueError("x"), "failed"),
        ],
    )
    def test_listed_type_and_its_subclasses_are_final(
        self, broker: Broker, listed: str, error: Exception, status: str
    ) -> None:
        broker.create_queue("jobs", retry={"attempts": 9}, final_errors=[listed])
        broker.put("jobs", 1)
        settled = broker.fail(take(broker), error)
        assert settled.status == status
        assert settled.dead_reason == ("final_error" if status == "dead" else None)

    def test_worker_may_bring_its_own_delay(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        settled = broker.fail(take(broker), "boom", verdict=Again(90 * SECOND, Status.FAILED))
        assert (settled.status, settled.ready_at) == ("failed", clock.now() + 90 * SECOND)
        assert settled.counters.failures == 1

    @pytest.mark.parametrize("reason", [DeadReason.POLICY, DeadReason.UNDECODABLE, DeadReason.UNKNOWN_HANDLER])
    def test_worker_may_bring_its_own_death(self, broker: Broker, reason: DeadReason) -> None:
        broker.create_queue("jobs", retry={"attempts": 9})
        broker.put("jobs", 1)
        settled = broker.fail(take(broker), "boom", verdict=Dead(reason))
        assert (settled.status, settled.dead_reason) == ("dead", reason)
        assert broker.get(settled.id).dead_reason == reason

    def test_failure_may_come_as_fields(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        failure = Failure(
            "go/net.OpError", "dial tcp: refused", traceback="goroutine 1", fingerprint="0123456789abcdef"
        )
        settled = broker.fail(take(broker), failure)
        assert broker.get(settled.id).last_failure == failure

    @pytest.mark.parametrize(
        "text", ["a\0b", "\ud800", "x" * 50_000_000, "\x1b[31mred", "", "🦆"], ids=lambda t: ascii(t)[:12]
    )
    def test_recording_a_failure_never_fails(self, broker: Broker, text: str) -> None:
        broker.create_queue("jobs")
        for error in (text, Boom(text)):
            failure = broker.get(kill(broker, error=error).id).last_failure
            assert failure is not None
            assert "\0" not in failure.text
            assert len(failure.text) < 10_000
            failure.text.encode()

    def test_error_that_cannot_be_printed_is_recorded(self, broker: Broker) -> None:
        class Unprintable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no")

        broker.create_queue("jobs")
        failure = broker.get(kill(broker, error=Unprintable()).id).last_failure
        assert failure is not None
        assert failure.type.endswith("Unprintable")


class LimitConformance(Suite):
    """max_attempts bounds deliveries, whatever ends them."""

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

    def test_more_retries_of_an_item_raise_the_default_limit(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, retry_attempts=8)
        assert [broker.fail(take(broker), "boom").status for _ in range(8)] == ["failed"] * 7 + ["dead"]

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
    """How long a failed item waits."""

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
    """Classes decide only where the queue asks for it."""

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
        broker.create_queue("jobs", error_rules=[{"error_class": "resource", "type": "Boom", "words": ["no seats"]}])
        classes = []
        for text in ("there are no seats left", "something else"):
            failure = broker.get(kill(broker, error=Boom(text)).id).last_failure
            classes.append(failure and failure.error_class)
        assert classes == ["resource", "permanent"]
