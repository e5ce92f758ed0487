"""Moves between stores: remote dead queues, items in transit, interrupted moves, checks of the remote queue."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.contract.admin_calls import SetSourceQueue
from redrive.contract.maintenance_calls import CloseMove, FinishMove, Receive
from redrive.contract.queries import ListMoves
from redrive.errors import InvalidSetting, QueueFull, QueueInUse, WrongStatus
from redrive.testing.conformance.actions import Boom, kill, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, StorePair, StorePairSuite, only
from redrive.testing.fake_clock import FakeClock


class DeadQueueElsewhereConformance(StorePairSuite):
    """A dead queue in another store: `dead_queue = "name@store"`."""

    def test_dead_item_arrives_with_everything(self, pair: StorePair, clock: FakeClock) -> None:
        pair.create_queues(retry={"attempts": 2, "cooldown": "1s"}, expire_timeout="1h")
        put = pair.source.put("jobs", {"n": 1}, headers={"h": "x"}, priority=7, max_attempts=9)
        pair.source.fail(take(pair.source), Boom("first"))
        clock.advance("1s")
        settled = pair.source.fail(take(pair.source, worker="w"), Boom("odd trouble"))
        assert (settled.status, settled.queue, settled.id) == ("moving", "jobs", put.id)
        assert (settled.dead_reason, settled.source_id) == ("retries_exhausted", None)
        before = pair.source.get(put.id)
        assert pair.source.run_maintenance().moved == 1
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

    def test_until_it_is_there_it_is_a_dead_letter_that_nobody_gets(self, pair: StorePair) -> None:
        pair.create_queues()
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

    def test_every_death_goes_there(self, pair: StorePair, clock: FakeClock) -> None:
        pair.create_queues(max_losses=1)
        source = pair.source
        ids = [source.put("jobs", "lost").id]
        take(source, lease_timeout="1s")
        clock.advance("1s")
        assert source.run_maintenance().lost == 1
        ids.append(source.put("jobs", "expired", expire_timeout="1s").id)
        clock.advance("1s")
        source.run_maintenance()
        ids.append(source.put("jobs", "buried").id)
        assert source.bury(take(source)).status == "moving"
        ids.append(source.put("jobs", "by hand").id)
        assert source.bury_items(ids[-1]).status == "moving"
        ids.append(source.put_failed("jobs", "outside", "boom").id)
        source.run_maintenance()
        found = {item.value: item.source_id for item in pair.target.find().items}
        assert found == dict(zip(("lost", "expired", "buried", "by hand", "outside"), ids, strict=True))
        assert source.count(status="any") == 0

    def test_table_by_error_names_queues_of_both_stores(self, pair: StorePair) -> None:
        pair.target.create_queue("odd")
        pair.source.create_queue("even")
        table = {"ValueError": pair.there("odd"), "default": "even"}
        pair.source.create_queue("jobs", dead_queue=table)
        assert kill(pair.source, 1, error=ValueError("x")).status == "moving"
        assert kill(pair.source, 2, error=Boom("x")).queue == "even"
        pair.source.run_maintenance()
        assert (only(pair.target, queue="odd").value, only(pair.source, queue="even").value) == (1, 2)

    def test_death_ignores_size_and_pause_of_the_dead_queue(self, pair: StorePair) -> None:
        pair.create_queues()
        pair.target.update_queue("morgue", max_size=1)
        pair.target.pause_queue("morgue")
        for n in range(3):
            kill(pair.source, n)
        assert pair.source.run_maintenance().moved == 3
        assert pair.target.stats("morgue").dead_letters == 3

    def test_many_arrive_in_order(self, pair: StorePair) -> None:
        pair.create_queues()
        pair.source.put_many("jobs", range(250))
        for lease in take_all(pair.source):
            pair.source.fail(lease, "boom")
        assert [pair.source.run_maintenance().moved for _ in range(4)] == [100, 100, 50, 0]
        assert values(take_all(pair.target, "morgue")) == list(range(250))
        assert pair.left_open() == 0

    def test_large_payloads_go_in_several_steps(self, pair: StorePair) -> None:
        pair.create_queues(max_payload_size=20_000_000)
        for n in range(3):
            kill(pair.source, bytes([n]) * 5_000_000)
        assert [pair.source.run_maintenance().moved for _ in range(4)] == [1, 1, 1, 0]
        assert [len(value) for value in values(take_all(pair.target, "morgue"))] == [5_000_000] * 3

    def test_retention_waits_for_what_is_on_its_way(self, pair: StorePair, clock: FakeClock) -> None:
        pair.create_queues(keep_dead="1h", archive_after="1m")
        kill(pair.source)
        clock.advance("1d")
        pair.receive()
        pair.source.core.trials.failed(pair.there("morgue"), QueueFull("morgue", 1, 1), clock.now())
        pair.source.run_maintenance()
        assert pair.source.stats("jobs").moving == 1

    def test_feed_of_each_store_tells_its_part(self, pair: StorePair) -> None:
        pair.create_queues()
        id = kill(pair.source, error=ValueError("x")).id
        pair.source.run_maintenance()
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

    def test_import_takes_what_was_on_its_way_as_dead(self, pair: StorePair, open_broker: OpenBroker) -> None:
        pair.create_queues()
        kill(pair.source, "x")
        elsewhere = open_broker(namespace="elsewhere")
        elsewhere.create_queue("jobs")
        elsewhere.import_items(pair.source.export(redacted=False))
        assert (only(elsewhere).status, only(elsewhere).value) == ("dead", "x")


class MovingItemConformance(StorePairSuite):
    """Changes that are accepted or refused for an item that is moving."""

    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("verb", ["retry", "redrive", "complete_items", "move", "bury_items"])
    def test_it_cannot_be_changed(self, pair: StorePair, verb: str, force: bool) -> None:
        pair.create_queues()
        pair.source.create_queue("other")
        id = kill(pair.source).id
        options: dict[str, Any] = {"to": "other"} if verb == "move" else {}
        with pytest.raises(WrongStatus, match="in the other store once it has arrived"):
            getattr(pair.source, verb)(id, force=force, **options)
        for other in ("archive", "restore", "purge"):
            with pytest.raises(WrongStatus):
                getattr(pair.source, other)(id)
        assert pair.source.hold([id], "h") == 0
        assert pair.source.run_maintenance().moved == 1

    def test_it_can_be_dropped_by_force_only(self, pair: StorePair) -> None:
        pair.create_queues()
        id = kill(pair.source).id
        with pytest.raises(WrongStatus, match="in the other store once it has arrived"):
            pair.source.drop(id)
        assert pair.source.drop(id, force=True).status is None
        assert pair.source.run_maintenance().moved == 0
        assert (pair.source.stats("jobs").moving, pair.source.count(), pair.target.count()) == (0, 0, 0)

    def test_operation_leaves_it_out(self, pair: StorePair) -> None:
        pair.create_queues()
        kill(pair.source)
        planned = pair.source.plan_operation("redrive", queue="jobs")
        assert planned.skipped == {"wrong_status": 1}
        operation = pair.source.start_operation("redrive", queue="jobs")
        ended = pair.source.run_operation(operation.id)
        assert (ended.changed, ended.skipped) == (0, {"wrong_status": 1})

    def test_queue_with_items_on_their_way_is_deleted_with_them(self, pair: StorePair) -> None:
        pair.create_queues()
        kill(pair.source)
        assert pair.source.delete_queue("jobs", confirm=1) == 1
        assert pair.source.moves() == ()
        assert pair.source.run_maintenance().moved == 0


class InterruptedMoveConformance(StorePairSuite):
    """A move that stops after any of its four transactions continues, and no item is lost or duplicated."""

    def test_after_it_was_received(self, pair: StorePair) -> None:
        pair.create_queues()
        kill(pair.source, "x")
        (receipt,) = pair.receive()
        assert not receipt.duplicate
        (again,) = pair.receive()
        assert (again.id, again.duplicate) == (receipt.id, True)
        assert pair.left_open() == 1
        assert pair.source.run_maintenance().moved == 1
        assert values(take_all(pair.target, "morgue")) == ["x"]
        assert pair.source.count(status="any") == 0
        assert pair.left_open() == 0

    def test_after_it_was_received_and_consumed(self, pair: StorePair, clock: FakeClock) -> None:
        pair.create_queues()
        kill(pair.source, "x")
        (receipt,) = pair.receive()
        pair.target.complete(take(pair.target, "morgue"))
        clock.advance("30d")
        pair.target.run_maintenance()
        assert pair.receive()[0].duplicate
        assert pair.source.run_maintenance().moved == 1
        assert pair.target.count(status="any") == pair.source.count(status="any") == 0
        assert receipt.id

    def test_after_it_was_removed(self, pair: StorePair) -> None:
        pair.create_queues()
        id = kill(pair.source, "x").id
        pair.receive()
        store = pair.source.core.store
        assert store.commit([FinishMove((id,)), FinishMove((id,))]).results == [1, 0]
        assert pair.left_open() == 1
        pair.target.run_maintenance()
        assert pair.left_open() == 0
        assert values(take_all(pair.target, "morgue")) == ["x"]

    def test_what_is_still_moving_is_not_closed(self, pair: StorePair) -> None:
        pair.create_queues()
        kill(pair.source, "x")
        pair.receive()
        pair.target.run_maintenance()
        assert pair.left_open() == 1

    def test_closed_twice_is_no_error_and_forgotten_a_week_later(self, pair: StorePair, clock: FakeClock) -> None:
        pair.create_queues()
        id = kill(pair.source, "x").id
        move = pair.source.core.store.read(ListMoves())[0]
        pair.source.run_maintenance()
        store = pair.target.core.store
        assert store.commit([CloseMove("morgue", pair.source_name, (id,))]).results == [0]
        pair.target.complete(take(pair.target, "morgue"))
        late = Receive("morgue", move, pair.source_name)
        clock.advance("6d")
        pair.target.run_maintenance()
        assert store.commit([late]).results[0].duplicate
        clock.advance("2d")
        pair.target.run_maintenance()
        assert not store.commit([late]).results[0].duplicate

    def test_what_was_imported_before_is_received_all_the_same(self, pair: StorePair) -> None:
        pair.target.create_queue("morgue")
        pair.source.create_queue("jobs")
        id = kill(pair.source, "x").id
        pair.target.import_items(pair.source.export(redacted=False), queue="morgue")
        pair.target.drop(only(pair.target).id)
        pair.source.redrive(id)
        pair.source.update_queue("jobs", dead_queue=pair.there("morgue"))
        assert pair.source.fail(take(pair.source), "boom").status == "moving"
        pair.source.run_maintenance()
        assert only(pair.target).value == "x"

    def test_what_was_received_is_not_imported_too(self, pair: StorePair) -> None:
        pair.create_queues()
        kill(pair.source, "x")
        lines = list(pair.source.export(redacted=False))
        pair.source.run_maintenance()
        assert pair.target.import_items(lines, queue="morgue").ignored == 1
        pair.target.complete(take(pair.target, "morgue"))
        assert pair.target.import_items(lines, queue="morgue").ignored == 1


class DeadQueueElsewhereRulesConformance(StorePairSuite):
    """The rules for dead queues, across two stores."""

    def refused(self, pair: StorePair, dead_queue: Any, text: str) -> None:
        """Check that create and update refuse the dead queue, and that nothing is changed."""
        with pytest.raises(InvalidSetting, match=text):
            pair.source.create_queue("jobs", dead_queue=dead_queue)
        pair.source.create_queue("jobs")
        with pytest.raises(InvalidSetting, match=text):
            pair.source.update_queue("jobs", dead_queue=dead_queue)
        assert pair.source.get_queue("jobs").settings.dead_queue is None

    def test_store_must_be_known(self, pair: StorePair) -> None:
        self.refused(pair, "morgue@nowhere", "^dead_queue .*knows no store 'nowhere', only here, there")

    def test_dead_queue_elsewhere_must_exist(self, pair: StorePair) -> None:
        self.refused(pair, pair.there("morgue"), r"^dead_queue 'morgue@\w+' does not exist; create it first")

    def test_dead_queue_elsewhere_must_not_have_one_of_its_own(self, pair: StorePair) -> None:
        pair.target.create_queue("cellar")
        pair.target.create_queue("morgue", dead_queue="cellar")
        self.refused(
            pair, {"default": pair.there("morgue")}, r"^dead_queue 'morgue@\w+' cannot have its own dead_queue"
        )

    def test_dead_queue_elsewhere_cannot_be_given_one_later(self, pair: StorePair) -> None:
        pair.create_queues()
        pair.target.create_queue("cellar")
        pair.source.create_queue("pit")
        for dead_queue in ("cellar", f"pit@{pair.source_name}"):
            with pytest.raises(InvalidSetting, match="'morgue' cannot have its own dead_queue"):
                pair.target.update_queue("morgue", dead_queue=dead_queue)
        assert pair.source.get_queue("pit").source_queues == ()

    def test_dead_queue_knows_by_whom_it_is_used(self, pair: StorePair) -> None:
        pair.create_queues()
        morgue = pair.target.get_queue("morgue")
        assert (morgue.is_dead_queue, morgue.source_queues) == (True, (f"jobs@{pair.source_name}",))
        pair.source.create_queue("mails", dead_queue={"default": pair.there("morgue")})
        with pytest.raises(QueueInUse, match=f"jobs@{pair.source_name}, mails@{pair.source_name}"):
            pair.target.delete_queue("morgue")
        pair.source.update_queue("jobs", dead_queue=None)
        assert pair.target.get_queue("morgue").source_queues == (f"mails@{pair.source_name}",)
        pair.source.delete_queue("mails")
        assert pair.target.get_queue("morgue").source_queues == ()
        assert pair.target.get_queue("morgue").is_dead_queue
        assert pair.target.delete_queue("morgue") == 0

    def test_update_of_another_setting_keeps_it(self, pair: StorePair) -> None:
        pair.create_queues()
        pair.source.update_queue("jobs", max_losses=7)
        assert pair.target.get_queue("morgue").source_queues == (f"jobs@{pair.source_name}",)

    def test_refused_queue_leaves_nothing_behind(self, pair: StorePair) -> None:
        pair.target.create_queue("morgue")
        pair.source.create_queue("jobs")
        with pytest.raises(InvalidSetting):
            pair.source.create_queue("other", dead_queue={"ValueError": pair.there("morgue"), "default": "missing"})
        assert pair.target.get_queue("morgue").source_queues == ()

    def test_what_a_crash_left_behind_does_not_keep_a_queue(self, pair: StorePair) -> None:
        pair.target.create_queue("morgue")
        pair.source.create_queue("mails")
        store = pair.target.core.store
        for user in ("gone", "mails"):
            store.commit([SetSourceQueue("morgue", f"{user}@{pair.source_name}")])
        assert pair.target.delete_queue("morgue") == 0

    def test_user_in_a_store_that_is_not_known_keeps_it(self, pair: StorePair) -> None:
        pair.target.create_queue("morgue")
        pair.target.core.store.commit([SetSourceQueue("morgue", "jobs@far")])
        with pytest.raises(QueueInUse, match="jobs@far"):
            pair.target.delete_queue("morgue")

    def test_own_store_may_be_named_in_a_dead_queue(self, pair: StorePair) -> None:
        pair.source.create_queue("morgue")
        queue = pair.source.create_queue("jobs", dead_queue=f"morgue@{pair.source_name}")
        assert queue.settings.dead_queue == "morgue"
        assert pair.source.create_queue("jobs", dead_queue="morgue") == pair.source.get_queue("jobs")
        assert kill(pair.source).queue == "morgue"
