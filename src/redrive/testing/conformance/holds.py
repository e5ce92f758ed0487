"""Held items: pending, but kept from being leased until something releases them."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.errors import InvalidInput
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import kill, take, take_all, values
from redrive.testing.conformance.suite import Suite


class HoldConformance(Suite):
    """Hold and unhold."""

    def test_item_put_held_waits_for_unhold(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1, held_by="breaker")
        item = broker.get(receipt.id)
        assert (item.status, item.held_by) == ("pending", "breaker")
        assert take_all(broker) == []
        assert broker.unhold("breaker") == 1
        assert broker.get(receipt.id).held_by is None
        assert values(take_all(broker)) == [1]

    def test_pending_item_can_be_held(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = [receipt.id for receipt in broker.put_many("jobs", [1, 2, 3])]
        assert broker.hold(ids[:2], "breaker") == 2
        assert values(take_all(broker)) == [3]

    def test_unhold_of_some_leaves_the_others(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = [receipt.id for receipt in broker.put_many("jobs", [1, 2, 3])]
        broker.hold(ids, "breaker")
        assert broker.unhold("breaker", ids[1:2]) == 1
        assert values(take_all(broker)) == [2]
        assert broker.unhold("breaker") == 2
        assert values(take_all(broker)) == [1, 3]

    def test_unhold_concerns_only_its_own_name(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1, held_by="breaker")
        assert broker.unhold("canary") == 0
        assert broker.unhold("canary", [receipt.id]) == 0
        assert take_all(broker) == []

    def test_unheld_item_takes_its_old_place(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = [receipt.id for receipt in broker.put_many("jobs", [1, 2])]
        broker.hold(ids[:1], "breaker")
        clock.advance("1m")
        broker.put("jobs", 3)
        broker.unhold("breaker")
        assert values(take_all(broker)) == [1, 2, 3]

    def test_held_item_that_falls_due_is_still_held(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, delay="1m", held_by="breaker")
        clock.advance("1m")
        broker.step()
        assert take_all(broker) == []
        broker.unhold("breaker")
        assert values(take_all(broker)) == [1]

    def test_unheld_item_is_not_leased_before_it_is_due(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, delay="1m", held_by="breaker")
        broker.unhold("breaker")
        assert take_all(broker) == []
        clock.advance("1m")
        assert values(take_all(broker)) == [1]

    def test_failed_item_can_be_held_and_waits_past_its_time(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1m"})
        receipt = broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        assert broker.hold([receipt.id], "breaker") == 1
        clock.advance("1h")
        broker.step()
        assert take_all(broker) == []
        broker.unhold("breaker")
        assert values(take_all(broker)) == [1]

    def test_items_that_are_neither_pending_nor_failed_are_passed_over(self, broker: Broker) -> None:
        broker.create_queue("jobs", keep_completed="1d")
        dead = kill(broker).id
        broker.put_many("jobs", [1, 2])
        done, active = take_all(broker)
        broker.complete(done)
        assert broker.hold([dead, done.id, active.id, "0" * 32], "breaker") == 0
        assert broker.release(active).status == "pending"
        assert values(take_all(broker)) == [2]

    def test_held_item_is_counted_as_pending(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, held_by="breaker")
        stats = broker.stats("jobs")
        assert (stats.pending, stats.oldest_ready_at) == (1, None)

    def test_more_held_items_than_one_step_are_all_let_go(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = [receipt.id for half in range(2) for receipt in broker.put_many("jobs", range(600))]
        broker.hold(ids[:600], "breaker")
        broker.hold(ids[600:], "breaker")
        assert broker.unhold("breaker") == 1200

    @pytest.mark.parametrize("name", ["", "a\0b", "\ud800"], ids=ascii)
    def test_bad_name_of_a_holder_is_refused(self, broker: Broker, name: str) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        with pytest.raises(InvalidInput):
            broker.hold([receipt.id], name)
        with pytest.raises(InvalidInput):
            broker.unhold(name)
        assert values(take_all(broker)) == [1]
