"""Moves between stores: a dead queue in another store, redrives back, moves by hand. Both ways, with one in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from redrive import Broker
from redrive.errors import InvalidInput, QueueFull, QueueNotFound, WrongStatus
from redrive.model.item import Item, Settled
from redrive.store import CloseMove, FinishMove, ListMoves, ListOpenMoves, Receive
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import Boom, kill, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, Suite


class Pair(NamedTuple):
    """Two stores that know each other. Items die in the first one."""

    source: Broker
    target: Broker

    @property
    def source_name(self) -> str:
        """What the second one calls the first."""
        return self.source._core.store.name

    @property
    def target_name(self) -> str:
        """What the first one calls the second."""
        return self.target._core.store.name

    def there(self, queue: str) -> str:
        """The address of a queue in the second store."""
        return f"{queue}@{self.target_name}"

    def furnish(self, **settings: Any) -> None:
        """A dead queue in the second store, and a queue in the first whose dead go there."""
        self.target.create_queue("morgue")
        self.source.create_queue("jobs", dead_queue=self.there("morgue"), **settings)

    def receive(self) -> list[Any]:
        """Only the second step of every move."""
        moves = self.source._core.store.read(ListMoves())
        calls = [Receive(move.passage.to.partition("@")[0], move, self.source_name) for move in moves]
        return self.target._core.store.commit(calls).results

    def left_open(self) -> int:
        """What the second store has received and the first may still have."""
        return len(self.target._core.store.read(ListOpenMoves(self.source_name)))


class PairSuite(Suite):
    """A store under test and one in memory, each once as the one that items leave."""

    @pytest.fixture(params=["to memory", "from memory"])
    def pair(self, request: pytest.FixtureRequest, open_broker: OpenBroker) -> Pair:
        """Two stores that know each other."""
        here = open_broker(name="here", stores={"there": "memory://"})
        there = here.at("there")
        return Pair(here, there) if request.param == "to memory" else Pair(there, here)


def only(broker: Broker, **conditions: Any) -> Item:
    """The one item that is found."""
    (item,) = broker.find(**conditions).items
    return item


class DeadQueueElsewhereConformance(PairSuite):
    """`dead_queue = "name@store"`."""

    def test_dead_item_arrives_with_everything(self, pair: Pair, clock: FakeClock) -> None:
        pair.furnish(retry={"attempts": 2, "cooldown": "1s"}, expire_timeout="1h")
        put = pair.source.put("jobs", {"n": 1}, headers={"h": "x"}, priority=7, max_attempts=9)
        pair.source.fail(take(pair.source), Boom("first"))
        clock.advance("1s")
        settled = pair.source.fail(take(pair.source, worker="w"), Boom("odd trouble"))
        assert (settled.status, settled.queue, settled.id) == ("moving", "jobs", put.id)
        assert (settled.dead_reason, settled.source_id) == ("retries_exhausted", None)
        before = pair.source.get(put.id)
        assert pair.source.step().moved == 1
        item = only(pair.target)
        assert (item.value, item.headers, item.priority) == ({"n": 1}, {"h": "x"}, 7)
        assert (item.status, item.queue, item.expire_deadline) == ("pending", "morgue", None)
        assert (item.put_at, item.first_leased_at, item.overrides) == (
            before.put_at,
            before.first_leased_at,
            before.overrides,
        )
        assert item.id != put.id
        assert (item.source_id, item.origin_id, item.origin_queue) == (put.id, put.id, "jobs")
        assert (item.history, item.deaths) == (before.history, before.deaths)
        assert [entry.failure.text for entry in item.history if entry.failure] == ["first", "odd trouble"]
        death = item.deaths[0]
        assert (death.store, death.queue, death.id) == (pair.source_name, "jobs", put.id)
        counters = item.counters
        assert (counters.deliveries, counters.attempts, counters.failures, counters.redrives) == (2, 0, 0, 0)
        assert pair.target.count(words="odd") == 1
        assert [group.count for group in pair.target.groups()] == [1]
        assert values(take_all(pair.target, "morgue")) == [{"n": 1}]
        assert pair.source.count(status="any") == 0
        assert pair.source.stats("jobs").moving == 0

    def test_until_it_is_there_it_is_a_dead_letter_that_nobody_gets(self, pair: Pair) -> None:
        pair.furnish()
        id = kill(pair.source).id
        item = pair.source.get(id)
        assert (item.status, item.moving_to, item.ready_at, item.dead_reason) == (
            "moving",
            pair.there("morgue"),
            None,
            None,
        )
        assert item.moving_since == item.deaths[0].at
        stats = pair.source.stats("jobs")
        assert (stats.moving, stats.dead_letters, stats.dead, stats.pending, stats.dead_total) == (1, 1, 0, 0, 1)
        assert take_all(pair.source) == []
        assert only(pair.source, status="moving").id == only(pair.source).id == id
        assert [group.count for group in pair.source.groups()] == [1]
        (moving,) = pair.source.moves()
        assert (moving.id, moving.queue, moving.to, moving.problem, moving.stuck) == (
            id,
            "jobs",
            pair.there("morgue"),
            None,
            False,
        )

    def test_every_death_goes_there(self, pair: Pair, clock: FakeClock) -> None:
        pair.furnish(max_losses=1)
        source = pair.source
        ids = [source.put("jobs", "lost").id]
        take(source, lease_timeout="1s")
        clock.advance("1s")
        assert source.step().lost == 1
        ids.append(source.put("jobs", "expired", expire_timeout="1s").id)
        clock.advance("1s")
        source.step()
        ids.append(source.put("jobs", "buried").id)
        assert source.bury(take(source)).status == "moving"
        ids.append(source.put("jobs", "by hand").id)
        assert source.bury_by_hand(ids[-1]).status == "moving"
        ids.append(source.put_failed("jobs", "outside", "boom").id)
        source.step()
        found = {item.value: item.source_id for item in pair.target.find().items}
        assert found == dict(zip(("lost", "expired", "buried", "by hand", "outside"), ids, strict=True))
        assert source.count(status="any") == 0

    def test_table_by_error_names_queues_of_both_stores(self, pair: Pair) -> None:
        pair.target.create_queue("odd")
        pair.source.create_queue("even")
        table = {"ValueError": pair.there("odd"), "default": "even"}
        pair.source.create_queue("jobs", dead_queue=table)
        assert kill(pair.source, 1, error=ValueError("x")).status == "moving"
        assert kill(pair.source, 2, error=Boom("x")).queue == "even"
        pair.source.step()
        assert (only(pair.target, queue="odd").value, only(pair.source, queue="even").value) == (1, 2)

    def test_death_ignores_size_and_pause_of_the_dead_queue(self, pair: Pair) -> None:
        pair.furnish()
        pair.target.update_queue("morgue", max_size=1)
        pair.target.pause_queue("morgue")
        for n in range(3):
            kill(pair.source, n)
        assert pair.source.step().moved == 3
        assert pair.target.stats("morgue").dead_letters == 3

    def test_many_arrive_in_order(self, pair: Pair) -> None:
        pair.furnish()
        pair.source.put_many("jobs", range(250))
        for lease in take_all(pair.source):
            pair.source.fail(lease, "boom")
        assert [pair.source.step().moved for _ in range(4)] == [100, 100, 50, 0]
        assert values(take_all(pair.target, "morgue")) == list(range(250))
        assert pair.left_open() == 0

    def test_large_payloads_go_in_several_steps(self, pair: Pair) -> None:
        pair.furnish(max_payload_size=20_000_000)
        for n in range(3):
            kill(pair.source, bytes([n]) * 5_000_000)
        assert [pair.source.step().moved for _ in range(4)] == [1, 1, 1, 0]
        assert [len(value) for value in values(take_all(pair.target, "morgue"))] == [5_000_000] * 3

    def test_retention_waits_for_what_is_on_its_way(self, pair: Pair, clock: FakeClock) -> None:
        pair.furnish(keep_dead="1h", archive_after="1m")
        kill(pair.source)
        clock.advance("1d")
        pair.receive()
        pair.source._core.trials.failed(pair.there("morgue"), QueueFull("morgue", 1, 1), clock.now())
        pair.source.step()
        assert pair.source.stats("jobs").moving == 1

    def test_feed_of_each_store_tells_its_part(self, pair: Pair) -> None:
        pair.furnish()
        id = kill(pair.source, error=ValueError("x")).id
        pair.source.step()
        (died,) = pair.source.feed().entries
        assert (died.kind, died.queue, died.id, died.source_id, died.title) == (
            "dead",
            "jobs",
            id,
            None,
            "ValueError: x",
        )
        (arrived,) = pair.target.feed().entries
        assert (arrived.kind, arrived.queue, arrived.source_id) == ("arrived", "morgue", id)

    def test_import_takes_what_was_on_its_way_as_dead(self, pair: Pair, open_broker: OpenBroker) -> None:
        pair.furnish()
        kill(pair.source, "x")
        elsewhere = open_broker(namespace="elsewhere")
        elsewhere.create_queue("jobs")
        elsewhere.import_items(pair.source.export(redacted=False))
        assert (only(elsewhere).status, only(elsewhere).value) == ("dead", "x")


class OnItsWayConformance(PairSuite):
    """What can, and what cannot, be done to an item that is moving."""

    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("verb", ["retry", "redrive", "done", "move", "bury_by_hand"])
    def test_it_cannot_be_changed(self, pair: Pair, verb: str, force: bool) -> None:
        pair.furnish()
        pair.source.create_queue("other")
        id = kill(pair.source).id
        options: dict[str, Any] = {"to": "other"} if verb == "move" else {}
        with pytest.raises(WrongStatus, match="on its way to another store"):
            getattr(pair.source, verb)(id, force=force, **options)
        for other in ("archive", "restore", "purge"):
            with pytest.raises(WrongStatus):
                getattr(pair.source, other)(id)
        assert pair.source.hold([id], "h") == 0
        assert pair.source.step().moved == 1

    def test_it_can_be_dropped_by_force_only(self, pair: Pair) -> None:
        pair.furnish()
        id = kill(pair.source).id
        with pytest.raises(WrongStatus, match="on its way"):
            pair.source.drop(id)
        assert pair.source.drop(id, force=True).status is None
        assert pair.source.step().moved == 0
        assert (pair.source.stats("jobs").moving, pair.source.count(), pair.target.count()) == (0, 0, 0)

    def test_operation_leaves_it_out(self, pair: Pair) -> None:
        pair.furnish()
        kill(pair.source)
        planned = pair.source.plan("redrive", queue="jobs")
        assert planned.left_out == {"wrong_status": 1}
        operation = pair.source.start("redrive", queue="jobs")
        ended = pair.source.drive(operation.id)
        assert (ended.changed, ended.left_out) == (0, {"wrong_status": 1})

    def test_queue_with_items_on_their_way_is_deleted_with_them(self, pair: Pair) -> None:
        pair.furnish()
        kill(pair.source)
        assert pair.source.delete_queue("jobs", confirm=1) == 1
        assert pair.source.moves() == ()
        assert pair.source.step().moved == 0


class InterruptedMoveConformance(PairSuite):
    """A move that stops after any of its four transactions goes on, and nothing is lost or there twice."""

    def test_after_it_was_received(self, pair: Pair) -> None:
        pair.furnish()
        kill(pair.source, "x")
        (receipt,) = pair.receive()
        assert not receipt.duplicate
        (again,) = pair.receive()
        assert (again.id, again.duplicate) == (receipt.id, True)
        assert pair.left_open() == 1
        assert pair.source.step().moved == 1
        assert values(take_all(pair.target, "morgue")) == ["x"]
        assert pair.source.count(status="any") == 0
        assert pair.left_open() == 0

    def test_after_it_was_received_and_consumed(self, pair: Pair, clock: FakeClock) -> None:
        pair.furnish()
        kill(pair.source, "x")
        (receipt,) = pair.receive()
        pair.target.complete(take(pair.target, "morgue"))
        clock.advance("30d")
        pair.target.step()
        assert pair.receive()[0].duplicate
        assert pair.source.step().moved == 1
        assert pair.target.count(status="any") == pair.source.count(status="any") == 0
        assert receipt.id

    def test_after_it_was_removed(self, pair: Pair) -> None:
        pair.furnish()
        id = kill(pair.source, "x").id
        pair.receive()
        store = pair.source._core.store
        assert store.commit([FinishMove((id,)), FinishMove((id,))]).results == [1, 0]
        assert pair.left_open() == 1
        pair.target.step()
        assert pair.left_open() == 0
        assert values(take_all(pair.target, "morgue")) == ["x"]

    def test_what_is_still_moving_is_not_closed(self, pair: Pair) -> None:
        pair.furnish()
        kill(pair.source, "x")
        pair.receive()
        pair.target.step()
        assert pair.left_open() == 1

    def test_closed_twice_is_no_error_and_forgotten_a_week_later(self, pair: Pair, clock: FakeClock) -> None:
        pair.furnish()
        id = kill(pair.source, "x").id
        move = pair.source._core.store.read(ListMoves())[0]
        pair.source.step()
        store = pair.target._core.store
        assert store.commit([CloseMove("morgue", pair.source_name, (id,))]).results == [0]
        pair.target.complete(take(pair.target, "morgue"))
        late = Receive("morgue", move, pair.source_name)
        clock.advance("6d")
        pair.target.step()
        assert store.commit([late]).results[0].duplicate
        clock.advance("2d")
        pair.target.step()
        assert not store.commit([late]).results[0].duplicate

    def test_what_was_imported_before_is_received_all_the_same(self, pair: Pair) -> None:
        pair.target.create_queue("morgue")
        pair.source.create_queue("jobs")
        id = kill(pair.source, "x").id
        pair.target.import_items(pair.source.export(redacted=False), queue="morgue")
        pair.target.drop(only(pair.target).id)
        pair.source.redrive(id)
        pair.source.update_queue("jobs", dead_queue=pair.there("morgue"))
        assert pair.source.fail(take(pair.source), "boom").status == "moving"
        pair.source.step()
        assert only(pair.target).value == "x"

    def test_what_was_received_is_not_imported_too(self, pair: Pair) -> None:
        pair.furnish()
        kill(pair.source, "x")
        lines = list(pair.source.export(redacted=False))
        pair.source.step()
        assert pair.target.import_items(lines, queue="morgue").ignored == 1
        pair.target.complete(take(pair.target, "morgue"))
        assert pair.target.import_items(lines, queue="morgue").ignored == 1


class RedriveElsewhereConformance(PairSuite):
    """Back to work in the store that an item came from, or in another one."""

    def test_it_goes_back_and_dies_again(self, pair: Pair, clock: FakeClock) -> None:
        pair.furnish(expire_timeout="1h")
        first = kill(pair.source, "x").id
        pair.source.step()
        letter = only(pair.target)
        assert letter.home == pair.source_name
        clock.advance("2h")
        settled = pair.target.redrive(letter.id, actor="ada", note="mended")
        assert (settled.status, settled.queue, settled.id) == ("moving", "morgue", letter.id)
        stats = pair.target.stats("morgue")
        assert (stats.moving, stats.dead_letters) == (1, 0)
        assert pair.target.step().moved == 1
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
        pair.source.step()
        again = only(pair.target)
        assert (len(again.deaths), again.counters.redrives, again.source_id) == (2, 1, lease.id)

    def test_full_queue_lets_it_wait(self, pair: Pair, clock: FakeClock) -> None:
        pair.furnish(max_size=1)
        kill(pair.source, "x")
        pair.source.step()
        pair.source.put("jobs", "in the way")
        pair.target.redrive(only(pair.target).id)
        assert pair.target.step().moved == 0
        (moving,) = pair.target.moves()
        assert moving.problem is not None
        assert "is full" in moving.problem
        pair.source.complete(take(pair.source))
        assert pair.target.step().moved == 0, "it waits a second before it tries again"
        clock.advance("10m")
        assert pair.target.moves()[0].stuck
        assert pair.target.step().moved == 1
        assert values(take_all(pair.source)) == ["x"]

    def test_queue_that_is_gone_lets_it_wait(self, pair: Pair, clock: FakeClock) -> None:
        pair.furnish()
        kill(pair.source, "x")
        pair.source.step()
        pair.source.delete_queue("jobs")
        pair.target.redrive(only(pair.target).id)
        assert pair.target.step().moved == 0
        assert "does not exist" in (pair.target.moves()[0].problem or "")
        pair.source.create_queue("jobs")
        clock.advance("1m")
        assert pair.target.step().moved == 1

    def test_many_go_back_by_an_operation(self, pair: Pair) -> None:
        pair.furnish()
        for n in range(7):
            kill(pair.source, n)
        pair.source.step()
        assert pair.target.plan("redrive").queues == {f"jobs@{pair.source_name}": 7}
        ended = pair.target.drive(pair.target.start("redrive", queue="morgue").id)
        assert (ended.changed, ended.status) == (7, "finished")
        assert pair.target.step().moved == 7
        assert sorted(values(take_all(pair.source))) == list(range(7))

    def test_to_a_queue_of_the_store_it_lies_in(self, pair: Pair) -> None:
        pair.furnish()
        pair.target.create_queue("mended")
        kill(pair.source, "x")
        pair.source.step()
        moved = pair.target.redrive(only(pair.target).id, to="mended")
        assert (moved.queue, moved.status) == ("mended", "pending")
        assert pair.target.undo(moved.id).queue == "morgue"
        assert pair.target.redrive(only(pair.target).id).status == "moving"

    def test_dead_item_goes_to_a_queue_elsewhere(self, pair: Pair) -> None:
        pair.source.create_queue("jobs")
        pair.target.create_queue("mended")
        ids = [kill(pair.source, n).id for n in range(6)]
        settled = pair.source.redrive(ids, to=pair.there("mended"))
        assert {each.status for each in settled if isinstance(each, Settled)} == {"moving"}
        assert pair.source.step().moved == 6
        assert sorted(values(take_all(pair.target, "mended"))) == list(range(6))
        assert pair.target.count() == 0

    def test_what_is_asked_for_too_much_is_refused(self, pair: Pair) -> None:
        pair.furnish()
        kill(pair.source, "x")
        pair.source.step()
        id = only(pair.target).id
        with pytest.raises(InvalidInput, match="nothing is edited on the way"):
            pair.target.redrive(id, payload="mended")
        with pytest.raises(InvalidInput, match="knows no store 'nowhere'"):
            pair.target.redrive(id, to="jobs@nowhere")
        with pytest.raises(QueueNotFound, match="nothing@"):
            pair.target.redrive(id, to=f"nothing@{pair.source_name}")
        with pytest.raises(InvalidInput, match="canary"):
            pair.target.start("redrive", to=f"jobs@{pair.source_name}", canary=1)
        assert only(pair.target).status == "pending"

    def test_it_cannot_be_undone_once_it_is_back(self, pair: Pair) -> None:
        pair.furnish()
        pair.source.create_queue("morgue")
        kill(pair.source, "x")
        pair.source.step()
        operation = pair.target.start("redrive", to=f"jobs@{pair.source_name}")
        pair.target.drive(operation.id)
        pair.target.step()
        (item,) = pair.source.find(status="pending").items
        with pytest.raises(WrongStatus):
            pair.source.undo(item.id)
        with pytest.raises(InvalidInput, match="nothing is taken back from another store"):
            pair.target.undo_operation(operation.id)


class MoveElsewhereConformance(PairSuite):
    """`move(ids, "name@store")`."""

    def test_work_keeps_what_it_is(self, pair: Pair, clock: FakeClock) -> None:
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
        assert pair.source.step().moved == 3
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

    def test_dead_item_stays_dead(self, pair: Pair) -> None:
        pair.source.create_queue("jobs")
        pair.target.create_queue("inbox", max_size=1)
        pair.target.put("inbox", "there")
        id = kill(pair.source, "x", error=ValueError("odd")).id
        before = pair.source.get(id)
        assert pair.source.move(id, pair.there("inbox")).status == "moving"
        assert pair.source.stats("jobs").dead_letters == 1
        pair.source.step()
        item = only(pair.target)
        assert (item.status, item.counters, item.dead_reason, item.ended_at) == (
            "dead",
            before.counters,
            before.dead_reason,
            before.ended_at,
        )
        assert pair.target.count(words="odd") == 1

    def test_letter_goes_to_a_dead_queue_elsewhere_and_comes_back(self, pair: Pair) -> None:
        pair.source.create_queue("morgue")
        pair.source.create_queue("jobs", dead_queue="morgue")
        pair.target.create_queue("cellar")
        pair.target.create_queue("work", dead_queue="cellar")
        pair.source.move(kill(pair.source, "x").id, pair.there("cellar"))
        pair.source.step()
        letter = only(pair.target, queue="cellar")
        assert letter.home == pair.source_name
        pair.target.redrive(letter.id)
        pair.target.step()
        assert values(take_all(pair.source)) == ["x"]

    def test_letter_is_work_in_a_queue_that_is_no_dead_queue(self, pair: Pair) -> None:
        pair.source.create_queue("morgue")
        pair.source.create_queue("jobs", dead_queue="morgue")
        pair.target.create_queue("inbox")
        pair.source.move(kill(pair.source, "x").id, pair.there("inbox"))
        pair.source.step()
        assert pair.target.count() == 0
        assert values(take_all(pair.target, "inbox")) == ["x"]

    def test_many_are_moved_by_an_operation(self, pair: Pair) -> None:
        pair.source.create_queue("jobs")
        pair.target.create_queue("inbox")
        pair.source.put_many("jobs", range(7))
        ended = pair.source.drive(pair.source.start("move", queue="jobs", to=pair.there("inbox")).id)
        assert ended.changed == 7
        assert pair.source.step().moved == 7
        assert values(take_all(pair.target, "inbox")) == list(range(7))

    def test_active_item_is_moved_by_force(self, pair: Pair) -> None:
        pair.source.create_queue("jobs")
        pair.target.create_queue("inbox")
        id = pair.source.put("jobs", "x").id
        take(pair.source)
        assert pair.source.move(id, pair.there("inbox"), force=True).status == "moving"
        pair.source.step()
        assert values(take_all(pair.target, "inbox")) == ["x"]

    def test_own_store_may_be_named_in_a_move(self, pair: Pair) -> None:
        pair.source.create_queue("jobs")
        pair.source.create_queue("inbox")
        id = pair.source.put("jobs", "x").id
        moved = pair.source.move(id, f"inbox@{pair.source_name}")
        assert (moved.queue, moved.status) == ("inbox", "pending")
