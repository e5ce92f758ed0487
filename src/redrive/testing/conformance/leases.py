"""Lease: eligibility, order, fields of a lease; held items are not leased."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker, new_item
from redrive.errors import InvalidInput
from redrive.model.duration import SECOND
from redrive.testing.conformance.actions import kill, take, take_all, values
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class LeaseConformance(Suite):
    """The lease of one item to one worker, until a deadline."""

    def test_leased_item_is_active_until_its_deadline(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="30s")
        put_at = clock.now()
        receipt = broker.put("jobs", {"n": 1}, headers={"h": "x"}, priority=7, expire_timeout="1h")
        leased_at = clock.advance("5s")
        lease = take(broker, worker="w1")
        item = broker.get(receipt.id)
        assert (lease.id, lease.queue, lease.value, dict(lease.headers)) == (receipt.id, "jobs", {"n": 1}, {"h": "x"})
        assert (lease.priority, lease.put_at, lease.worker) == (7, put_at, "w1")
        assert (lease.leased_at, lease.first_leased_at) == (leased_at, leased_at)
        assert lease.deadline == leased_at + 30 * SECOND
        assert lease.expire_deadline == put_at + 3600 * SECOND
        assert (item.status, item.worker, item.lease_deadline) == ("active", "w1", lease.deadline)
        assert item.first_leased_at == leased_at

    def test_lease_counts_a_delivery_and_an_attempt(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 5})
        receipt = broker.put("jobs", 1)
        for n in (1, 2, 3):
            lease = take(broker)
            assert (lease.deliveries, lease.attempts, lease.failures, lease.losses) == (n, n, n - 1, 0)
            assert broker.get(receipt.id).counters == lease.counters
            broker.fail(lease, "boom")

    def test_first_leased_at_stays_that_of_the_first_lease(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        clock.advance("1m")
        first = take(broker)
        broker.release(first)
        clock.advance("1m")
        assert take(broker).first_leased_at == first.leased_at

    def test_leased_item_is_not_given_to_another_worker(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        take(broker)
        assert take_all(broker) == []

    def test_tokens_are_unique_and_do_not_come_back(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_attempts=0)
        broker.put_many("jobs", range(50))
        tokens = []
        for _ in range(3):
            leases = take_all(broker)
            tokens += [lease.token for lease in leases]
            for lease in leases:
                broker.release(lease)
        assert len(set(tokens)) == 150
        # The end of a token is random: that its last 16 digits all differ is enough evidence.
        assert len({token[-16:] for token in tokens}) == 150

    def test_limit_bounds_what_is_given(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(5))
        assert values(broker.lease("jobs", 2)) == [0, 1]
        assert values(broker.lease("jobs", 2)) == [2, 3]
        assert values(broker.lease("jobs", 2)) == [4]
        assert broker.lease("jobs", 2) == []

    def test_lease_timeout_of_the_call_goes_before_that_of_the_queue(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="30s")
        broker.put("jobs", 1)
        assert take(broker, lease_timeout="5m").deadline == clock.now() + 300 * SECOND

    def test_queues_do_not_see_each_others_items(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("mails")
        broker.put("mails", "m")
        assert take_all(broker) == []
        assert values(take_all(broker, "mails")) == ["m"]

    @pytest.mark.parametrize(
        "options",
        [
            {"limit": 0},
            {"limit": -1},
            {"limit": 10**9},
            {"limit": 1.0},
            {"limit": True},
            {"lease_timeout": 0},
            {"lease_timeout": -1},
            {"lease_timeout": "a bit"},
            {"lease_timeout": "40000d"},
            {"wait": -1},
            {"wait": "x"},
            {"worker": "a\0b"},
            {"worker": ""},
        ],
        ids=repr,
    )
    def test_bad_option_of_lease_is_refused(self, broker: Broker, options: dict[str, Any]) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        with pytest.raises(InvalidInput):
            broker.lease("jobs", **options)
        assert values(take_all(broker)) == [1]


class OrderConformance(Suite):
    """Order: priority, then the instant at which an item became ready, then the order of arrival at the tail."""

    def test_items_are_leased_in_the_order_of_their_puts(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        for n in range(20):
            broker.put("jobs", n)
        assert values(take_all(broker)) == list(range(20))

    def test_larger_priority_goes_first(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        for n in (3, 9, 0, 5, 7, 1, 8, 2, 6, 4):
            broker.put("jobs", n, priority=n)
        assert values(take_all(broker)) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]

    def test_default_priority_is_five(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        for value, options in (("low", {"priority": 4}), ("default", {}), ("high", {"priority": 6})):
            broker.put("jobs", value, **options)  # type: ignore[arg-type]  # the options of a table
        assert values(take_all(broker)) == ["high", "default", "low"]

    def test_item_ready_earlier_goes_first(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", "at 20", delay="20s")
        broker.put("jobs", "at 10", delay="10s")
        broker.put("jobs", "at 0")
        clock.advance("30s")
        broker.put("jobs", "at 30")
        assert values(take_all(broker)) == ["at 0", "at 10", "at 20", "at 30"]

    def test_items_ready_at_one_instant_go_by_their_puts(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", "first", delay="10s")
        clock.advance("5s")
        broker.put("jobs", "second", delay="5s")
        clock.advance("5s")
        broker.put("jobs", "third")
        assert values(take_all(broker)) == ["first", "second", "third"]

    def test_priority_goes_before_waiting_time(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", "old")
        clock.advance("1d")
        broker.put("jobs", "urgent", priority=6)
        assert values(take_all(broker)) == ["urgent", "old"]

    def test_given_back_item_goes_to_the_tail_under_a_frozen_clock(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [0, 1, 2])
        broker.release(take(broker))
        assert values(take_all(broker)) == [1, 2, 0]

    def test_tail_is_the_tail_of_the_items_own_priority(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [new_item("a", priority=7), new_item("b", priority=7), "c"])
        broker.release(take(broker))
        assert values(take_all(broker)) == ["b", "a", "c"]

    def test_retried_item_goes_behind_what_was_ready_before_it(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "10s"})
        broker.put_many("jobs", ["a", "b"])
        broker.fail(take(broker), "boom")
        clock.advance("5s")
        broker.put("jobs", "c")
        clock.advance("10s")
        broker.put("jobs", "d")
        assert values(take_all(broker)) == ["b", "c", "a", "d"]

    def test_settled_items_keep_the_order_in_which_they_were_given_back(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        broker.put_many("jobs", range(6))
        leases = take_all(broker)
        for lease in reversed(leases):
            broker.release(lease)
        assert values(take_all(broker)) == [5, 4, 3, 2, 1, 0]

    def test_scheduled_items_of_high_priority_do_not_hide_ready_ones(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [new_item(n, priority=9, delay="1h") for n in range(1200)])
        broker.put("jobs", "ready", priority=0)
        assert values(take_all(broker)) == ["ready"]

    def test_more_items_than_one_step_brings_in_fall_due_in_order(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        for start in (0, 800, 1600):
            broker.put_many("jobs", [new_item(n, delay="1h") for n in range(start, start + 800)])
        clock.advance("1h")
        found: list[Any] = []
        while leases := take_all(broker):
            found += values(leases)
        assert found == list(range(2400))


class EligibilityConformance(Suite):
    """Eligible items: pending, not held, ready, not expired, in a queue that is not paused."""

    def test_scheduled_item_is_leased_from_its_instant_on(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, delay="10s")
        clock.advance("9.999999s")
        assert take_all(broker) == []
        clock.advance(0.000001)
        assert values(take_all(broker)) == [1]

    def test_failed_item_is_leased_from_its_instant_on(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "10s"})
        broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        clock.advance("9.999999s")
        assert take_all(broker) == []
        clock.advance(0.000001)
        assert values(take_all(broker)) == [1]

    def test_expired_item_is_not_leased(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1, expire_timeout="10s")
        clock.advance("10s")
        assert take_all(broker) == []
        assert broker.get(receipt.id).dead_reason == "expired"

    def test_item_is_leased_until_it_expires(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, expire_timeout="10s")
        clock.advance("9.999999s")
        assert values(take_all(broker)) == [1]

    def test_held_item_is_not_leased(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, held_by="breaker")
        assert take_all(broker) == []

    def test_dead_completed_and_archived_items_are_not_leased(self, broker: Broker) -> None:
        broker.create_queue("jobs", keep_completed="1d")
        kill(broker)
        broker.archive(kill(broker).id)
        broker.put("jobs", 1)
        broker.complete(take(broker))
        assert take_all(broker) == []

    def test_step_brings_in_what_has_fallen_due(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "10s"})
        broker.put("jobs", "scheduled", delay="10s")
        failed = broker.put("jobs", "failed")
        broker.fail(take(broker), "boom")
        clock.advance("10s")
        assert broker.run_maintenance().promoted == 2
        assert broker.get(failed.id).status == "pending"
        assert values(take_all(broker)) == ["scheduled", "failed"]


class HoldConformance(Suite):
    """Hold and unhold."""

    def test_item_put_held_waits_for_unhold(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1, held_by="breaker")
        item = broker.get(receipt.id)
        assert (item.status, item.held_by) == ("pending", ("breaker",))
        assert take_all(broker) == []
        assert broker.unhold("breaker") == 1
        assert broker.get(receipt.id).held_by == ()
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
        broker.run_maintenance()
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
        broker.run_maintenance()
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
