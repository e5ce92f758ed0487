"""Operations over time: rate, pause, resume, cancel, canaries; skipped items, agreement with plans, the audit."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.contract.base import OPERATION_RETENTION
from redrive.errors import InvalidInput, OperationEnded, OperationNotFound
from redrive.model.duration import SECOND
from redrive.model.operation import MAX_SAMPLES, Operation
from redrive.testing.conformance.actions import (
    Background,
    dead_queue,
    die,
    find_all,
    finish,
    found,
    ids_of,
    perform,
    take,
    take_all,
)
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock

TICK = 0.1
"""Seconds between two checks of an operation with a rate."""


class RateConformance(Suite):
    """The rate of an operation in items per second."""

    @pytest.mark.parametrize("rate", [1, 10, 100])
    def test_no_more_items_than_the_rate_allows(self, broker: Broker, clock: FakeClock, rate: int) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(rate * 4))
        perform(broker, clock, "bury", queue="jobs")
        operation = broker.start_operation("redrive", queue="jobs", rate=rate)
        for tick in range(60):
            for _ in range(2):
                broker.run_maintenance()
                assert broker.get_operation(operation.id).changed <= rate * (tick * TICK + 1)
            clock.advance(TICK)
        ended = broker.get_operation(operation.id)
        assert (ended.status, ended.changed) == ("finished", rate * 4)
        assert 3 <= (ended.updated_at - ended.created_at) / 1e6 <= 6

    def test_rate_below_one_per_second(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 3)
        operation = broker.start_operation("redrive", queue="jobs", rate=0.1)
        for second in range(40):
            broker.run_maintenance()
            assert broker.get_operation(operation.id).changed <= 1 + second // 10
            clock.advance("1s")
        assert broker.get_operation(operation.id).changed == 3

    def test_rate_can_be_changed_while_it_runs(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 50)
        operation = broker.start_operation("redrive", queue="jobs", rate=1)
        broker.run_maintenance()
        assert broker.set_operation_rate(operation.id, 1_000, actor="ada").rate == 1_000
        for _ in range(4):
            clock.advance("1s")
            broker.run_maintenance()
        assert broker.get_operation(operation.id).status == "finished"
        with pytest.raises(InvalidInput):
            broker.set_operation_rate(broker.start_operation("redrive", queue="jobs").id, 0)

    def test_upkeep_says_how_many_were_changed(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        die(broker, 5)
        broker.start_operation("redrive", queue="jobs")
        assert broker.run_maintenance().operated == 5
        assert broker.run_maintenance().operated == 0


class PauseConformance(Suite):
    """Pause, resume and cancel by an operator."""

    def test_paused_operation_does_nothing_until_it_is_resumed(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 30)
        operation = broker.start_operation("redrive", queue="jobs", rate=10)
        broker.run_maintenance()
        paused = broker.pause_operation(operation.id, actor="ada")
        assert paused.status == "paused"
        for _ in range(10):
            clock.advance("1s")
            broker.run_maintenance()
        assert broker.get_operation(operation.id).changed == paused.changed < 30
        assert broker.resume_operation(operation.id, actor="bob").status == "running"
        assert finish(broker, clock, operation).changed == 30
        assert {"ada", "bob"} <= {entry.actor for entry in broker.audit()}

    def test_operation_may_start_paused(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 2)
        operation = broker.start_operation("redrive", queue="jobs", paused=True)
        broker.run_maintenance()
        assert (broker.get_operation(operation.id).status, len(found(broker))) == ("paused", 2)
        broker.resume_operation(operation.id)
        assert finish(broker, clock, operation).changed == 2

    def test_cancelled_operation_leaves_the_rest_as_it_is(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 30)
        operation = broker.start_operation("redrive", queue="jobs", rate=10)
        broker.run_maintenance()
        cancelled = broker.cancel_operation(operation.id, actor="ada")
        clock.advance("1h")
        broker.run_maintenance()
        assert broker.get_operation(operation.id) == cancelled
        assert (cancelled.status, len(found(broker))) == ("cancelled", 30 - cancelled.changed)
        assert finish(broker, clock, broker.undo_operation(operation.id)).changed == cancelled.changed

    def test_ended_operation_cannot_be_changed(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        operation = perform(broker, clock, "redrive", queue="jobs")
        for change in (broker.pause_operation, broker.resume_operation, broker.cancel_operation):
            with pytest.raises(OperationEnded):
                change(operation.id)
            with pytest.raises(OperationNotFound):
                change("0" * 32)
        with pytest.raises(OperationEnded):
            broker.set_operation_rate(operation.id, 5)


class CanaryConformance(Suite):
    """Canaries: the first items are changed, and the rest waits for their outcome."""

    def test_good_canaries_let_the_rest_follow(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 10)
        watching = perform(broker, clock, "redrive", queue="morgue", canary=3)
        assert (watching.status, watching.changed, len(watching.canary_ids)) == ("watching", 3, 3)
        leases = take_all(broker)
        assert {lease.id for lease in leases} == set(watching.canary_ids)
        clock.advance("5s")
        broker.run_maintenance()
        assert broker.get_operation(watching.id).status == "watching"
        for lease in leases:
            broker.complete(lease)
        for _ in range(3):
            clock.advance("5s")
            broker.run_maintenance()
        ended = finish(broker, clock, watching)
        assert (ended.status, ended.changed) == ("finished", 10)

    def test_bad_canary_stops_it_with_a_reason(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 10)
        watching = perform(broker, clock, "redrive", queue="morgue", canary=2)
        good, bad = take_all(broker)
        broker.complete(good)
        broker.fail(bad, "boom")
        self.look_again(broker, clock)
        stopped = broker.get_operation(watching.id)
        assert (stopped.status, stopped.changed) == ("stopped", 2)
        assert stopped.problem
        assert len(found(broker)) == 9

    def test_share_of_canaries_that_must_complete(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 10)
        watching = perform(broker, clock, "redrive", queue="morgue", canary=4, canary_success_ratio=0.5)
        leases = take_all(broker)
        for n, lease in enumerate(leases):
            broker.complete(lease) if n < 2 else broker.fail(lease, "boom")
        self.look_again(broker, clock)
        assert finish(broker, clock, watching).status == "finished"
        assert len(found(broker)) == 2

    def test_fewer_items_than_canaries_is_an_operation_that_ends(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 2)
        operation = perform(broker, clock, "redrive", queue="morgue", canary=5)
        for lease in take_all(broker):
            broker.complete(lease)
        self.look_again(broker, clock)
        ended = finish(broker, clock, operation)
        assert (ended.status, ended.changed) == ("finished", 2)

    def test_watching_operation_can_be_cancelled(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 6)
        watching = perform(broker, clock, "redrive", queue="morgue", canary=1)
        assert broker.cancel_operation(watching.id).status == "cancelled"
        for lease in take_all(broker):
            broker.complete(lease)
        self.look_again(broker, clock)
        assert (broker.get_operation(watching.id).changed, len(found(broker))) == (1, 5)

    def test_paused_operation_watches_again_when_it_is_resumed(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 6)
        watching = perform(broker, clock, "redrive", queue="morgue", canary=1)
        broker.pause_operation(watching.id)
        (lease,) = take_all(broker)
        self.look_again(broker, clock)
        broker.resume_operation(watching.id)
        self.look_again(broker, clock)
        assert broker.get_operation(watching.id).changed == 1
        broker.complete(lease)
        self.look_again(broker, clock)
        assert finish(broker, clock, watching).changed == 6

    def test_watching_operation_can_be_told_to_go_on_anyway(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 6)
        watching = perform(broker, clock, "redrive", queue="morgue", canary=1)
        assert broker.resume_operation(watching.id).status == "watching"
        assert broker.resume_operation(watching.id, skip_canaries=True, actor="ann").status == "running"
        assert broker.audit()[0].actor == "ann"
        assert finish(broker, clock, watching).changed == 6

    def test_paused_operation_can_be_told_to_go_on_without_its_canaries(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 6)
        watching = perform(broker, clock, "redrive", queue="morgue", canary=1)
        broker.pause_operation(watching.id)
        assert broker.resume_operation(watching.id, skip_canaries=True).status == "running"
        assert finish(broker, clock, watching).changed == 6

    def look_again(self, broker: Broker, clock: FakeClock) -> None:
        """Run maintenance three times, so that it checks the canaries."""
        for _ in range(3):
            clock.advance("5s")
            broker.run_maintenance()


class DriveConformance(Suite):
    """`run_operation`: the caller executes the steps."""

    def test_drive_makes_the_steps_and_tells_of_each(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(2_500))
        told: list[Operation] = []
        operation = broker.start_operation("bury", queue="jobs")
        ended = broker.run_operation(operation.id, progress=told.append)
        assert (ended.status, ended.changed) == ("finished", 2_500)
        assert [seen.changed for seen in told] == sorted(seen.changed for seen in told)
        assert (len(told), told[-1]) == (ended.steps, ended)

    def test_drive_returns_where_a_person_or_a_canary_is_waited_for(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        die(broker, 3)
        paused = broker.start_operation("redrive", queue="jobs", paused=True)
        assert broker.run_operation(paused.id).status == "paused"
        canary = broker.start_operation("redrive", queue="jobs", canary=1)
        assert broker.run_operation(canary.id).status == "watching"
        with pytest.raises(OperationNotFound):
            broker.run_operation("0" * 32)

    def test_drive_with_a_wait_waits_for_the_canaries(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 3)
        operation = broker.start_operation("redrive", queue="jobs", canary=1)
        driving = Background(lambda: broker.run_operation(operation.id, wait="1h"))
        clock.until_waiting()
        (lease,) = take_all(broker)
        broker.complete(lease)
        ended = driving.result_in_time(clock)
        assert (ended.status, ended.changed) == ("finished", 3)

    def test_drive_gives_up_on_canaries_when_its_time_is_over(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 3)
        operation = broker.start_operation("redrive", queue="jobs", canary=1)
        driving = Background(lambda: broker.run_operation(operation.id, wait="1s"))
        clock.until_waiting()
        clock.advance("1s")
        assert driving.result().status == "watching"

    def test_drive_ends_when_its_time_is_over(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        die(broker, 3)
        operation = broker.start_operation("redrive", queue="jobs", rate=1)
        driven = broker.run_operation(operation.id, wait=0)
        assert (driven.status, driven.changed) == ("running", 0)


class OutcomeConformance(Suite):
    """Skipped items with their reasons, the agreement with plans, and the audit."""

    def test_active_items_are_left_out_and_counted(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 20)
        active = [lease.id for lease in broker.lease("morgue", 15)]
        operation = perform(broker, clock, "redrive", queue="morgue")
        assert (operation.changed, operation.skipped, operation.examined) == (5, {"item_active": 15}, 20)
        assert len(operation.samples["item_active"]) == MAX_SAMPLES
        assert set(operation.samples["item_active"]) <= set(active)
        assert {broker.get(id).status.value for id in active} == {"active"}

    def test_each_reason_is_counted_apart(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        broker.create_queue("mails", dead_queue="morgue")
        die(broker, 3)
        die(broker, 2, queue="mails")
        take(broker, "morgue")
        gone = set(ids_of(find_all(broker, origin_queue="mails")))
        broker.delete_queue("mails")
        operation = perform(broker, clock, "redrive", queue="morgue")
        assert (operation.changed, operation.skipped) == (2, {"item_active": 1, "queue_not_found": 2})
        assert set(operation.samples["queue_not_found"]) == gone

    def test_full_queue_leaves_items_archived(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue", max_size=2)
        broker.create_queue("jobs", dead_queue="morgue")
        broker.archive(die(broker, 3))
        operation = perform(broker, clock, "restore", queue="morgue")
        assert (operation.changed, operation.skipped) == (2, {"queue_full": 1})
        assert found(broker, status="archived") == [2]

    def test_undo_leaves_out_what_was_never_brought_back(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.redrive(die(broker, 2))
        broker.put_many("jobs", [8, 9])
        operation = perform(broker, clock, "undo", queue="jobs")
        assert (operation.changed, operation.skipped) == (2, {"wrong_status": 2})

    def test_plan_foresees_a_key_that_another_item_holds(self, broker: Broker) -> None:
        for name in ("jobs", "others"):
            broker.create_queue(name)
            broker.put(name, name, idempotency_key="once")
        broker.fail(take(broker), "boom")
        assert dict(broker.plan_operation("redrive", queue="jobs", to="others").skipped) == {"idempotency_conflict": 1}
        assert dict(broker.plan_operation("redrive", queue="jobs").skipped) == {}
        operation = broker.run_operation(broker.start_operation("redrive", queue="jobs", to="others").id)
        assert dict(operation.skipped) == {"idempotency_conflict": 1}

    @pytest.mark.parametrize("verb", ["redrive", "archive", "retry"])
    def test_plan_is_what_then_happens(self, broker: Broker, clock: FakeClock, verb: str) -> None:
        dead_queue(broker)
        broker.create_queue("mails", dead_queue="morgue")
        broker.create_queue("gone", dead_queue="morgue")
        die(broker, 4, "alpha")
        die(broker, 2, "beta", "mails")
        die(broker, 3, "beta", "gone")
        broker.lease("morgue", 2)
        broker.delete_queue("gone")
        before = (find_all(broker, status=None), broker.audit(), broker.feed(), broker.list_operations())
        plan = broker.plan_operation(verb, queue="morgue")
        assert (find_all(broker, status=None), broker.audit(), broker.feed(), broker.list_operations()) == before
        operation = perform(broker, clock, verb, queue="morgue")
        assert plan.total == operation.examined == operation.expected
        assert dict(plan.skipped) == dict(operation.skipped)
        assert sum(plan.queues.values()) == operation.changed
        assert {code: len(ids) for code, ids in plan.samples.items()} == dict(plan.skipped)
        assert sum(plan.groups.values()) == operation.changed
        if verb == "redrive":
            assert dict(plan.queues) == {"jobs": 2, "mails": 2}
            assert dict(plan.groups) == {"Error: alpha": 2, "Error: beta": 2}

    def test_audit_tells_who_started_it_and_how_it_ended(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 3)
        operation = perform(broker, clock, "redrive", queue="jobs", actor="ada", note="mended")
        entries = [entry for entry in broker.audit() if entry.actor == "ada"]
        assert len(entries) == 2
        assert entries[0].count == 3
        assert all("redrive" in entry.verb for entry in entries)
        assert operation.actor == "ada"

    def test_operations_are_listed_newest_first(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        first = perform(broker, clock, "redrive", queue="jobs")
        clock.advance("1s")
        second = broker.start_operation("redrive", queue="jobs", paused=True)
        assert [operation.id for operation in broker.list_operations()] == [second.id, first.id]
        assert [operation.id for operation in broker.list_operations(unfinished=True)] == [second.id]
        assert [operation.id for operation in broker.list_operations(limit=1)] == [second.id]
        assert broker.get_operation(first.id) == first
        with pytest.raises(OperationNotFound):
            broker.get_operation("0" * 32)

    def test_ended_operations_are_kept_for_a_month(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ended = perform(broker, clock, "redrive", queue="jobs")
        waiting = broker.start_operation("redrive", queue="jobs", paused=True)
        clock.advance(OPERATION_RETENTION // SECOND - 1)
        broker.run_maintenance()
        assert broker.get_operation(ended.id).status == "finished"
        clock.advance("2s")
        broker.run_maintenance()
        with pytest.raises(OperationNotFound):
            broker.get_operation(ended.id)
        assert broker.get_operation(waiting.id).status == "paused"
