"""Expiry: work that is no longer worth doing."""

from __future__ import annotations

from redrive import Broker
from redrive.model.duration import SECOND
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import lose, places, take, take_all
from redrive.testing.conformance.suite import Suite


class ExpiryConformance(Suite):
    """An item whose expire_deadline passed dies, unless the delivery that is running completes it."""

    def test_step_makes_expired_items_dead(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        receipt = broker.put("jobs", 1)
        clock.advance("9.999999s")
        assert broker.step().expired == 0
        clock.advance(0.000001)
        assert broker.step().expired == 1
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
        broker.step()
        assert broker.get(receipt.id).dead_reason == "expired"

    def test_failed_item_can_expire_while_it_waits(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1h"})
        receipt = broker.put("jobs", 1, expire_timeout="10s")
        broker.fail(take(broker), "boom")
        clock.advance("10s")
        broker.step()
        item = broker.get(receipt.id)
        assert (item.status, item.dead_reason, item.counters.failures) == ("dead", "expired", 1)

    def test_held_item_can_expire(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1, held_by="breaker", expire_timeout="10s")
        clock.advance("10s")
        broker.step()
        assert broker.get(receipt.id).dead_reason == "expired"

    def test_active_item_is_left_alone_and_may_complete(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        broker.put("jobs", 1)
        lease = take(broker, lease_timeout="1h")
        clock.advance("10s")
        assert broker.step().expired == 0
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
        settled = broker.fail_by_hand(receipt.id, "boom")
        assert (settled.status, settled.dead_reason) == ("dead", "expired")

    def test_expiry_does_not_count_for_the_dead(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        receipt = broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        clock.advance("10s")
        broker.step()
        assert broker.get(receipt.id).dead_reason == "retries_exhausted"
        assert len(broker.get(receipt.id).deaths) == 1

    def test_person_sets_the_deadline_anew(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="10s")
        receipt = broker.put("jobs", 1)
        clock.advance("10s")
        broker.step()
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
