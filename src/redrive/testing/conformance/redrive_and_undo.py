"""Redrive from a dead queue, and undo of a redrive that no worker has leased since."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.errors import (
    InvalidInput,
    ItemActive,
    ItemNotFound,
    LeaseLost,
    OperationNotFound,
    QueueFull,
    QueueNotFound,
    RedriveError,
    WrongStatus,
)
from redrive.model.duration import SECOND
from redrive.model.item import Counters
from redrive.testing.conformance.actions import (
    dead_queue,
    die,
    finish,
    found,
    kill,
    perform,
    places,
    take,
    take_all,
    values,
)
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class RedriveFromDeadQueueConformance(Suite):
    """A redrive returns a dead letter to the queue in which it died."""

    def test_dead_letter_goes_back_under_a_new_id(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue", expire_timeout="10m")
        receipt = broker.put("jobs", {"n": 1})
        dead = broker.fail(take(broker), "boom")
        clock.advance("1h")
        settled = broker.redrive(dead.id, actor="ada")
        item = broker.get(settled.id)
        assert (settled.queue, settled.status, settled.source_id) == ("jobs", "pending", dead.id)
        assert len({receipt.id, dead.id, settled.id}) == 3
        assert (item.source_id, item.origin_id, item.origin_queue) == (dead.id, receipt.id, "jobs")
        assert item.counters == Counters(deliveries=1, redrives=1)
        assert item.expire_deadline == clock.now() + 600 * SECOND
        assert (item.ready_at, item.value) == (clock.now(), {"n": 1})
        assert [(entry.event, entry.actor) for entry in item.history] == [("failed", None), ("redriven", "ada")]
        assert places(broker.stats("morgue")) == {}
        assert take(broker).id == settled.id

    def test_every_older_id_finds_the_item_over_many_moves(self, broker: Broker) -> None:
        dead_queue(broker)
        ids = [broker.put("jobs", 1).id]
        for _ in range(3):
            ids.append(broker.fail(take(broker), "boom").id)
            ids.append(broker.redrive(ids[-1]).id)
        assert len(set(ids)) == 7
        items = [broker.get(id) for id in ids]
        assert all(item == items[-1] for item in items)
        assert (items[0].id, items[0].origin_id, items[0].source_id) == (ids[-1], ids[0], ids[-2])
        assert (items[0].counters.redrives, items[0].counters.deliveries) == (3, 3)
        assert [death.id for death in items[0].deaths] == ids[0:6:2]

    def test_second_death_of_a_redriven_item_moves_again(self, broker: Broker) -> None:
        dead_queue(broker)
        first = kill(broker, "x")
        broker.redrive(first.id)
        second = broker.fail(take(broker), "boom")
        assert second.queue == "morgue"
        assert second.id != first.id
        assert values(take_all(broker, "morgue")) == ["x"]
        assert len(broker.get(second.id).deaths) == 2

    def test_older_id_can_be_used_to_redrive(self, broker: Broker) -> None:
        dead_queue(broker)
        receipt = broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        assert broker.redrive(receipt.id).queue == "jobs"
        assert take(broker).value == 1

    def test_redrive_to_another_queue(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.create_queue("slow")
        settled = broker.redrive(kill(broker, "x").id, to="slow")
        assert (settled.queue, settled.status) == ("slow", "pending")
        assert values(take_all(broker, "slow")) == ["x"]
        assert broker.get(settled.id).origin_queue == "jobs"

    def test_dead_letter_goes_to_the_queue_of_its_last_death(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.create_queue("slow", dead_queue="morgue")
        broker.redrive(kill(broker, "x").id, to="slow")
        dead = broker.fail(take(broker, "slow"), "boom")
        settled = broker.redrive(dead.id)
        assert settled.queue == "slow"
        assert broker.get(settled.id).origin_queue == "jobs"

    def test_dead_letter_whose_queue_is_gone_stays(self, broker: Broker) -> None:
        dead_queue(broker)
        dead = kill(broker)
        broker.delete_queue("jobs")
        before = broker.get(dead.id)
        with pytest.raises(QueueNotFound, match="'jobs'"):
            broker.redrive(dead.id)
        with pytest.raises(QueueNotFound, match="'nowhere'"):
            broker.redrive(dead.id, to="nowhere")
        assert broker.get(dead.id) == before

    def test_redrive_to_a_full_queue_is_refused_and_the_item_stays(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue", max_size=1)
        dead = kill(broker)
        broker.put("jobs", 1)
        with pytest.raises(QueueFull):
            broker.redrive(dead.id)
        assert broker.get(dead.id).queue == "morgue"
        broker.complete(take(broker))
        assert broker.redrive(dead.id).queue == "jobs"

    def test_many_dead_letters_go_back_each_to_its_own_queue(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.create_queue("mails", dead_queue="morgue")
        ids = [kill(broker, n, queue).id for n, queue in enumerate(["jobs", "mails", "jobs"])]
        results = broker.redrive(ids)
        assert [result.queue for result in results if not isinstance(result, RedriveError)] == ["jobs", "mails", "jobs"]
        assert values(take_all(broker)) == [0, 2]
        assert values(take_all(broker, "mails")) == [1]

    def test_item_put_straight_into_the_dead_queue_is_no_dead_letter(self, broker: Broker) -> None:
        dead_queue(broker)
        receipt = broker.put("morgue", 1)
        with pytest.raises(WrongStatus):
            broker.redrive(receipt.id)

    def test_dead_letter_that_is_worked_on_is_redriven_only_by_force(self, broker: Broker) -> None:
        dead_queue(broker)
        kill(broker)
        lease = take(broker, "morgue")
        with pytest.raises(ItemActive):
            broker.redrive(lease.id)
        assert broker.redrive(lease.id, force=True).queue == "jobs"
        with pytest.raises(LeaseLost):
            broker.complete(lease)

    def test_force_does_not_make_a_dead_letter_of_ordinary_work(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(WrongStatus):
            broker.redrive(lease.id, force=True)
        assert broker.complete(lease).status is None

    def test_dead_letter_stays_one_when_its_queue_is_no_dead_queue_any_more(self, broker: Broker) -> None:
        dead_queue(broker)
        dead = kill(broker)
        broker.update_queue("jobs", dead_queue=None)
        assert broker.redrive(dead.id).queue == "jobs"


class UndoConformance(Suite):
    """Undo of single items."""

    def test_item_is_dead_again_as_it_was(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        dead = broker.get(kill(broker, "x", error="odd trouble").id)
        clock.advance("1h")
        broker.redrive(dead.id)
        clock.advance("1m")
        settled = broker.undo(dead.id, actor="ada")
        assert (settled.id, settled.status) == (dead.id, "dead")
        item = broker.get(dead.id)
        assert (item.status, item.dead_reason, item.ended_at) == ("dead", dead.dead_reason, dead.ended_at)
        assert (item.deaths, item.counters.failures, item.counters.attempts) == (dead.deaths, 1, 1)
        assert [(entry.event, entry.actor) for entry in item.history][-1] == ("undone", "ada")
        assert found(broker, words="odd", until="1h") == ["x"]
        assert [(group.count, group.last_at) for group in broker.groups()] == [(1, dead.ended_at)]
        assert take_all(broker) == []
        assert places(broker.stats("jobs")) == {"dead": 1}

    def test_item_returns_to_its_dead_queue(self, broker: Broker) -> None:
        dead_queue(broker)
        dead = kill(broker, "x")
        back = broker.redrive(dead.id)
        settled = broker.undo(back.id)
        assert (settled.queue, settled.status, settled.source_id) == ("morgue", "pending", back.id)
        assert broker.get(dead.id) == broker.get(settled.id)
        assert (broker.stats("morgue").dead_letters, places(broker.stats("jobs"))) == (1, {})
        assert found(broker, queue="morgue") == found(broker, words="boom") == ["x"]
        assert broker.redrive(settled.id).queue == "jobs"

    def test_retry_is_undone_too(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        (id,) = die(broker, 1)
        broker.retry(id)
        assert broker.undo(id).status == "dead"

    def test_undo_is_for_what_was_brought_back_and_nothing_else(self, broker: Broker) -> None:
        dead_queue(broker)
        plain = broker.put("jobs", 1)
        dead = kill(broker)
        for id in (plain.id, dead.id):
            with pytest.raises(WrongStatus):
                broker.undo(id)
        with pytest.raises(ItemNotFound):
            broker.undo("f" * 32)

    def test_undo_is_refused_once_somebody_worked_on_it(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        (id,) = die(broker, 1)
        broker.redrive(id)
        lease = take(broker)
        with pytest.raises(ItemActive):
            broker.undo(id)
        broker.release(lease)
        with pytest.raises(WrongStatus):
            broker.undo(id)

    def test_undo_twice_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        (id,) = die(broker, 1)
        broker.redrive(id)
        broker.undo(id)
        with pytest.raises(WrongStatus):
            broker.undo(id)

    def test_undo_of_many_gives_a_result_for_each(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 3)
        broker.redrive(ids[:2])
        results = broker.undo(ids)
        assert [isinstance(result, RedriveError) for result in results] == [False, False, True]
        (entry,) = broker.audit(1)
        assert (entry.verb, entry.count) == ("undo", 2)

    def test_undone_item_keeps_its_time_of_death_for_retention(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker, keep_dead="2h")
        dead = kill(broker)
        clock.advance("1h")
        broker.redrive(dead.id)
        broker.undo(dead.id)
        clock.advance("61m")
        broker.run_maintenance()
        assert found(broker) == []


class UndoOperationConformance(Suite):
    """Undo of a whole operation."""

    def test_redrive_is_taken_back_but_for_what_was_worked_on(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 5)
        redrive = perform(broker, clock, "redrive", queue="morgue")
        broker.complete(take(broker))
        active = take(broker)
        undo = finish(broker, clock, broker.undo_operation(redrive.id, actor="ada"))
        assert (undo.verb, undo.actor, undo.status, undo.changed) == ("undo", "ada", "finished", 3)
        assert undo.skipped == {}
        assert found(broker) == [2, 3, 4]
        assert broker.get(active.id).status == "active"
        assert places(broker.stats("morgue")) == {"pending": 3}

    def test_archive_is_undone_by_restore_and_the_other_way_round(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 4)
        archive = perform(broker, clock, "archive", queue="jobs")
        assert archive.changed == 4
        restore = finish(broker, clock, broker.undo_operation(archive.id))
        assert (restore.verb, restore.changed) == ("restore", 4)
        again = finish(broker, clock, broker.undo_operation(restore.id))
        assert (again.verb, again.changed, found(broker, status="archived")) == ("archive", 4, [0, 1, 2, 3])

    def test_only_what_the_operation_changed_is_undone(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 4)
        redrive = perform(broker, clock, "redrive", ids=tuple(ids[:2]))
        broker.redrive(ids[2:])
        undo = finish(broker, clock, broker.undo_operation(redrive.id))
        assert (undo.changed, sorted(found(broker))) == (2, [0, 1])
        assert found(broker, status="pending") == [2, 3]

    def test_what_was_brought_back_again_since_is_not_undone(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 2)
        first = perform(broker, clock, "redrive")
        broker.fail(take(broker), "boom", final=True)
        second = perform(broker, clock, "redrive")
        plan = broker.plan_operation("undo", operation=first.id)
        undo = finish(broker, clock, broker.undo_operation(first.id))
        assert (undo.changed, undo.skipped, found(broker)) == (1, {"wrong_status": 1}, [1])
        assert (plan.total, plan.skipped) == (2, undo.skipped)
        assert finish(broker, clock, broker.undo_operation(second.id)).changed == 1

    def test_bury_is_undone_by_redrive(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(3))
        bury = perform(broker, clock, "bury", queue="jobs")
        assert (bury.changed, found(broker)) == (3, [0, 1, 2])
        redrive = finish(broker, clock, broker.undo_operation(bury.id))
        assert (redrive.verb, redrive.changed, found(broker)) == ("redrive", 3, [])

    def test_move_and_undo_cannot_be_undone(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs")
        broker.put_many("jobs", range(2))
        move = perform(broker, clock, "move", queue="jobs", to="other")
        with pytest.raises(InvalidInput):
            broker.undo_operation(move.id)
        with pytest.raises(OperationNotFound):
            broker.undo_operation("0" * 32)
