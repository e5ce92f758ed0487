"""Release: an item is given back, counted (a nack) or not (it never ran)."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker, new_item
from redrive.errors import InvalidInput
from redrive.model.duration import SECOND
from redrive.model.item import Counters
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import take, take_all, values
from redrive.testing.conformance.suite import Suite


class ReleaseConformance(Suite):
    """Counted: the attempt is spent and the item goes to the tail."""

    def test_given_back_item_is_pending_and_its_attempt_is_spent(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        clock.advance("5s")
        settled = broker.release(take(broker))
        assert (settled.status, settled.ready_at) == ("pending", clock.now())
        assert settled.counters == Counters(deliveries=1, attempts=1)

    def test_delay_keeps_it_from_being_leased(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        settled = broker.release(take(broker), delay="10s")
        assert (settled.status, settled.ready_at) == ("pending", clock.now() + 10 * SECOND)
        clock.advance("9s")
        assert take_all(broker) == []
        clock.advance("1s")
        assert values(take_all(broker)) == [1]

    def test_text_of_the_error_goes_into_the_history(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        settled = broker.release(take(broker, worker="w1"), error="not my turn")
        (entry,) = broker.get(settled.id).history
        assert (entry.event, entry.note, entry.worker, entry.delivery) == ("released", "not my turn", "w1", 1)
        assert (entry.at, entry.queue) == (clock.now(), "jobs")

    def test_release_never_counts_a_failure(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 2})
        broker.put("jobs", 1)
        for _ in range(3):
            assert broker.release(take(broker), error="busy").counters.failures == 0

    def test_explicit_give_back_dies_at_max_attempts(self, broker: Broker) -> None:
        """An ancestor checked the limit at time-outs only, so that an item given back by hand lived for ever."""
        broker.create_queue("jobs", max_attempts=2)
        broker.put("jobs", 1)
        assert broker.release(take(broker)).status == "pending"
        settled = broker.release(take(broker), delay="1h", error="again")
        assert (settled.status, settled.dead_reason, settled.ready_at) == ("dead", "max_attempts", None)

    @pytest.mark.parametrize("delay", [-1, "x", "40000d", float("inf"), True], ids=repr)
    def test_bad_delay_is_refused(self, broker: Broker, delay: Any) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(InvalidInput):
            broker.release(lease, delay=delay)
        assert broker.get(lease.id).status == "active"


class UncountedReleaseConformance(Suite):
    """Not counted: it never ran, so nothing is spent and it takes its old place."""

    def test_attempt_is_taken_back_and_the_delivery_stays(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        for n in (1, 2, 3):
            settled = broker.release(take(broker), counted=False)
            assert settled.status == "pending"
            assert settled.counters == Counters(deliveries=n, attempts=0)

    def test_item_takes_its_old_place(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [0, 1, 2])
        leases = take_all(broker)
        clock.advance("1h")
        broker.put("jobs", 3)
        for lease in reversed(leases):
            broker.release(lease, counted=False)
        assert values(take_all(broker)) == [0, 1, 2, 3]

    def test_item_takes_its_old_place_in_its_priority(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [new_item("a", priority=7), new_item("b", priority=7), new_item("c", priority=9)])
        leases = take_all(broker)
        for lease in leases:
            broker.release(lease, counted=False)
        assert values(take_all(broker)) == ["c", "a", "b"]

    def test_place_is_the_one_it_had_before_this_lease(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [0, 1, 2])
        broker.release(take(broker))
        one = take(broker)
        assert one.value == 1
        two, zero = take_all(broker)
        for lease in (zero, two, one):
            broker.release(lease, counted=False)
        assert values(take_all(broker)) == [1, 2, 0]

    def test_it_never_kills(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_attempts=1, max_losses=1)
        broker.put("jobs", 1)
        for _ in range(10):
            assert broker.release(take(broker), counted=False).status == "pending"

    def test_history_is_written_only_with_a_text(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        broker.release(take(broker), counted=False)
        assert broker.get(receipt.id).history == ()
        broker.release(take(broker), counted=False, error="deploy")
        (entry,) = broker.get(receipt.id).history
        assert (entry.event, entry.note) == ("returned", "deploy")

    def test_failures_and_losses_stay(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        take(broker, lease_timeout="1s")
        clock.advance("1s")
        settled = broker.release(take(broker), counted=False)
        assert settled.counters == Counters(deliveries=3, attempts=2, failures=1, losses=1)
