"""Operations: each verb in bulk, by filter, ids or group; steps of the store, each executed once."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker
from redrive.contract.admin_calls import SetOperation, StartOperation, StepOperation
from redrive.contract.item_calls import StaleSettings
from redrive.contract.queries import CountItems, GetNextDue, GetOperation, ListAudit, ListOperations
from redrive.errors import ConfirmationMismatch, InvalidInput, OperationNotFound, QueueNotFound, RedriveError
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND
from redrive.model.filter import Filter
from redrive.model.item import Status
from redrive.model.judge import Dead
from redrive.model.operation import Operation, OperationStatus
from redrive.model.state_machine import Verb
from redrive.testing.conformance.actions import dead_queue, die, finish, found, perform, places, take
from redrive.testing.conformance.suite import StoreDriver, StoreSuite, Suite
from redrive.testing.fake_clock import FakeClock


class BulkConformance(Suite):
    """Each verb, and the items that it changes."""

    @pytest.mark.parametrize(
        ("verb", "options", "status"),
        [
            ("redrive", {}, {"pending": 5}),
            ("retry", {}, {"pending": 5}),
            ("archive", {}, {"archived": 5}),
            ("move", {"to": "other", "status": "dead"}, {"dead": 5}),
            ("redrive", {"to": "other"}, {"pending": 5}),
        ],
    )
    def test_dead_letters_are_changed_in_bulk(
        self, broker: Broker, clock: FakeClock, verb: str, options: dict[str, Any], status: dict[str, int]
    ) -> None:
        broker.create_queue("jobs")
        broker.create_queue("other")
        die(broker, 5)
        operation = perform(broker, clock, verb, queue="jobs", actor="ada", note="why", **options)
        assert (operation.verb, operation.status, operation.changed, operation.skipped) == (verb, "finished", 5, {})
        assert (operation.expected, operation.examined, operation.actor, operation.note) == (5, 5, "ada", "why")
        assert places(broker.stats(options.get("to", "jobs"))) == status

    def test_pending_items_are_buried_and_moved_in_bulk(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs")
        broker.put_many("jobs", range(4))
        assert perform(broker, clock, "move", queue="jobs", to="other").changed == 4
        assert perform(broker, clock, "bury", queue="other", note="fraud").changed == 4
        assert found(broker, reason="buried", words="fraud") == [0, 1, 2, 3]

    def test_bury_takes_each_item_to_the_dead_queue_of_its_queue(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        broker.create_queue("mails")
        broker.put_many("jobs", range(3))
        broker.put_many("mails", range(3))
        assert perform(broker, clock, "bury", min_redrives=0).changed == 6
        assert (places(broker.stats("morgue")), places(broker.stats("mails"))) == ({"pending": 3}, {"dead": 3})

    def test_archived_items_are_restored_and_purged_in_bulk(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 4)
        broker.archive(ids)
        assert perform(broker, clock, "restore", ids=tuple(ids[:2])).changed == 2
        with pytest.raises(ConfirmationMismatch, match="confirm=2"):
            broker.start_operation("purge", queue="jobs")
        with pytest.raises(ConfirmationMismatch):
            broker.start_operation("purge", queue="jobs", confirm=3)
        assert perform(broker, clock, "purge", queue="jobs", confirm=2).changed == 2
        assert places(broker.stats("jobs")) == {"dead": 2}

    def test_group_is_redriven_and_others_are_not(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 3, "alpha")
        die(broker, 2, "beta")
        group = broker.groups()[0]
        operation = perform(broker, clock, "redrive", fingerprint=group.fingerprint)
        assert (operation.changed, found(broker)) == (3, [0, 1])

    def test_any_filter_can_be_given(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 3, "odd trouble")
        die(broker, 3, "mishap")
        assert perform(broker, clock, "redrive", where=Filter(words="odd")).changed == 3
        assert perform(broker, clock, "archive", words="mishap", reason="final_error", since="1h").changed == 3

    def test_ids_of_any_time_name_the_items(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        ids = die(broker, 4)
        operation = perform(broker, clock, "redrive", ids=(ids[0], broker.get(ids[2]).id, ids[0], "f" * 32))
        assert (operation.changed, found(broker)) == (2, [1, 3])

    def test_items_that_an_operation_changed_are_found_by_it(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        ids = die(broker, 4)
        operation = perform(broker, clock, "redrive", ids=tuple(ids[:3]))
        assert found(broker, status="pending", operation=operation.id) == [0, 1, 2]
        broker.fail(take(broker), "boom")
        assert found(broker, operation=operation.id) == [0]
        assert found(broker, status="pending", queue="jobs", operation=operation.id) == [1, 2]
        assert found(broker, status=None, operation=operation.id) == [1, 2, 0]

    def test_history_names_operation_actor_and_note(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        (id,) = die(broker, 1)
        operation = perform(broker, clock, "redrive", queue="jobs", actor="ada", note="mended")
        entry = broker.get(id).history[-1]
        assert (entry.event, entry.actor, entry.note) == ("redriven", "ada", "mended")
        assert entry.operation == operation.id

    def test_nothing_that_matches_is_an_operation_that_ends(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        operation = perform(broker, clock, "redrive", queue="jobs")
        assert (operation.status, operation.changed, operation.expected) == ("finished", 0, 0)

    def test_more_than_one_step_takes(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(2_500))
        assert perform(broker, clock, "bury", queue="jobs").changed == 2_500
        operation = perform(broker, clock, "redrive", queue="jobs")
        assert (operation.changed, operation.expected, places(broker.stats("jobs"))) == (
            2_500,
            2_500,
            {"pending": 2_500},
        )
        assert operation.steps >= 3

    def test_no_more_than_the_limit_is_changed_the_oldest_first(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 7)
        plan = broker.plan_operation("redrive", queue="jobs", limit=3)
        assert (plan.total, plan.changed, plan.queues, str(plan).splitlines()[0]) == (
            *(7, 3, {"jobs": 3}),
            "redrive: 3 of 7 items would be changed",
        )
        operation = perform(broker, clock, "redrive", queue="jobs", limit=3)
        assert (operation.status, operation.changed, operation.expected, operation.limit) == ("finished", 3, 3, 3)
        assert sorted(found(broker)) == [3, 4, 5, 6]
        undone = finish(broker, clock, broker.undo_operation(operation.id))
        assert (undone.changed, len(found(broker))) == (3, 7)
        assert perform(broker, clock, "redrive", queue="jobs", limit=100).expected == 7

    def test_items_that_are_left_out_do_not_count_for_the_limit(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(5))
        taken = [take(broker).id for _ in range(2)]
        plan = broker.plan_operation("bury", status="any", limit=2)
        assert (plan.total, plan.changed, plan.skipped) == (5, 2, {"item_active": 2})
        operation = perform(broker, clock, "bury", status="any", limit=2)
        assert (operation.changed, operation.skipped, sorted(found(broker))) == (2, {"item_active": 2}, [2, 3])
        assert operation.samples == {"item_active": tuple(taken)}

    def test_limit_makes_no_small_steps_over_refused_items(self, broker: Broker, clock: FakeClock) -> None:
        for name in ("jobs", "other"):
            broker.create_queue(name)
        ids = [receipt.id for receipt in broker.put_many("jobs", range(42))]
        assert len(broker.lease("jobs", 40)) == 40
        operation = perform(broker, clock, "move", ids=tuple(ids), status="any", to="other", limit=1)
        assert (operation.changed, operation.skipped, operation.steps) == (1, {"item_active": 40}, 1)
        assert places(broker.stats("jobs")) == {"active": 40, "pending": 1}

    def test_limit_goes_with_canaries_a_pause_and_a_rate(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 9)
        operation = broker.start_operation("redrive", queue="jobs", limit=4, canary=1, rate=10)
        watching = finish(broker, clock, operation)
        assert (watching.status, watching.changed) == ("watching", 1)
        broker.pause_operation(operation.id)
        broker.resume_operation(operation.id, skip_canaries=True)
        assert finish(broker, clock, operation).changed == 4
        assert len(found(broker)) == 5

    def test_purge_with_a_limit_confirms_what_it_removes(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.archive(die(broker, 5))
        with pytest.raises(ConfirmationMismatch):
            broker.start_operation("purge", queue="jobs", limit=2, confirm=5)
        assert perform(broker, clock, "purge", queue="jobs", limit=2, confirm=2).changed == 2
        assert sorted(found(broker, status="archived")) == [2, 3, 4]

    def test_refused_before_it_starts(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        for verb in ("put", "complete", "drop", "dance"):
            with pytest.raises(InvalidInput):
                broker.start_operation(verb, queue="jobs")
        with pytest.raises(QueueNotFound):
            broker.start_operation("redrive", queue="nowhere")
        with pytest.raises(QueueNotFound):
            broker.start_operation("redrive", queue="jobs", to="nowhere")
        with pytest.raises(InvalidInput):
            broker.start_operation("move", queue="jobs")
        for wrong in (
            *({"rate": 0}, {"rate": -1}, {"canary": -1}, {"canary": 1, "canary_success_ratio": 1.5}),
            *({"limit": 0}, {"limit": -1}, {"limit": 1.5}, {"limit": True}, {"limit": 2, "canary": 2}),
        ):
            with pytest.raises(InvalidInput):
                broker.start_operation("redrive", queue="jobs", **wrong)
        assert broker.list_operations() == ()


def dead(direct: StoreDriver, count: int) -> None:
    """Create a queue with `count` dead items."""
    direct.queue()
    direct.put(*[b"x"] * count)
    for lease in direct.lease(limit=count):
        direct.bury(lease)


def start(direct: StoreDriver, verb: Verb = Verb.REDRIVE, where: Filter | None = None, **options: Any) -> Operation:
    """Start an operation on all dead letters."""
    operation = direct.do(StartOperation(verb=verb, where=where or Filter(), actor="ada", **options))
    assert isinstance(operation, Operation), operation
    return operation


def dead_count(direct: StoreDriver) -> int:
    """Return the number of dead letters."""
    count: int = direct.read(CountItems(Filter())).count
    return count


class StepConformance(StoreSuite):
    """The calls StartOperation, StepOperation and SetOperation."""

    def test_paused_operations_do_not_hide_one_that_is_at_work(self, direct: StoreDriver) -> None:
        dead(direct, 1)
        running = start(direct)
        for _ in range(3):
            start(direct, paused=True)
        ended = start(direct)
        direct.do(SetOperation(ended.id, "ada", OperationStatus.CANCELLED))
        assert [each.id for each in direct.read(ListOperations(limit=1, active_only=True))] == [running.id]
        assert len(direct.read(ListOperations(unfinished=True))) == 4
        assert len(direct.read(ListOperations())) == 5

    def test_step_takes_no_more_than_its_limit(self, direct: StoreDriver) -> None:
        dead(direct, 5)
        operation = start(direct)
        assert (operation.status, operation.steps, operation.changed) == ("running", 0, 0)
        first = direct.do(StepOperation(operation.id, 0, limit=2))
        assert (first.steps, first.changed, first.status, dead_count(direct)) == (1, 2, "running", 3)
        second = direct.do(StepOperation(operation.id, 1, limit=10))
        while not second.ended:
            second = direct.do(StepOperation(operation.id, second.steps))
        assert (second.status, second.changed, dead_count(direct)) == ("finished", 5, 0)
        assert direct.read(GetOperation(operation.id)) == second

    def test_step_that_was_made_is_not_made_again(self, direct: StoreDriver) -> None:
        dead(direct, 5)
        operation = start(direct)
        first = direct.do(StepOperation(operation.id, 0, limit=2))
        for steps in (0, 2, 7):
            assert direct.do(StepOperation(operation.id, steps, limit=2)) == first
        assert dead_count(direct) == 3
        one, two = direct.commit(*[StepOperation(operation.id, 1, limit=2)] * 2).results
        assert (one.changed, two.changed, dead_count(direct)) == (4, 4, 1)

    @pytest.mark.parametrize("where", [None, Filter(max_redrives=9)], ids=["by the index", "one by one"])
    def test_repeated_steps_do_not_exceed_the_limit(self, direct: StoreDriver, where: Filter | None) -> None:
        dead(direct, 5)
        operation = start(direct, where=where, limit=3)
        steps = direct.commit(*[StepOperation(operation.id, 0, limit=2)] * 2).results
        assert [(step.changed, step.steps, step.status) for step in steps] == [(2, 1, "running")] * 2
        for repeated in (1, 1, 0, 2):
            after = direct.do(StepOperation(operation.id, repeated, limit=2))
            assert (after.changed, after.steps, after.status, dead_count(direct)) == (3, 2, "finished", 2)

    def test_step_of_an_operation_that_does_not_run_does_nothing(self, direct: StoreDriver) -> None:
        dead(direct, 2)
        operation = start(direct, paused=True)
        assert direct.do(StepOperation(operation.id, 0)) == operation
        cancelled = direct.do(SetOperation(operation.id, "bob", OperationStatus.CANCELLED))
        assert direct.do(StepOperation(operation.id, 0)) == cancelled
        assert dead_count(direct) == 2

    def test_operation_that_does_not_exist_is_refused(self, direct: StoreDriver) -> None:
        for call in (StepOperation("f" * 32, 0), SetOperation("f" * 32, "ada", OperationStatus.PAUSED)):
            assert isinstance(direct.do(call), OperationNotFound)

    def test_start_is_refused_for_what_is_not_for_many(self, direct: StoreDriver) -> None:
        direct.queue()
        for verb in (Verb.PUT, Verb.DROP, Verb.DONE, Verb.FAIL):
            assert isinstance(direct.do(StartOperation(verb=verb, where=Filter(), actor="ada")), InvalidInput)
        call = StartOperation(verb=Verb.REDRIVE, where=Filter(queue="nowhere"), actor="ada")
        assert isinstance(direct.do(call), RedriveError)

    def test_bury_needs_the_verdict_of_every_queue_it_meets(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b")
        operation = start(direct, Verb.BURY, Filter(status=Status.PENDING))
        verdict = Dead(DeadReason.BURIED)
        for verdicts in ({}, {"jobs": (verdict, direct.version() + 1)}, {"mails": (verdict, direct.version())}):
            stale = direct.do(StepOperation(operation.id, 0, verdicts=verdicts))
            assert isinstance(stale, StaleSettings)
            assert stale.queue.name == "jobs"
        assert (direct.read(GetOperation(operation.id)), dead_count(direct)) == (operation, 0)
        stepped = direct.do(StepOperation(operation.id, 0, verdicts={"jobs": (verdict, direct.version())}))
        assert (stepped.changed, dead_count(direct)) == (2, 2)

    def test_rate_sets_when_the_next_step_may_run(self, direct: StoreDriver) -> None:
        dead(direct, 10)
        operation = start(direct, rate=2.0)
        assert direct.read(GetNextDue()) == operation.next_at == direct.clock.now()
        stepped = direct.do(StepOperation(operation.id, 0, limit=4))
        assert stepped.next_at == direct.read(GetNextDue()) == direct.clock.now() + 2 * SECOND
        direct.do(SetOperation(operation.id, "bob", OperationStatus.PAUSED))
        assert direct.read(GetNextDue()) is None

    def test_canaries_stop_a_step(self, direct: StoreDriver) -> None:
        dead(direct, 10)
        operation = start(direct, canary=3)
        watching = direct.do(StepOperation(operation.id, 0))
        assert (watching.status, watching.changed, len(watching.canary_ids)) == ("watching", 3, 3)
        assert direct.do(StepOperation(operation.id, watching.steps)) == watching
        went_on = direct.do(SetOperation(operation.id, "canary", OperationStatus.RUNNING, steps=watching.steps))
        assert went_on.status == "running"
        assert direct.do(StepOperation(operation.id, went_on.steps)).changed == 10

    def test_set_that_names_another_step_does_nothing(self, direct: StoreDriver) -> None:
        dead(direct, 3)
        operation = start(direct)
        stepped = direct.do(StepOperation(operation.id, 0, limit=1))
        late = SetOperation(operation.id, "bob", OperationStatus.STOPPED, "too late", steps=0)
        assert direct.do(late) == stepped
        stopped = direct.do(SetOperation(operation.id, "bob", OperationStatus.STOPPED, "enough", steps=1))
        assert (stopped.status, stopped.problem, dead_count(direct)) == ("stopped", "enough", 2)

    def test_set_that_was_overtaken_does_nothing(self, direct: StoreDriver) -> None:
        dead(direct, 3)
        operation = start(direct, canary=1)
        watching = direct.do(StepOperation(operation.id, 0))
        go_on = SetOperation(operation.id, "canary", OperationStatus.RUNNING, steps=watching.steps)
        paused = direct.do(SetOperation(operation.id, "bob", OperationStatus.PAUSED))
        assert direct.do(go_on) == paused
        direct.do(SetOperation(operation.id, "bob", OperationStatus.RUNNING))
        running = direct.do(go_on)
        audit = direct.read(ListAudit())
        assert (running.status, direct.do(go_on), direct.read(ListAudit())) == ("running", running, audit)
        cancelled = direct.do(SetOperation(operation.id, "bob", OperationStatus.CANCELLED))
        assert direct.do(go_on) == cancelled
        assert dead_count(direct) == 2
