"""What an operation leaves out and why, plans that come true, the audit."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.errors import OperationNotFound
from redrive.model.duration import SECOND
from redrive.model.operation import MAX_SAMPLES
from redrive.store import OPERATION_TIMEOUT
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import dead_queue, take
from redrive.testing.conformance.many import die, find_all, found, ids_of, perform
from redrive.testing.conformance.suite import Suite


class OutcomeConformance(Suite):
    """What is left out, and why; plans that come true; the audit."""

    def test_active_items_are_left_out_and_counted(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 20)
        active = [lease.id for lease in broker.lease("morgue", 15)]
        operation = perform(broker, clock, "redrive", queue="morgue")
        assert (operation.changed, operation.left_out, operation.met) == (5, {"item_active": 15}, 20)
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
        assert (operation.changed, operation.left_out) == (2, {"item_active": 1, "queue_not_found": 2})
        assert set(operation.samples["queue_not_found"]) == gone

    def test_full_queue_leaves_items_archived(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue", max_size=2)
        broker.create_queue("jobs", dead_queue="morgue")
        broker.archive(die(broker, 3))
        operation = perform(broker, clock, "restore", queue="morgue")
        assert (operation.changed, operation.left_out) == (2, {"queue_full": 1})
        assert found(broker, status="archived") == [2]

    def test_undo_leaves_out_what_was_never_brought_back(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.redrive(die(broker, 2))
        broker.put_many("jobs", [8, 9])
        operation = perform(broker, clock, "undo", queue="jobs")
        assert (operation.changed, operation.left_out) == (2, {"wrong_status": 2})

    def test_plan_foresees_a_key_that_another_item_holds(self, broker: Broker) -> None:
        for name in ("jobs", "others"):
            broker.create_queue(name)
            broker.put(name, name, idempotency_key="once")
        broker.fail(take(broker), "boom")
        assert dict(broker.plan("redrive", queue="jobs", to="others").left_out) == {"idempotency_conflict": 1}
        assert dict(broker.plan("redrive", queue="jobs").left_out) == {}
        operation = broker.drive(broker.start("redrive", queue="jobs", to="others").id)
        assert dict(operation.left_out) == {"idempotency_conflict": 1}

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
        before = (find_all(broker, status=None), broker.audit(), broker.feed(), broker.operations())
        plan = broker.plan(verb, queue="morgue")
        assert (find_all(broker, status=None), broker.audit(), broker.feed(), broker.operations()) == before
        operation = perform(broker, clock, verb, queue="morgue")
        assert plan.total == operation.met == operation.expected
        assert dict(plan.left_out) == dict(operation.left_out)
        assert sum(plan.queues.values()) == operation.changed
        assert {code: len(ids) for code, ids in plan.samples.items()} == dict(plan.left_out)
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
        second = broker.start("redrive", queue="jobs", paused=True)
        assert [operation.id for operation in broker.operations()] == [second.id, first.id]
        assert [operation.id for operation in broker.operations(unfinished=True)] == [second.id]
        assert [operation.id for operation in broker.operations(limit=1)] == [second.id]
        assert broker.operation(first.id) == first
        with pytest.raises(OperationNotFound):
            broker.operation("0" * 32)

    def test_ended_operations_are_kept_for_a_month(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ended = perform(broker, clock, "redrive", queue="jobs")
        waiting = broker.start("redrive", queue="jobs", paused=True)
        clock.advance(OPERATION_TIMEOUT // SECOND - 1)
        broker.step()
        assert broker.operation(ended.id).status == "finished"
        clock.advance("2s")
        broker.step()
        with pytest.raises(OperationNotFound):
            broker.operation(ended.id)
        assert broker.operation(waiting.id).status == "paused"
