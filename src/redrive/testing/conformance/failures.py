"""Fail: retry or death by counters, settings and error; one history entry per unsuccessful attempt and redrive."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redrive import Broker, Dead, DeadReason, Failure, RetryVerdict, Status
from redrive.errors import InvalidSetting
from redrive.model.classify import ErrorClass, ErrorRule
from redrive.model.duration import SECOND
from redrive.model.item import Counters
from redrive.model.retry_policy import Backoff, RetryPolicy
from redrive.testing.conformance.actions import Boom, kill, lose, take, take_all
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock

COMPLETE = Failure(
    "go/net.OpError",
    "dial tcp: refused",
    traceback="goroutine 1",
    error_class=ErrorClass.NETWORK,
    fingerprint="0123456789abcdef",
    worker="w1",
    final=True,
    bases=("error",),
    host="db-1",
    duration=1_200_000,
    trace_id="0af7651916cd43dd8448eb211c80319c",
    locals="é = 1\n    amount = 17",
    signal="SIGSEGV",
    exit_code=-9,
    peak_memory=2**53 - 1,
    retry_after=90_000_000,
)
"""A failure with all fields set."""


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

    def test_members_of_enumerations_may_be_given_as_text(self, broker: Broker) -> None:
        said: Any = "network"
        rule = ErrorRule(said, contains=("no such host",))
        schedule: Any = "list"
        retry = RetryPolicy(attempts=3, delay=Backoff(schedule, delays=(SECOND,)))
        broker.create_queue("jobs", error_rules=[rule], retry=retry, final_errors=["poison"])
        for error in (Boom("no such host"), Failure("Lost", "no route", error_class=said)):
            broker.put("jobs", 1)
            lease = take(broker)
            assert broker.fail(lease, error).status is Status.FAILED
            failure = broker.get(lease.id).last_failure
            assert failure is not None
            assert failure.error_class is ErrorClass.NETWORK
        broker.put("jobs", 1)
        assert broker.fail(take(broker), Failure("Lost", "x", error_class=said), final=True).status is Status.DEAD
        assert broker.count(error_class="network") == 1
        unknown: Any = "weekly"
        for make in (lambda: ErrorRule(unknown, type="X"), lambda: Backoff(unknown)):
            with pytest.raises(InvalidSetting, match="must be one of"):
                make()

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
        """Regression test: a predecessor reset the counters, so that items with two attempts or more never died."""
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"})
        receipt = broker.put("jobs", 1)
        for n in (1, 2):
            broker.fail(take(broker), "boom")
            clock.advance("30s")
            broker.run_maintenance()
            item = broker.get(receipt.id)
            assert (item.status, item.counters) == ("pending", Counters(deliveries=n, attempts=n, failures=n))
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
        self.require("supports_processes")
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
            ("redrive.testing.conformance.actions.Boom", Boom("x"), "dead"),
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
        settled = broker.fail(take(broker), "boom", verdict=RetryVerdict(90 * SECOND, Status.FAILED))
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

    def test_every_field_of_a_failure_comes_back(self, broker: Broker) -> None:
        """Check each form of storage, and each later status of the item."""
        assert all(getattr(COMPLETE, field.name) != field.default for field in msgspec.structs.fields(COMPLETE))
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        broker.put("jobs", 1)
        broker.fail(take(broker), COMPLETE, verdict=RetryVerdict())
        broker.report_lost(take(broker), COMPLETE)
        reported = broker.redrive(broker.fail(take(broker), COMPLETE).id)
        by_hand = broker.put("jobs", 2)
        broker.fail_items(by_hand.id, COMPLETE)
        captured = broker.put_failed("jobs", 3, COMPLETE)
        for id, count in ((reported.id, 3), (by_hand.id, 1), (captured.id, 1)):
            found = [entry.failure for entry in broker.get(id, redacted=False).history if entry.failure]
            assert found == [COMPLETE] * count

    def test_every_field_of_a_failure_is_exported_and_imported(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("copies")
        kill(broker, error=COMPLETE)
        broker.import_items(list(broker.export(redacted=False)), queue="copies")
        (copy,) = broker.find(queue="copies", redacted=False).items
        assert copy.last_failure == COMPLETE

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


class HistoryConformance(Suite):
    """The history of an item, oldest entry first."""

    def test_every_ending_but_completion_is_on_record(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 5})
        receipt = broker.put("jobs", 1)
        broker.fail(take(broker, worker="w1"), "one")
        clock.advance("1s")
        broker.release(take(broker, worker="w2"))
        lose(broker, clock)
        broker.bury(take(broker), note="enough")
        broker.retry(receipt.id, actor="ada")
        history = broker.get(receipt.id).history
        assert [entry.event for entry in history] == ["failed", "released", "lost", "buried", "redriven"]
        assert [entry.delivery for entry in history] == [1, 2, 3, 4, 4]
        assert [entry.worker for entry in history][:2] == ["w1", "w2"]
        assert {entry.queue for entry in history} == {"jobs"}
        assert [entry.at for entry in history] == sorted(entry.at for entry in history)

    def test_nothing_is_written_at_lease_and_extension(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        broker.extend(lease)
        assert broker.get(lease.id).history == ()

    def test_first_5_and_last_45_are_kept_and_the_rest_counted(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_attempts=0)
        receipt = broker.put("jobs", 1)
        for n in range(1, 71):
            broker.release(take(broker), error=str(n))
            if n in (49, 50, 51, 70):
                item = broker.get(receipt.id)
                kept = list(range(1, n + 1)) if n <= 50 else [1, 2, 3, 4, 5, *range(n - 44, n + 1)]
                assert [int(entry.note or 0) for entry in item.history] == kept
                assert item.history_omitted == max(0, n - 50)

    def test_history_and_what_was_omitted_survive_a_move(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", max_attempts=60, dead_queue="morgue")
        receipt = broker.put("jobs", 1)
        for n in range(1, 61):
            broker.release(take(broker), error=str(n))
        item = broker.get(receipt.id)
        assert (item.queue, len(item.history), item.history_omitted) == ("morgue", 50, 10)
        assert item.history[-1].note == "60"
        broker.redrive(item.id, actor="ada")
        item = broker.get(receipt.id)
        assert (item.queue, len(item.history), item.history_omitted) == ("jobs", 50, 11)
        assert (item.history[-1].event, item.history[-1].queue) == ("redriven", "morgue")

    def test_failure_is_kept_whole_across_redrives(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        try:
            raise ValueError("bad 🦆")
        except ValueError as error:
            broker.fail(take(broker), error)
        before = broker.get(receipt.id).last_failure
        assert before is not None
        assert (before.type, before.text, before.error_class) == ("ValueError", "bad 🦆", "validation")
        assert before.traceback is not None
        assert "test_failure_is_kept_whole" in before.traceback
        assert len(before.fingerprint) == 16
        broker.redrive(receipt.id)
        assert broker.get(receipt.id).last_failure == before
