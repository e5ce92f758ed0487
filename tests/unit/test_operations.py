"""Operations as the broker starts, drives and watches them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from redrive import AsyncBroker, Broker, Operation, OperationStatus, Status, connect
from redrive.errors import ConfirmationMismatch, InvalidInput, OperationNotFound, QueueNotFound
from redrive.model.filter import Filter
from redrive.testing import FakeClock, memory_broker


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with memory_broker(clock) as broker:
        broker.create_queue("jobs")
        yield broker


def kill(broker: Broker, count: int, queue: str = "jobs", error: str = "no") -> list[str]:
    ids = [receipt.id for receipt in broker.put_many(queue, range(count))]
    for lease in broker.lease(queue, limit=count):
        broker.fail(lease, error)
    return ids


def finish(broker: Broker, queue: str = "jobs", *, limit: int = 1000, fail: str | None = None) -> int:
    leases = broker.lease(queue, limit=limit)
    for lease in leases:
        if fail is None:
            broker.complete(lease)
        else:
            broker.fail(lease, fail)
    return len(leases)


def test_lifecycle_drives_an_operation_to_its_end(broker: Broker) -> None:
    kill(broker, 3)
    operation = broker.start_operation("redrive", note="the disk is back", actor="ann")
    assert (operation.status, operation.expected, operation.actor) == (OperationStatus.RUNNING, 3, "ann")
    assert broker.run_maintenance().operated == 3
    broker.run_maintenance()
    done = broker.get_operation(operation.id)
    assert (done.status, done.changed, done.skipped) == (OperationStatus.FINISHED, 3, {})
    assert broker.stats("jobs").pending == 3
    assert broker.list_operations() == (done,)
    assert broker.list_operations(unfinished=True) == ()


def test_rate_bounds_what_a_step_takes(broker: Broker, clock: FakeClock) -> None:
    kill(broker, 30)
    operation = broker.start_operation("redrive", rate=50)
    assert [broker.run_maintenance().operated, broker.run_maintenance().operated] == [5, 0]
    clock.advance("100ms")
    assert broker.run_maintenance().operated == 5
    broker.set_operation_rate(operation.id, 200)
    clock.advance("100ms")
    assert broker.run_maintenance().operated == 20
    clock.advance("1s")
    broker.run_maintenance()
    assert broker.get_operation(operation.id).status is OperationStatus.FINISHED


def test_drive_reports_each_step(broker: Broker) -> None:
    kill(broker, 5)
    operation = broker.start_operation("redrive", rate=1_000_000)
    seen: list[Operation] = []
    done = broker.run_operation(operation.id, progress=seen.append)
    assert done.status is OperationStatus.FINISHED
    assert (seen[-1].changed, seen[-1].ended) == (5, True)


def test_default_status_is_the_one_that_the_verb_is_for(broker: Broker) -> None:
    broker.create_queue("other")
    for verb, status in (
        *(("redrive", "dead"), ("retry", "dead"), ("archive", "dead"), ("restore", "archived"), ("undo", "pending")),
        *(("bury", "pending"), ("move", "pending")),
    ):
        options: dict[str, Any] = {"to": "other"} if verb == "move" else {}
        assert broker.start_operation(verb, queue="jobs", paused=True, **options).where == Filter(
            status=Status(status), queue="jobs"
        )
    assert broker.start_operation("move", Filter(), to="other", paused=True).where == Filter()


def test_purge_needs_the_number_of_items(broker: Broker) -> None:
    broker.archive(kill(broker, 3))
    with pytest.raises(ConfirmationMismatch, match="confirm=3"):
        broker.start_operation("purge")
    with pytest.raises(ConfirmationMismatch, match="confirm=2 was given"):
        broker.start_operation("purge", confirm=2)
    operation = broker.start_operation("purge", confirm=3)
    assert broker.run_operation(operation.id).changed == 3
    assert broker.count(status="any") == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"verb": "complete"}, "an operation can be one of archive, bury"),
        ({"verb": "move"}, "a move needs the queue"),
        ({"verb": "archive", "to": "jobs"}, "leave `to` out"),
        ({"verb": "redrive", "rate": 0}, "a rate is a number"),
        ({"verb": "redrive", "rate": "fast"}, "a rate is a number"),
        ({"verb": "redrive", "canary": -1}, "canary must be 0 to 100"),
        ({"verb": "redrive", "canary": 1, "canary_success_ratio": 0}, "canary_success_ratio is more than 0"),
        ({"verb": "archive", "canary": 1}, "a canary is for redrive and retry"),
        ({"verb": "redrive", "confirm": 1}, "confirm is for purge"),
        ({"verb": "purge", "status": "dead", "confirm": 0}, "purge is for archived items: archive them first"),
        ({"verb": "redrive", "colour": "red"}, "'colour' is not a condition"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(broker: Broker, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        broker.start_operation(**arguments)
    assert broker.list_operations() == ()


def test_plan_says_what_belongs_to_start(broker: Broker) -> None:
    with pytest.raises(InvalidInput, match="canary and rate can only be given to start"):
        broker.plan_operation("redrive", rate=5, canary=3)


def test_operation_is_named_by_its_id(broker: Broker) -> None:
    with pytest.raises(InvalidInput, match=r"pass operation\.id"):
        broker.run_operation(broker.start_operation("redrive", paused=True))  # type: ignore[arg-type]


def test_unknown_operation_is_named(broker: Broker) -> None:
    for call in (
        broker.get_operation,
        broker.run_operation,
        broker.pause_operation,
        broker.resume_operation,
        broker.undo_operation,
    ):
        with pytest.raises(OperationNotFound):
            call("0" * 32)
    with pytest.raises(QueueNotFound):
        broker.start_operation("redrive", queue="nowhere")


# Canaries


def test_rest_follows_when_the_canaries_complete(broker: Broker) -> None:
    kill(broker, 10)
    operation = broker.start_operation("redrive", canary=3)
    assert broker.run_maintenance().operated == 3
    assert broker.get_operation(operation.id).status is OperationStatus.WATCHING
    assert broker.run_maintenance().operated == 0
    finish(broker, limit=2)
    assert broker.run_maintenance().operated == 0
    finish(broker)
    assert broker.run_maintenance().operated == 7
    assert broker.run_operation(operation.id).status is OperationStatus.FINISHED


def test_canaries_that_die_stop_the_operation(broker: Broker) -> None:
    kill(broker, 10)
    operation = broker.start_operation("redrive", canary=3, canary_success_ratio=0.5)
    broker.run_maintenance()
    finish(broker, limit=1, fail="still no")
    broker.run_maintenance()
    assert broker.get_operation(operation.id).status is OperationStatus.WATCHING  # 2 of 3 can still complete
    finish(broker, limit=1, fail="still no")
    broker.run_maintenance()
    stopped = broker.get_operation(operation.id)
    assert stopped.status is OperationStatus.STOPPED
    assert stopped.problem is not None
    assert stopped.problem.startswith("2 of 3 canaries died again (2 × Error: still no)")
    assert broker.stats("jobs").dead == 9


def test_canaries_die_into_a_dead_queue(broker: Broker) -> None:
    broker.create_queue("graves")
    broker.create_queue("work", dead_queue="graves")
    kill(broker, 4, "work")
    operation = broker.start_operation("redrive", queue="graves", canary=2)
    broker.run_maintenance()
    assert broker.run_operation(operation.id).status is OperationStatus.WATCHING
    finish(broker, "work", fail="again")
    assert broker.run_operation(operation.id).status is OperationStatus.STOPPED


def test_canaries_that_their_queue_drops_have_died(broker: Broker) -> None:
    kill(broker, 3)
    broker.update_queue("jobs", on_dead="drop")
    operation = broker.start_operation("redrive", canary=1)
    broker.run_maintenance()
    finish(broker, fail="gone for good")
    problem = broker.run_operation(operation.id).problem
    assert problem is not None
    assert "1 × Error: gone for good" in problem


def test_paused_while_watching_watches_again(broker: Broker) -> None:
    kill(broker, 3)
    operation = broker.start_operation("redrive", canary=1)
    broker.run_maintenance()
    broker.pause_operation(operation.id)
    assert broker.resume_operation(operation.id).status is OperationStatus.WATCHING
    assert broker.resume_operation(operation.id).status is OperationStatus.WATCHING
    assert broker.run_maintenance().operated == 0


# What else a step does


def test_bury_sends_each_item_where_the_dead_of_its_queue_go(broker: Broker) -> None:
    broker.create_queue("graves")
    broker.create_queue("work", dead_queue="graves")
    broker.put("jobs", 1)
    broker.put("work", 2)
    operation = broker.start_operation("bury", note="old campaign")
    broker.update_queue("work", lease_timeout="5s")
    assert broker.run_operation(operation.id).changed == 2
    assert (broker.stats("jobs").dead, broker.stats("graves").dead_letters) == (1, 2 - 1)
    undone = broker.undo_operation(operation.id)
    assert (undone.verb, broker.run_operation(undone.id).changed) == ("redrive", 2)


def test_operation_is_taken_back(broker: Broker) -> None:
    kill(broker, 4)
    operation = broker.start_operation("redrive")
    with pytest.raises(InvalidInput, match="cancel it first"):
        broker.undo_operation(operation.id)
    broker.run_operation(operation.id)
    finish(broker, limit=1)
    undone = broker.undo_operation(operation.id, actor="ann")
    assert (undone.verb, undone.expected, undone.actor) == ("undo", 3, "ann")
    assert broker.run_operation(undone.id).changed == 3
    assert broker.stats("jobs").dead == 3


def test_archive_and_restore_are_each_other_s_reverse(broker: Broker) -> None:
    kill(broker, 2)
    archive = broker.start_operation("archive")
    broker.run_operation(archive.id)
    restore = broker.undo_operation(archive.id)
    assert (restore.verb, broker.run_operation(restore.id).changed) == ("restore", 2)
    again = broker.undo_operation(restore.id)
    assert (again.verb, broker.run_operation(again.id).changed) == ("archive", 2)
    purge = broker.start_operation("purge", confirm=2)
    broker.run_operation(purge.id)
    with pytest.raises(InvalidInput, match="purge cannot be undone"):
        broker.undo_operation(purge.id)


def test_refused_step_stops_the_operation_and_not_the_lifecycle(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kill(broker, 2)
    bad, good = broker.start_operation("archive", paused=True), broker.start_operation("redrive")
    broker.resume_operation(bad.id)
    real = broker.core.store.commit

    def commit(calls: Any, now: Any = None) -> Any:
        done = real([call for call in calls if getattr(call, "steps", None) is None or call.id != bad.id], now)
        return done if done.results else type(done)([QueueNotFound("jobs")], {}, done.now)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(broker.core.store, "commit", commit)
        assert broker.run_maintenance().operated == 2
    assert f"operation_stopped operation={bad.id}" in caplog.text
    assert "queue 'jobs' does not exist" in caplog.text
    assert broker.run_operation(good.id).status is OperationStatus.FINISHED


def test_lifecycle_thread_begins_at_once() -> None:
    with connect("memory://") as broker:
        broker.create_queue("jobs")
        kill(broker, 3)
        finished = broker.follow(kinds="redriven", wait="30s")
        operation = broker.start_operation("redrive", rate=1000)
        assert {next(finished).operation for _ in range(3)} == {operation.id}
        assert broker.run_operation(operation.id, wait="30s").status is OperationStatus.FINISHED


async def test_drive_on_an_event_loop(broker: Broker, clock: FakeClock) -> None:
    kill(broker, 3)
    face = AsyncBroker(broker.core)
    operation = await face.start_operation("redrive", rate=10)
    driving = asyncio.ensure_future(face.run_operation(operation.id))
    while not driving.done():
        await asyncio.sleep(0)
        clock.advance("20ms")
    assert (await driving).changed == 3


# Plans


def test_plan_says_what_would_happen_and_changes_nothing(broker: Broker) -> None:
    broker.create_queue("graves")
    broker.create_queue("work", dead_queue="graves")
    kill(broker, 2)
    kill(broker, 3, "work", "other")
    before = broker.find(limit=100)
    plan = broker.plan_operation("redrive")
    assert (plan.total, plan.changed, plan.skipped) == (5, 5, {})
    assert plan.groups == {"Error: other": 3, "Error: no": 2}
    assert plan.queues == {"work": 3, "jobs": 2}
    assert broker.plan_operation("redrive", to="jobs").queues == {"jobs": 5}
    assert broker.find(limit=100) == before
    assert broker.list_operations() == ()


def test_plan_names_what_would_be_left_out(broker: Broker) -> None:
    broker.put_many("jobs", range(3))
    active = broker.lease("jobs")[0].id
    plan = broker.plan_operation("bury", status="any")
    assert (plan.total, plan.changed, plan.queues) == (3, 2, {"jobs": 2})
    assert (plan.skipped, plan.samples) == ({"item_active": 1}, {"item_active": (active,)})
    assert broker.plan_operation("redrive", status="pending").skipped == {"wrong_status": 2}
    assert broker.plan_operation("archive", status="any").skipped == {"item_active": 1}
    assert broker.plan_operation("retry", status="any").skipped == {"wrong_status": 2, "item_active": 1}
    assert broker.plan_operation("undo").skipped == {"wrong_status": 2}
    assert broker.plan_operation("move", to="nowhere").skipped == {"queue_not_found": 2}


def test_plan_knows_that_a_queue_can_be_full(broker: Broker) -> None:
    kill(broker, 4)
    broker.update_queue("jobs", max_size=3)
    broker.put("jobs", "work")
    assert broker.plan_operation("redrive").skipped == {"queue_full": 2}
    assert broker.run_operation(broker.start_operation("redrive").id).skipped == {"queue_full": 2}


def test_plan_knows_that_restored_work_needs_room(broker: Broker) -> None:
    ids = [receipt.id for receipt in broker.put_many("jobs", range(4))]
    broker.archive(ids[:2])
    broker.drop(ids[2:])
    broker.update_queue("jobs", max_size=3)
    for verb, where in (("restore", {}), ("undo", {"status": "archived", "dropped": True})):
        plan = broker.plan_operation(verb, **where)
        done = broker.run_operation(broker.start_operation(verb, **where).id)
        assert (plan.changed, plan.skipped) == (done.changed, done.skipped), verb
        assert done.changed + done.skipped["queue_full"] == (4 if verb == "restore" else 1)


def test_plan_agrees_with_what_happens(broker: Broker) -> None:
    kill(broker, 3)
    broker.run_operation(broker.start_operation("redrive").id)
    finish(broker, limit=1, fail="no")
    broker.put("jobs", "fresh")
    plan = broker.plan_operation("undo", status="any")
    done = broker.run_operation(broker.start_operation("undo", status="any").id)
    assert (plan.changed, plan.skipped) == (done.changed, done.skipped)
