"""Redrives to the store that an item came from, and manual moves to another store."""

from __future__ import annotations

import pytest

from redrive.errors import InvalidInput, QueueNotFound, WrongStatus
from redrive.model.item import Settled
from redrive.testing.conformance.actions import kill, take, take_all, values
from redrive.testing.conformance.suite import StorePair, StorePairSuite, only
from redrive.testing.fake_clock import FakeClock


class RedriveElsewhereConformance(StorePairSuite):
    """Redrive to the store that an item came from, or to another one."""

    def test_it_goes_back_and_dies_again(self, pair: StorePair, clock: FakeClock) -> None:
        pair.create_queues(expire_timeout="1h")
        first = kill(pair.source, "x").id
        pair.source.run_maintenance()
        letter = only(pair.target)
        assert letter.home_store == pair.source_name
        clock.advance("2h")
        settled = pair.target.redrive(letter.id, actor="ada", note="mended")
        assert (settled.status, settled.queue, settled.id) == ("moving", "morgue", letter.id)
        stats = pair.target.stats("morgue")
        assert (stats.moving, stats.dead_letters) == (1, 0)
        assert pair.target.run_maintenance().moved == 1
        lease = take(pair.source)
        item = pair.source.get(lease.id)
        assert (item.source_id, item.origin_id, item.origin_queue) == (letter.id, first, "jobs")
        assert item.expire_deadline == clock.now() + 3600 * 1_000_000
        assert (item.counters.redrives, item.counters.deliveries, item.counters.attempts) == (1, 2, 1)
        redriven = item.history[-1]
        assert (redriven.event, redriven.actor, redriven.note, redriven.queue, redriven.to) == (
            "redriven",
            "ada",
            "mended",
            "morgue",
            f"jobs@{pair.source_name}",
        )
        assert (pair.target.count(status="any"), pair.target.moves()) == (0, ())
        assert pair.target.audit(1)[0].ids == (letter.id,)
        pair.source.fail(lease, "boom")
        pair.source.run_maintenance()
        again = only(pair.target)
        assert (len(again.deaths), again.counters.redrives, again.source_id) == (2, 1, lease.id)

    def test_full_queue_lets_it_wait(self, pair: StorePair, clock: FakeClock) -> None:
        pair.create_queues(max_size=1)
        kill(pair.source, "x")
        pair.source.run_maintenance()
        pair.source.put("jobs", "in the way")
        pair.target.redrive(only(pair.target).id)
        assert pair.target.run_maintenance().moved == 0
        (moving,) = pair.target.moves()
        assert moving.problem is not None
        assert "is full" in moving.problem
        pair.source.complete(take(pair.source))
        assert pair.target.run_maintenance().moved == 0, "it waits a second before it tries again"
        clock.advance("10m")
        assert pair.target.moves()[0].stuck
        assert pair.target.run_maintenance().moved == 1
        assert values(take_all(pair.source)) == ["x"]

    def test_queue_that_is_gone_lets_it_wait(self, pair: StorePair, clock: FakeClock) -> None:
        pair.create_queues()
        kill(pair.source, "x")
        pair.source.run_maintenance()
        pair.source.delete_queue("jobs")
        pair.target.redrive(only(pair.target).id)
        assert pair.target.run_maintenance().moved == 0
        assert "does not exist" in (pair.target.moves()[0].problem or "")
        pair.source.create_queue("jobs")
        clock.advance("1m")
        assert pair.target.run_maintenance().moved == 1

    def test_many_go_back_by_an_operation(self, pair: StorePair) -> None:
        pair.create_queues()
        for n in range(7):
            kill(pair.source, n)
        pair.source.run_maintenance()
        assert pair.target.plan_operation("redrive").queues == {f"jobs@{pair.source_name}": 7}
        ended = pair.target.run_operation(pair.target.start_operation("redrive", queue="morgue").id)
        assert (ended.changed, ended.status) == (7, "finished")
        assert pair.target.run_maintenance().moved == 7
        assert sorted(values(take_all(pair.source))) == list(range(7))

    def test_to_a_queue_of_the_store_it_lies_in(self, pair: StorePair) -> None:
        pair.create_queues()
        pair.target.create_queue("mended")
        kill(pair.source, "x")
        pair.source.run_maintenance()
        moved = pair.target.redrive(only(pair.target).id, to="mended")
        assert (moved.queue, moved.status) == ("mended", "pending")
        assert pair.target.undo(moved.id).queue == "morgue"
        assert pair.target.redrive(only(pair.target).id).status == "moving"

    def test_dead_item_goes_to_a_queue_elsewhere(self, pair: StorePair) -> None:
        pair.source.create_queue("jobs")
        pair.target.create_queue("mended")
        ids = [kill(pair.source, n).id for n in range(6)]
        settled = pair.source.redrive(ids, to=pair.there("mended"))
        assert {each.status for each in settled if isinstance(each, Settled)} == {"moving"}
        assert pair.source.run_maintenance().moved == 6
        assert sorted(values(take_all(pair.target, "mended"))) == list(range(6))
        assert pair.target.count() == 0

    def test_what_is_asked_for_too_much_is_refused(self, pair: StorePair) -> None:
        pair.create_queues()
        kill(pair.source, "x")
        pair.source.run_maintenance()
        id = only(pair.target).id
        with pytest.raises(InvalidInput, match="nothing is edited on the way"):
            pair.target.redrive(id, payload="mended")
        with pytest.raises(InvalidInput, match="knows no store 'nowhere'"):
            pair.target.redrive(id, to="jobs@nowhere")
        with pytest.raises(QueueNotFound, match="nothing@"):
            pair.target.redrive(id, to=f"nothing@{pair.source_name}")
        with pytest.raises(InvalidInput, match="canary"):
            pair.target.start_operation("redrive", to=f"jobs@{pair.source_name}", canary=1)
        assert only(pair.target).status == "pending"

    def test_it_cannot_be_undone_once_it_is_back(self, pair: StorePair) -> None:
        pair.create_queues()
        pair.source.create_queue("morgue")
        kill(pair.source, "x")
        pair.source.run_maintenance()
        operation = pair.target.start_operation("redrive", to=f"jobs@{pair.source_name}")
        pair.target.run_operation(operation.id)
        pair.target.run_maintenance()
        (item,) = pair.source.find(status="pending").items
        with pytest.raises(WrongStatus):
            pair.source.undo(item.id)
        with pytest.raises(InvalidInput, match="nothing can be undone in another store"):
            pair.target.undo_operation(operation.id)


class MoveElsewhereConformance(StorePairSuite):
    """Manual moves to another store: `move(ids, "name@store")`."""

    def test_work_keeps_what_it_is(self, pair: StorePair, clock: FakeClock) -> None:
        pair.source.create_queue("jobs", retry={"attempts": 3, "cooldown": "1h"}, expire_timeout="1d")
        pair.target.create_queue("inbox")
        scheduled = pair.source.put("jobs", "scheduled", delay="2h").id
        held = pair.source.put("jobs", "held", held_by="breaker").id
        failed = pair.source.put("jobs", "failed").id
        pair.source.fail(take(pair.source), "boom")
        before = {id: pair.source.get(id) for id in (scheduled, held, failed)}
        settled = pair.source.move(list(before), pair.there("inbox"), actor="ada")
        assert [each.status for each in settled if isinstance(each, Settled)] == ["moving"] * 3
        assert pair.source.stats("jobs").dead_letters == 0
        clock.advance("1s")
        assert pair.source.run_maintenance().moved == 3
        found = {item.source_id: item for item in pair.target.find(status="any").items}
        for id, item in found.items():
            assert id is not None
            was = before[id]
            assert (item.status, item.counters, item.held_by) == (was.status, was.counters, was.held_by)
            assert item.expire_deadline == was.expire_deadline
            assert (item.history[-1].event, item.history[-1].actor) == ("moved", "ada")
        assert found[scheduled].ready_at == before[scheduled].ready_at
        assert found[failed].ready_at == before[failed].ready_at
        assert take_all(pair.target, "inbox") == []
        assert pair.target.unhold("breaker") == 1
        assert values(take_all(pair.target, "inbox")) == ["held"]

    def test_dead_item_stays_dead(self, pair: StorePair) -> None:
        pair.source.create_queue("jobs")
        pair.target.create_queue("inbox", max_size=1)
        pair.target.put("inbox", "there")
        id = kill(pair.source, "x", error=ValueError("odd")).id
        before = pair.source.get(id)
        assert pair.source.move(id, pair.there("inbox")).status == "moving"
        assert pair.source.stats("jobs").dead_letters == 1
        pair.source.run_maintenance()
        item = only(pair.target)
        assert (item.status, item.counters, item.dead_reason, item.ended_at) == (
            "dead",
            before.counters,
            before.dead_reason,
            before.ended_at,
        )
        assert pair.target.count(words="odd") == 1

    def test_letter_goes_to_a_dead_queue_elsewhere_and_comes_back(self, pair: StorePair) -> None:
        pair.source.create_queue("morgue")
        pair.source.create_queue("jobs", dead_queue="morgue")
        pair.target.create_queue("cellar")
        pair.target.create_queue("work", dead_queue="cellar")
        pair.source.move(kill(pair.source, "x").id, pair.there("cellar"))
        pair.source.run_maintenance()
        letter = only(pair.target, queue="cellar")
        assert letter.home_store == pair.source_name
        pair.target.redrive(letter.id)
        pair.target.run_maintenance()
        assert values(take_all(pair.source)) == ["x"]

    def test_letter_is_work_in_a_queue_that_is_no_dead_queue(self, pair: StorePair) -> None:
        pair.source.create_queue("morgue")
        pair.source.create_queue("jobs", dead_queue="morgue")
        pair.target.create_queue("inbox")
        pair.source.move(kill(pair.source, "x").id, pair.there("inbox"))
        pair.source.run_maintenance()
        assert pair.target.count() == 0
        assert values(take_all(pair.target, "inbox")) == ["x"]

    def test_many_are_moved_by_an_operation(self, pair: StorePair) -> None:
        pair.source.create_queue("jobs")
        pair.target.create_queue("inbox")
        pair.source.put_many("jobs", range(7))
        ended = pair.source.run_operation(pair.source.start_operation("move", queue="jobs", to=pair.there("inbox")).id)
        assert ended.changed == 7
        assert pair.source.run_maintenance().moved == 7
        assert values(take_all(pair.target, "inbox")) == list(range(7))

    def test_active_item_is_moved_by_force(self, pair: StorePair) -> None:
        pair.source.create_queue("jobs")
        pair.target.create_queue("inbox")
        id = pair.source.put("jobs", "x").id
        take(pair.source)
        assert pair.source.move(id, pair.there("inbox"), force=True).status == "moving"
        pair.source.run_maintenance()
        assert values(take_all(pair.target, "inbox")) == ["x"]

    def test_own_store_may_be_named_in_a_move(self, pair: StorePair) -> None:
        pair.source.create_queue("jobs")
        pair.source.create_queue("inbox")
        id = pair.source.put("jobs", "x").id
        moved = pair.source.move(id, f"inbox@{pair.source_name}")
        assert (moved.queue, moved.status) == ("inbox", "pending")
