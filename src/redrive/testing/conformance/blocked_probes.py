"""Circuit breakers whose probes cannot run, or that share items: none waits without a limit."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.broker.flow import run_query
from redrive.contract.queries import GetQueue
from redrive.model.breaker import BreakerState
from redrive.model.duration import SECOND
from redrive.model.ids import ItemId
from redrive.model.queue import Queue
from redrive.testing.conformance.actions import take, take_all
from redrive.testing.conformance.breakers import DOWN, break_down, fail_all, guarded, maintain, only
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


def probes(broker: Broker) -> tuple[ItemId, ...]:
    """Return the probes of the only breaker that is not closed."""
    queue: Queue = broker.run_flow(run_query(GetQueue("jobs")))
    (breaker,) = queue.breakers
    return breaker.probes


def complete_all(broker: Broker, clock: FakeClock, rounds: int = 3) -> None:
    """Complete all leasable items over some seconds, as after the recovery of the dependency."""
    for _ in range(rounds):
        maintain(broker, clock)
        for lease in take_all(broker):
            broker.complete(lease)
    maintain(broker, clock)


class BlockedProbeConformance(Suite):
    """Reasons for which probes cannot be leased, and several breakers that share items."""

    @pytest.mark.parametrize("blocked", ["held before", "held later", "moved"])
    def test_probe_that_a_person_keeps_back_is_replaced(self, broker: Broker, clock: FakeClock, blocked: str) -> None:
        guarded(broker, network={})
        broker.create_queue("others")
        leases = break_down(broker, clock)
        if blocked == "held before":
            broker.hold([leases[0].id], "ada")
        maintain(broker, clock, "30s")
        if blocked == "held later":
            broker.hold(probes(broker), "ada")
        elif blocked == "moved":
            broker.move(probes(broker)[0], "others")
        complete_all(broker, clock)
        assert broker.list_breakers() == ()
        assert broker.stats("jobs").completed_total == 2

    def test_breaker_closes_if_a_person_holds_all_that_waits_for_it(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        leases = break_down(broker, clock)
        broker.hold([lease.id for lease in leases], "ada")
        maintain(broker, clock, "30s")
        assert broker.list_breakers() == ()
        assert {broker.get(lease.id).held_by for lease in leases} == {("ada",)}

    def test_breakers_that_hold_the_same_items_do_not_wait_for_each_other(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        guarded(broker, network={}, fingerprint={"failures": 4})
        broker.update_queue("jobs", retry={"attempts": 9, "base": "1m"})
        broker.put_many("jobs", range(4))
        *first, last = take_all(broker)
        fail_all(broker, first)
        maintain(broker, clock)
        maintain(broker, clock, "30s")  # the breaker of the class has a probe, which is due in 30 s
        broker.update_queue("jobs", retry={"attempts": 9, "base": "1s"})
        broker.fail(last, DOWN)  # and this item is due before that
        maintain(broker, clock)
        assert len(broker.list_breakers()) == 2
        clock.advance("60s")
        complete_all(broker, clock)
        assert broker.list_breakers() == ()
        assert broker.stats("jobs").completed_total == 4

    def test_probes_that_fail_one_after_another_double_the_time_once(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={"probes": 3})
        break_down(broker, clock, 5)
        maintain(broker, clock, "30s")
        first, *others = take_all(broker)
        broker.fail(first, DOWN)
        maintain(broker, clock)
        reopened = only(broker)
        fail_all(broker, others)
        maintain(broker, clock)
        assert take_all(broker) == []
        clock.advance((reopened.next_probe_at - clock.now()) / SECOND - 1)
        maintain(broker, clock)
        assert only(broker).state is BreakerState.HALF_OPEN
        assert len(take_all(broker)) == 3

    def test_probe_that_died_before_and_was_redriven_has_passed(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 1})
        broker.put("jobs", 1)
        broker.fail(take(broker), DOWN)
        (dead,) = broker.find(queue="jobs").items
        broker.redrive(dead.id)
        broker.open_breaker("jobs")
        maintain(broker, clock, "30s")
        broker.complete(take(broker))
        maintain(broker, clock)
        assert broker.list_breakers() == ()

    def test_many_breakers_close_together(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, fingerprint={"failures": 1})
        broker.put_many("jobs", range(10))
        for number, lease in enumerate(take_all(broker)):
            broker.fail(lease, type(f"Down{chr(ord('A') + number)}", (ConnectionError,), {})("no answer"))
        maintain(broker, clock)
        assert len(broker.list_breakers()) == 10
        clock.advance("30s")
        complete_all(broker, clock, rounds=1)
        assert broker.list_breakers() == ()

    def test_clock_that_is_set_back_lets_no_more_probes_through(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        break_down(broker, clock)
        maintain(broker, clock, "30s")
        probe = take(broker)
        clock.set_back("1h")
        broker.fail(probe, DOWN)
        for _ in range(5):
            maintain(broker, clock)
            assert take_all(broker) == []

    def test_queue_that_is_deleted_releases_what_was_moved_from_it(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        broker.create_queue("others")
        for lease in break_down(broker, clock):
            broker.move(lease.id, "others")
        clock.advance("10s")
        assert take_all(broker, "others") == []
        broker.delete_queue("jobs")
        assert len(take_all(broker, "others")) == 3
