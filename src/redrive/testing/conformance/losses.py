"""Leases that ran out: the worker crashed, hung, or was cut off."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.model.item import Counters
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import lose, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, Suite


class LossConformance(Suite):
    """A worker that vanishes costs an attempt and a loss, and not the item."""

    def test_vanished_worker_does_not_kill_the_item(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        item = lose(broker, clock)
        assert (item.status, item.ready_at) == ("pending", clock.now())
        assert item.counters == Counters(deliveries=1, attempts=1, losses=1)
        assert (item.worker, item.lease_deadline) == (None, None)

    def test_loss_is_in_the_history_with_its_worker(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        take(broker, worker="w1", lease_timeout="1s")
        clock.advance("1s")
        broker.step()
        (entry,) = broker.get(receipt.id).history
        assert (entry.event, entry.worker, entry.delivery, entry.at) == ("lost", "w1", 1, clock.now())

    def test_lost_item_goes_to_the_tail(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [0, 1, 2])
        lose(broker, clock)
        assert values(take_all(broker)) == [1, 2, 0]

    def test_lease_is_not_swept_before_its_deadline(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="10s")
        broker.put("jobs", 1)
        take(broker)
        clock.advance("9.999999s")
        assert broker.step().lost == 0
        clock.advance(0.000001)
        assert broker.step().lost == 1
        assert broker.step().lost == 0

    def test_lease_itself_brings_back_what_ran_out(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="10s")
        broker.put("jobs", 1)
        first = take(broker)
        clock.advance("10s")
        second = take(broker)
        assert (second.id, second.counters) == (first.id, Counters(deliveries=2, attempts=2, losses=1))

    def test_lease_brings_back_many_at_once(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="10s")
        broker.put_many("jobs", range(200))
        take_all(broker)
        clock.advance("10s")
        broker.put("jobs", 200)
        assert sorted(values(take_all(broker))) == list(range(201))

    def test_fifth_loss_is_death_by_default(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", max_attempts=0)
        broker.put("jobs", 1)
        items = [lose(broker, clock) for _ in range(5)]
        assert [item.status for item in items] == ["pending"] * 4 + ["dead"]
        assert items[-1].dead_reason == "worker_lost"
        assert items[-1].counters == Counters(deliveries=5, attempts=5, losses=5)

    @pytest.mark.parametrize("most", [1, 2, 7])
    def test_max_losses_bounds_them(self, broker: Broker, clock: FakeClock, most: int) -> None:
        broker.create_queue("jobs", max_attempts=0, max_losses=most)
        broker.put("jobs", 1)
        assert [lose(broker, clock).status for _ in range(most)] == ["pending"] * (most - 1) + ["dead"]

    def test_zero_losses_is_unlimited(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", max_attempts=0, max_losses=0)
        broker.put("jobs", 1)
        assert {lose(broker, clock).status for _ in range(12)} == {"pending"}

    def test_losses_of_an_item_go_before_those_of_its_queue(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", max_losses=4)
        broker.put("jobs", 1, max_losses=2)
        assert [lose(broker, clock).status for _ in range(2)] == ["pending", "dead"]

    def test_loss_at_max_attempts_is_death(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", max_attempts=2)
        broker.put("jobs", 1)
        assert [lose(broker, clock).status for _ in range(2)] == ["pending", "dead"]
        assert broker.stats("jobs").dead == 1

    def test_losses_and_failures_are_counted_apart(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 2}, max_losses=2)
        broker.put("jobs", 1)
        lose(broker, clock)
        settled = broker.fail(take(broker), "boom")
        assert (settled.status, settled.counters) == ("failed", Counters(2, 2, failures=1, losses=1))

    def test_lowered_max_losses_holds_for_the_next_loss(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        take(broker, lease_timeout="1s")
        broker.update_queue("jobs", max_losses=1)
        clock.advance("1s")
        broker.step()
        assert broker.get(receipt.id).dead_reason == "worker_lost"

    def test_worker_killed_by_its_item_makes_a_dead_letter_in_the_dead_queue(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue", max_losses=2)
        broker.put("jobs", "killer")
        lose(broker, clock)
        assert lose(broker, clock).queue == "morgue"
        assert values(take_all(broker, "morgue")) == ["killer"]

    def test_sweeps_of_two_brokers_count_one_loss(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("shared")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs")
        receipt = one.put("jobs", 1)
        take(one, lease_timeout="1s")
        clock.advance("1s")
        assert one.step().lost + two.step().lost == 1
        assert one.get(receipt.id).counters.losses == 1
