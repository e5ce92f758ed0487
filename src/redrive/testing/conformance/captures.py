"""put_failed: work that has failed already, outside of any queue."""

from __future__ import annotations

import pytest

from redrive import Broker, Dead, DeadReason
from redrive.errors import IdempotencyConflict, InvalidPayload
from redrive.model.duration import SECOND
from redrive.model.item import Counters
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import Boom, places, take, take_all, values
from redrive.testing.conformance.suite import Suite


class CaptureConformance(Suite):
    """Born failed or dead, as the queue's settings say."""

    def test_born_dead_without_retry(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put_failed("jobs", {"n": 1}, Boom("why"), headers={"h": "x"})
        item = broker.get(receipt.id)
        assert (item.status, item.dead_reason, item.ended_at) == ("dead", "retries_exhausted", clock.now())
        assert (item.value, dict(item.headers), item.counters) == ({"n": 1}, {"h": "x"}, Counters(failures=1))
        assert [entry.event for entry in item.history] == ["failed"]
        assert item.last_failure is not None
        assert item.last_failure.text == "why"
        assert len(item.deaths) == 1
        assert (item.deaths[0].counters, item.deaths[0].first_leased_at) == (Counters(failures=1), None)
        assert places(broker.stats("jobs")) == {"dead": 1}

    def test_born_failed_with_retry(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"})
        receipt = broker.put_failed("jobs", 1, "why")
        item = broker.get(receipt.id)
        assert (item.status, item.ready_at, item.counters.failures) == ("failed", clock.now() + 30 * SECOND, 1)
        assert take_all(broker) == []
        clock.advance("30s")
        assert [broker.fail(take(broker), "boom").status for _ in range(1)] == ["failed"]
        clock.advance("30s")
        assert broker.fail(take(broker), "boom").status == "dead"

    def test_born_in_the_dead_queue(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        receipt = broker.put_failed("jobs", "x", "why")
        item = broker.get(receipt.id)
        assert (item.queue, item.status) == ("morgue", "pending")
        assert [death.queue for death in item.deaths] == ["jobs"]
        assert values(take_all(broker, "morgue")) == ["x"]
        assert places(broker.stats("jobs")) == {}

    def test_known_key_adds_a_failure_to_the_item_that_is_there(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"})
        first = broker.put_failed("jobs", 1, "one", idempotency_key="k")
        second = broker.put_failed("jobs", 1, "two", idempotency_key="k")
        assert (second.id, second.duplicate) == (first.id, True)
        item = broker.get(first.id)
        assert (item.status, item.counters.failures) == ("failed", 2)
        assert [entry.failure and entry.failure.text for entry in item.history] == ["one", "two"]
        assert places(broker.stats("jobs")) == {"failed": 1}

    def test_failures_under_one_key_count_when_the_next_delivery_is_judged(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"})
        for text in ("one", "two"):
            broker.put_failed("jobs", 1, text, idempotency_key="k")
        clock.advance("30s")
        settled = broker.fail(take(broker), "three")
        assert (settled.status, settled.counters.failures) == ("dead", 3)

    def test_failure_under_the_key_of_a_dead_item_leaves_it_dead(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_failed("jobs", 1, "one", idempotency_key="k")
        receipt = broker.put_failed("jobs", 1, "two", idempotency_key="k")
        item = broker.get(receipt.id)
        assert (item.status, len(item.deaths), len(item.history)) == ("dead", 1, 2)
        assert places(broker.stats("jobs")) == {"dead": 1}

    def test_failure_under_the_key_of_an_active_item_leaves_its_lease(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        broker.put("jobs", 1, idempotency_key="k")
        lease = take(broker)
        broker.put_failed("jobs", 1, "elsewhere", idempotency_key="k")
        assert broker.get(lease.id).status == "active"
        assert broker.complete(lease).status is None

    def test_known_key_with_another_payload_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put_failed("jobs", 1, "one", idempotency_key="k")
        before = broker.get(receipt.id)
        with pytest.raises(IdempotencyConflict):
            broker.put_failed("jobs", 2, "two", idempotency_key="k")
        assert broker.get(receipt.id) == before

    def test_program_may_bring_its_own_verdict(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        receipt = broker.put_failed("jobs", 1, "why", verdict=Dead(DeadReason.POLICY))
        assert broker.get(receipt.id).dead_reason == "policy"

    def test_bad_payload_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidPayload):
            broker.put_failed("jobs", float("nan"), "why")
        assert places(broker.stats("jobs")) == {}

    def test_redriven_capture_is_ordinary_work(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put_failed("jobs", "x", "why")
        broker.redrive(receipt.id)
        lease = take(broker)
        assert (lease.value, lease.failures, lease.redrives) == ("x", 0, 1)
        assert broker.complete(lease).status is None
