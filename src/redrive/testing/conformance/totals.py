"""Totals of a queue: items redriven, archived, exhausted and captured since its creation."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker, Dead, DeadReason
from redrive.errors import IdempotencyConflict, QueueFull
from redrive.testing.conformance.actions import dead_queue, die, kill, lose, perform, take
from redrive.testing.conformance.suite import OpenBroker, StorePair, StorePairSuite, Suite
from redrive.testing.fake_clock import FakeClock

TOTALS = ("redriven", "archived", "exhausted", "captured")
ALIKE = 12
"""A number of items for which stores use bulk statements."""


def totals(broker: Broker, queue: str = "jobs") -> dict[str, int]:
    """Return the totals that these tests check, without those that are 0."""
    stats = broker.stats(queue)
    return {name: count for name in TOTALS if (count := getattr(stats, f"{name}_total"))}


class TotalsConformance(Suite):
    """Each change is counted once, in one queue, and never subtracted."""

    def test_queue_begins_at_nothing(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        broker.complete(take(broker))
        assert totals(broker) == {}

    def test_item_that_is_brought_back_in_place_counts_where_it_is(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 2, "cooldown": "1h"})
        broker.redrive(kill(broker).id)
        broker.retry(kill(broker).id)
        broker.put("jobs", "x", priority=9)
        broker.retry(broker.fail(take(broker), "boom").id)
        broker.retry(take(broker).id, force=True)
        assert totals(broker) == {"redriven": 4}

    def test_item_that_leaves_a_dead_queue_counts_where_it_goes(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.create_queue("mails")
        broker.redrive(kill(broker).id)
        broker.redrive(kill(broker).id, to="mails")
        assert (totals(broker), totals(broker, "mails"), totals(broker, "morgue")) == (
            {"redriven": 1},
            {"redriven": 1},
            {},
        )

    def test_undo_takes_nothing_off(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        id = kill(broker).id
        for _ in range(2):
            broker.redrive(id)
            broker.undo(id)
        assert totals(broker) == {"redriven": 2}

    def test_what_is_refused_is_not_counted(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1)
        id = kill(broker).id
        broker.put("jobs", "other")
        with pytest.raises(QueueFull):
            broker.redrive(id)
        assert totals(broker) == {}

    def test_edited_redrive_archives_one_and_brings_one_back(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.redrive(kill(broker).id, payload="better")
        assert (totals(broker), totals(broker, "morgue")) == ({"redriven": 1}, {"archived": 1})

    def test_archived_counts_whoever_archives_and_restore_takes_nothing_off(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        broker.create_queue("jobs", archive_after="1h")
        id = kill(broker).id
        broker.archive(id)
        broker.restore(id)
        assert totals(broker) == {"archived": 1}
        kill(broker)
        clock.advance("2h")
        broker.run_maintenance()
        assert totals(broker) == {"archived": 3}
        assert broker.stats("jobs").archived == 2

    @pytest.mark.parametrize("many", [1, ALIKE], ids=["one by one", "together"])
    @pytest.mark.parametrize("verb", ["redrive", "retry", "archive"])
    def test_changes_by_hand_count_each_item(self, broker: Broker, verb: str, many: int) -> None:
        broker.create_queue("jobs")
        broker.create_queue("mails")
        ids = [*die(broker, many), *die(broker, many, queue="mails")]
        getattr(broker, verb)(ids)
        expected = {"archived" if verb == "archive" else "redriven": many}
        assert (totals(broker), totals(broker, "mails")) == (expected, expected)

    @pytest.mark.parametrize("settings", [{}, {"max_size": 100}], ids=["together", "one by one"])
    @pytest.mark.parametrize("verb", ["redrive", "retry", "archive"])
    def test_operations_count_each_item(
        self, broker: Broker, clock: FakeClock, verb: str, settings: dict[str, Any]
    ) -> None:
        broker.create_queue("jobs", **settings)
        broker.create_queue("mails", **settings)
        die(broker, ALIKE)
        die(broker, ALIKE, queue="mails")
        assert perform(broker, clock, verb).changed == 2 * ALIKE
        expected = {"archived" if verb == "archive" else "redriven": ALIKE}
        assert (totals(broker), totals(broker, "mails")) == (expected, expected)

    def test_operation_from_a_dead_queue_counts_where_the_items_go(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, ALIKE)
        operation = perform(broker, clock, "redrive")
        perform(broker, clock, "undo", operation=operation.id)
        assert (totals(broker), totals(broker, "morgue")) == ({"redriven": ALIKE}, {})

    def test_restored_and_purged_items_change_no_total(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = die(broker, ALIKE)
        broker.archive(ids)
        broker.restore(ids)
        broker.archive(ids)
        broker.purge(ids)
        assert totals(broker) == {"archived": 2 * ALIKE}

    def test_exhausted_are_those_that_used_up_their_tries(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 2}, max_attempts=2, max_losses=1)
        broker.put("jobs", "fails")
        broker.fail(take(broker), "boom")
        assert (broker.fail(take(broker), "boom").dead_reason, totals(broker)) == ("max_attempts", {"exhausted": 1})
        broker.put("jobs", "fails", max_attempts=9)
        broker.fail(take(broker), "boom")
        assert broker.fail(take(broker), "boom").dead_reason == "retries_exhausted"
        kill(broker)
        broker.put_many("jobs", ["buried", "lost"])
        broker.bury(take(broker))
        assert lose(broker, clock).dead_reason == "worker_lost"
        broker.put("jobs", "late", expire_timeout="1s")
        clock.advance("1s")
        broker.run_maintenance()
        broker.put("jobs", "policy")
        broker.fail(take(broker), "boom", verdict=Dead(DeadReason.POLICY))
        assert (totals(broker), broker.stats("jobs").dead_total) == ({"exhausted": 2}, 7)

    def test_exhausted_counts_where_the_item_died(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.create_queue("gone", on_dead="drop")
        for queue in ("jobs", "gone"):
            broker.put(queue, 1)
            broker.fail(take(broker, queue), "boom")
        assert (totals(broker), totals(broker, "gone"), totals(broker, "morgue")) == (
            {"exhausted": 1},
            {"exhausted": 1},
            {},
        )

    def test_captured_are_failures_that_were_put(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 2, "cooldown": "1h"})
        broker.put_failed("jobs", 1, "why", idempotency_key="k")
        broker.put_failed("jobs", 1, "why", idempotency_key="k")
        broker.put_failed("jobs", 2, "why", verdict=Dead(DeadReason.POLICY))
        broker.put_failed("jobs", 3, "why", verdict=Dead(drop=True))
        broker.put("jobs", 4, idempotency_key="active")
        lease = take(broker)
        broker.put_failed("jobs", 4, "why", idempotency_key="active")
        with pytest.raises(IdempotencyConflict):
            broker.put_failed("jobs", 5, "why", idempotency_key="k")
        assert totals(broker) == {"captured": 5}
        broker.fail(lease, "boom")
        assert (totals(broker), broker.stats("jobs").failed_total) == ({"captured": 5}, 6)

    def test_captured_counts_in_the_queue_of_the_put(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.put_failed("jobs", 1, "why", idempotency_key="k")
        broker.put_failed("jobs", 1, "why", idempotency_key="k")
        assert totals(broker) == {"captured": 2, "exhausted": 1}
        assert totals(broker, "morgue") == {}

    def test_totals_outlive_items_rounds_of_upkeep_and_the_program(
        self, open_broker: OpenBroker, clock: FakeClock
    ) -> None:
        self.require("is_durable")
        with open_broker() as broker:
            broker.create_queue("jobs")
            self.do_all(broker)
            broker.drop([item.id for item in broker.find(status="any").items])
        again = open_broker()
        expected = {"redriven": 1, "archived": 1, "exhausted": 3, "captured": 3}
        assert totals(again) == expected
        clock.advance("30d")
        again.run_maintenance()
        self.do_all(again)
        assert totals(again) == {name: 2 * count for name, count in expected.items()}

    def test_totals_of_several_programs_add_up(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs")
        for broker in (one, two, one, two):
            self.do_all(broker)
            broker.run_maintenance()
        expected = {"redriven": 4, "archived": 4, "exhausted": 12, "captured": 12}
        assert (totals(one), totals(two)) == (expected, expected)

    def do_all(self, broker: Broker) -> None:
        """Capture three failures, redrive one, archive one."""
        one, two, _ = (broker.put_failed("jobs", value, "why").id for value in range(3))
        broker.redrive(one)
        broker.archive(two)


class RedrivenElsewhereConformance(StorePairSuite):
    """A redrive from a dead queue in another store is counted in the queue in which the item arrives."""

    def test_redrive_back_home_counts_there_and_once(self, pair: StorePair) -> None:
        pair.create_queues()
        kill(pair.source)
        pair.source.run_maintenance()
        (letter,) = pair.target.find(queue="morgue").items
        pair.target.redrive(letter.id)
        assert (totals(pair.source), totals(pair.target, "morgue")) == ({}, {})
        for _ in range(2):
            pair.target.run_maintenance()
            pair.source.run_maintenance()
        assert (totals(pair.source), totals(pair.target, "morgue")) == ({"redriven": 1}, {})

    def test_death_and_move_to_another_store_are_no_redrive(self, pair: StorePair) -> None:
        pair.create_queues()
        kill(pair.source)
        moved = pair.source.put("jobs", "moved").id
        pair.source.move(moved, pair.there("morgue"))
        for _ in range(2):
            pair.source.run_maintenance()
        assert (totals(pair.source), totals(pair.target, "morgue")) == ({}, {})
        assert pair.target.stats("morgue").pending == 2
