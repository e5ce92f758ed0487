"""Failures in the feed: each has one entry, with its error class and fingerprint."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker
from redrive.contract.item_calls import Settle
from redrive.contract.queries import ReadFeed
from redrive.model.classify import ErrorClass
from redrive.model.death import DeadReason
from redrive.model.failure import Failure
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict, Verdict
from redrive.testing.conformance.actions import kill, lose, take
from redrive.testing.conformance.suite import StoreDriver, StoreSuite
from redrive.testing.fake_clock import FakeClock

DOWN = Failure("ConnectionError", "no route to host", error_class=ErrorClass.NETWORK, fingerprint="0123456789abcdef")
DOWN_ERROR = ("network", "0123456789abcdef")
"""The error class and fingerprint in entries of that failure."""


def failures(broker: Broker) -> list[tuple[str, str | None, str | None]]:
    """Return the kinds of all entries, each with its error class and fingerprint."""
    return [(entry.kind.value, entry.error_class, entry.fingerprint) for entry in broker.feed().entries]


class FailureEntriesConformance(StoreSuite):
    """Entries that report a failure have its class and fingerprint, and each failure has one entry."""

    @pytest.mark.parametrize("kept", [{}, {"dead_queue": "morgue"}, {"on_dead": "drop"}])
    def test_failed_attempt_and_death_have_the_class_of_their_failure(
        self, broker: Broker, kept: dict[str, Any]
    ) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", retry={"attempts": 2}, **kept)
        broker.put("jobs", 1)
        for _ in range(2):
            broker.fail(take(broker), DOWN)
            broker.run_maintenance()
        assert failures(broker) == [("failed", *DOWN_ERROR), ("dead", *DOWN_ERROR)]

    def test_failure_that_is_put_has_its_class_also_under_a_known_key(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 9})
        broker.create_queue("final")
        broker.put_failed("jobs", 1, DOWN, idempotency_key="k")
        broker.put_failed("jobs", 1, DOWN, idempotency_key="k")
        broker.run_maintenance()
        lease = take(broker)
        broker.put_failed("jobs", 1, DOWN, idempotency_key="k")
        broker.fail(lease, DOWN)
        broker.put_failed("final", 1, DOWN)
        assert failures(broker) == [*[("failed", *DOWN_ERROR)] * 4, ("dead", *DOWN_ERROR)]

    def test_failure_by_hand_has_its_class(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 2})
        id = broker.put("jobs", 1).id
        broker.fail_items(id, DOWN, actor="ada")
        broker.fail_items(id, DOWN, actor="ada")
        assert failures(broker) == [("failed", *DOWN_ERROR), ("dead", *DOWN_ERROR)]

    def test_dead_item_that_fails_again_has_the_class(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        id = kill(broker, error=DOWN).id
        broker.fail(broker.lease_by_id(id, include_dead=True), DOWN)
        assert failures(broker) == [("dead", *DOWN_ERROR), ("failed", *DOWN_ERROR)]

    @pytest.mark.parametrize(
        ("verdict", "kind"), [(RetryVerdict(), "lost"), (Dead(DeadReason.WORKER_LOST), "dead")], ids=["lost", "dead"]
    )
    @pytest.mark.parametrize("failure", [DOWN, None], ids=["known", "unknown"])
    def test_lost_lease_has_the_class_if_the_failure_is_known(
        self, direct: StoreDriver, verdict: Verdict, kind: str, failure: Failure | None
    ) -> None:
        direct.queue()
        direct.put(b"a")
        token, version = direct.take().token, direct.version()
        direct.do(Settle(token, OutcomeKind.LOST, verdict, version, failure, worker_is_gone=True))
        (entry,) = direct.read(ReadFeed()).entries
        expected = (None, None) if failure is None else DOWN_ERROR
        assert (entry.kind, entry.error_class, entry.fingerprint) == (kind, *expected)

    def test_what_is_no_failure_has_no_class(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", feed="all", retry={"attempts": 9})
        id = broker.put("jobs", 1).id
        lose(broker, clock)
        broker.release(take(broker))
        broker.release(take(broker), counted=False, error="not mine")
        broker.bury(take(broker), note="odd")
        broker.redrive(id)
        broker.put("jobs", 1, expire_timeout="1s", priority=9)
        clock.advance("1s")
        broker.run_maintenance()
        broker.complete(take(broker))
        entries = broker.feed().entries
        assert {entry.kind.value for entry in entries} == {
            *("put", "leased", "lost", "released", "returned", "dead", "redriven", "completed")
        }
        assert {(entry.error_class, entry.fingerprint, entry.breaker) for entry in entries} == {(None, None, None)}

    def test_every_failure_that_is_counted_has_one_entry(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        id = broker.put_failed("jobs", 1, "boom", idempotency_key="k").id
        broker.put_failed("jobs", 1, "boom", idempotency_key="k")
        broker.put_failed("jobs", 2, DOWN, retry={"attempts": 1})
        broker.fail_items(id, "boom")
        kill(broker)
        lost = broker.put("jobs", 3, priority=9).id
        lose(broker, clock)
        broker.fail(broker.lease_by_id(lost), "boom")
        reported = [entry for entry in broker.feed().entries if entry.error_class is not None]
        assert len(reported) == broker.stats("jobs").failed_total == 6
        assert {entry.kind.value for entry in reported} == {"failed", "dead"}
