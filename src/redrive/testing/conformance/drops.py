"""Drops: a dropped item is archived for a time, and restored unchanged. Its idempotency key is free until then."""

from __future__ import annotations

import pytest

from redrive import Broker, Settled
from redrive.errors import IdempotencyConflict, ItemActive, ItemNotFound, LeaseLost, RedriveError, WrongStatus
from redrive.model.duration import DAY
from redrive.testing.conformance.actions import Boom, die, found, perform, places, take, take_all
from redrive.testing.conformance.archive import (
    LETTERS,
    STARTS,
    Start,
    completed,
    create_queues,
    dead,
    failed,
    held,
    ready,
    seen,
    without_history,
)
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock


class DropByHandConformance(Suite):
    """A drop archives an item, and undo restores it."""

    @pytest.mark.parametrize("undo", ["undo", "restore"])
    @pytest.mark.parametrize("start", STARTS)
    def test_dropped_item_comes_back_as_it_was(self, broker: Broker, clock: FakeClock, start: Start, undo: str) -> None:
        create_queues(broker)
        id = start(broker)
        before, counted = broker.get(id), seen(broker)
        settled = broker.drop(id, actor="ada")
        at = clock.now()
        assert (settled.id, settled.status, settled.undo_until) == (id, "archived", at + 7 * DAY)
        dropped = broker.get(id)
        assert dropped.dropped is not None
        entry = dropped.dropped
        assert (entry.at, entry.actor, entry.queue, entry.from_status) == (at, "ada", before.queue, before.status)
        assert (dropped.dead_reason is not None, settled.dead_reason) == (start in LETTERS, dropped.dead_reason)
        ended = before.deaths[-1].at if start in LETTERS else before.ended_at
        assert (dropped.ended_at, dropped.result, dropped.held_by) == (ended, before.result, before.held_by)
        clock.advance("2h")
        assert take_all(broker) == take_all(broker, "morgue") == []
        stats = broker.stats(before.queue)
        assert (places(stats), stats.dead_letters, stats.archived_total, broker.groups()) == ({"archived": 1}, 0, 0, ())
        restored = getattr(broker, undo)(id, actor="bob")
        after = broker.get(id)
        assert (restored.status, restored.ready_at, restored.dead_reason) == (
            before.status,
            before.ready_at,
            before.dead_reason,
        )
        assert without_history(after) == without_history(before)
        assert [(each.event, each.actor) for each in after.history[-2:]] == [("dropped", "ada"), ("restored", "bob")]
        assert (after.dropped, seen(broker)) == (None, counted)
        feed = [(entry.kind, entry.actor) for entry in broker.feed(kinds=["dropped", "restored"]).entries]
        assert feed == [("dropped", "ada"), ("restored", "bob")]
        audit = [(entry.verb, entry.actor, entry.ids) for entry in broker.audit()[:2]]
        assert audit == [(undo, "bob", (id,)), ("drop", "ada", (id,))]

    @pytest.mark.parametrize("start", STARTS)
    def test_archived_item_that_is_dropped_comes_back_from_both(
        self, broker: Broker, clock: FakeClock, start: Start
    ) -> None:
        create_queues(broker)
        id = start(broker)
        before = broker.get(id)
        broker.archive(id)
        clock.advance("1h")
        settled = broker.drop(id)
        assert (settled.status, settled.undo_until) == ("archived", clock.now() + 7 * DAY)
        dropped = broker.get(id).dropped
        assert dropped is not None
        assert (dropped.from_status, places(broker.stats(before.queue))) == (before.status, {"archived": 1})
        assert found(broker, status="archived", since="1s") == ([] if before.ended_at or start in LETTERS else ["x"])
        broker.undo(id)
        assert without_history(broker.get(id)) == without_history(before)

    @pytest.mark.parametrize("start", STARTS)
    def test_dropped_item_can_be_purged_and_completed_but_not_dropped_again(self, broker: Broker, start: Start) -> None:
        create_queues(broker)
        id = start(broker)
        queue = broker.get(id).queue
        broker.drop(id)
        before = broker.get(id)
        for verb in (broker.drop, broker.archive, broker.retry, broker.redrive, broker.bury_items):
            with pytest.raises(WrongStatus):
                verb(id)
        assert broker.get(id) == before
        assert broker.purge(id).status is None
        with pytest.raises(ItemNotFound):
            broker.undo(id)
        assert places(broker.stats(queue)) == {}

    def test_undo_says_what_it_is_for(self, broker: Broker) -> None:
        create_queues(broker)
        ids = [ready(broker), dead(broker), failed(broker)]
        archived = ready(broker)
        broker.archive(archived)
        for id in (*ids, archived):
            with pytest.raises(
                WrongStatus, match="undo is for items that are dropped or redriven and not leased or changed since"
            ):
                broker.undo(id)

    def test_restored_item_that_is_redriven_can_be_undone(self, broker: Broker) -> None:
        create_queues(broker)
        id = dead(broker)
        broker.undo(broker.drop(id).id)
        assert broker.redrive(id).status == "pending"
        assert broker.undo(id).status == "dead"
        assert broker.undo(broker.drop(id).id).status == "dead"

    def test_force_revokes_the_lease_first(self, broker: Broker) -> None:
        create_queues(broker)
        first, second = broker.put("jobs", 1).id, broker.put("jobs", 2).id
        lease = take(broker, worker="w1")
        with pytest.raises(ItemActive):
            broker.drop(first)
        broker.drop(first, force=True)
        with pytest.raises(LeaseLost) as refusal:
            broker.complete(lease)
        assert refusal.value.status == "archived"
        item = broker.get(first)
        assert (item.worker, item.lease_deadline, item.counters.attempts) == (None, None, 1)
        assert broker.undo(first).status == "pending"
        assert [lease.id for lease in take_all(broker)] == [first, second]  # at its previous position

    def test_dead_item_that_is_leased_and_dropped_is_dead_when_restored(self, broker: Broker) -> None:
        create_queues(broker)
        id = dead(broker)
        death = broker.get(id).deaths
        broker.lease_by_id(id, include_dead=True)
        broker.drop(id, force=True)
        dropped = broker.get(id)
        assert (dropped.dead_reason, dropped.deaths, broker.groups()) == ("final_error", death, ())
        assert broker.undo(id).status == "dead"
        assert (found(broker), broker.stats("jobs").dead_letters) == (["x"], 1)

    def test_dropped_dead_letter_is_in_no_group_and_found_by_words_in_the_archive(self, broker: Broker) -> None:
        create_queues(broker)
        ids = die(broker, 3, Boom("panic"), "jobs")
        broker.drop(ids[1])
        assert [group.count for group in broker.groups()] == [2]
        assert found(broker, words="panic") == [0, 2]
        assert found(broker, status="archived", words="panic", dropped=True) == [1]
        broker.undo(ids[1])
        assert ([group.count for group in broker.groups()], found(broker, words="panic")) == ([3], [0, 1, 2])

    def test_many_are_dropped_and_restored_together(self, broker: Broker) -> None:
        create_queues(broker)
        ids = [*die(broker, 6), *[broker.put("jobs", n).id for n in range(6)]]
        before = [without_history(item) for item in broker.get_many(ids) if item is not None]
        results = broker.drop([*ids, ids[0], "f" * 32], actor="ada")
        assert [type(result) for result in results] == [Settled] * 12 + [WrongStatus, ItemNotFound]
        assert (places(broker.stats("jobs")), broker.groups()) == ({"archived": 12}, ())
        results = broker.undo([ids[3], *ids], actor="bob")
        assert [isinstance(result, RedriveError) for result in results] == [False] * 4 + [True] + [False] * 8
        assert [without_history(item) for item in broker.get_many(ids) if item is not None] == before
        assert (broker.audit()[0].verb, broker.audit()[0].count) == ("undo", 12)

    @pytest.mark.parametrize("verb", ["restore", "undo"])
    def test_operation_brings_dropped_items_back(self, broker: Broker, clock: FakeClock, verb: str) -> None:
        create_queues(broker)
        ids = die(broker, 6)
        before = [without_history(item) for item in broker.get_many(ids) if item is not None]
        clock.advance("1h")
        broker.drop(ids)
        clock.advance("1h")
        done = perform(broker, clock, verb, status="archived", queue="jobs", actor="bob")
        items = [item for item in broker.get_many(ids) if item is not None]
        assert (done.changed, [without_history(item) for item in items]) == (6, before)
        assert {(item.history[-1].event, item.history[-1].actor) for item in items} == {("restored", "bob")}
        assert [group.count for group in broker.groups()] == [6]

    @pytest.mark.parametrize("start", STARTS)
    def test_nothing_is_kept_where_the_queue_says_so(self, broker: Broker, start: Start) -> None:
        create_queues(broker)
        id = start(broker)
        queue = broker.get(id).queue
        broker.update_queue(queue, keep_dropped=0)
        settled = broker.drop(id, actor="ada")
        assert (settled.status, settled.undo_until) == (None, None)
        with pytest.raises(ItemNotFound):
            broker.undo(id)
        assert (places(broker.stats(queue)), broker.groups()) == ({}, ())
        assert [entry.actor for entry in broker.feed(kinds=["removed"]).entries] == ["ada"]

    def test_dropped_items_survive_a_restart(self, open_broker: OpenBroker) -> None:
        self.require("is_durable")
        with open_broker() as broker:
            create_queues(broker)
            ids = [completed(broker), dead(broker), ready(broker)]
            broker.drop(ids)
            before = broker.get_many(ids)
        again = open_broker()
        assert again.get_many(ids) == before
        assert [again.undo(id).status for id in ids] == ["completed", "dead", "pending"]

    def test_dropped_items_are_exported_only_where_they_are_asked_for(self, broker: Broker, elsewhere: Broker) -> None:
        for each in (broker, elsewhere):
            create_queues(each)
        ids = [start(broker) for start in (completed, failed, dead, ready)]
        broker.archive(held(broker))
        broker.drop(ids, actor="ada")
        assert elsewhere.import_items(broker.export(redacted=False, status=None)).imported == 1
        assert places(elsewhere.stats("jobs")) == {"archived": 1}
        assert elsewhere.import_items(broker.export(redacted=False, status="archived")).imported == 4
        assert elsewhere.count(status="archived", dropped=True) == 4
        (archived,) = elsewhere.find(status="archived", dropped=False).items
        assert (elsewhere.restore(archived.id).status, elsewhere.get(archived.id).held_by) == ("pending", ("breaker",))
        restored = [elsewhere.undo(item.id).status for item in elsewhere.find(status="archived", order="oldest").items]
        assert sorted(filter(None, restored)) == ["dead", "failed", "pending", "pending"]


class DroppedKeyConformance(Suite):
    """The idempotency key of a dropped item is free, and in use again once the item is restored."""

    @pytest.fixture(params=["1d", "item"])
    def jobs(self, broker: Broker, request: pytest.FixtureRequest) -> Broker:
        broker.create_queue("morgue")
        broker.create_queue(
            "jobs", idempotency_timeout=request.param, dead_queue={"Boom": "morgue"}, keep_completed="1d"
        )
        return broker

    def test_key_is_free_at_once_and_taken_back(self, jobs: Broker) -> None:
        first = jobs.put("jobs", 1, idempotency_key="k").id
        jobs.drop(first)
        assert jobs.find_by_key("jobs", ["k"]) == [None]
        jobs.undo(first)
        assert jobs.find_by_key("jobs", ["k"]) == [jobs.get(first)]
        assert jobs.put("jobs", 1, idempotency_key="k").id == first
        with pytest.raises(IdempotencyConflict):
            jobs.put("jobs", 2, idempotency_key="k")

    def test_undo_is_refused_while_another_item_has_the_key(self, jobs: Broker) -> None:
        first = jobs.put("jobs", 1, idempotency_key="k").id
        jobs.drop(first)
        second = jobs.put("jobs", 2, idempotency_key="k").id
        before = jobs.get(first)
        for restore in (jobs.undo, jobs.restore):
            with pytest.raises(IdempotencyConflict) as refusal:
                restore(first)
            assert refusal.value.id == second
        assert (jobs.get(first), places(jobs.stats("jobs"))) == (before, {"pending": 1, "archived": 1})
        jobs.drop(second)
        assert jobs.undo(first).status == "pending"
        with pytest.raises(IdempotencyConflict) as refusal:
            jobs.undo(second)
        assert refusal.value.id == first
        assert jobs.put("jobs", 1, idempotency_key="k").id == first

    def test_key_is_that_of_the_queue_that_the_item_was_put_to(self, jobs: Broker) -> None:
        first = jobs.put("jobs", 1, idempotency_key="k").id
        moved = jobs.fail(take(jobs), Boom("x"), final=True)
        assert (moved.queue, moved.source_id) == ("morgue", first)
        jobs.drop(moved.id)
        second = jobs.put("jobs", 2, idempotency_key="k")
        assert not second.duplicate
        with pytest.raises(IdempotencyConflict):
            jobs.undo(first)
        jobs.drop(second.id)
        jobs.undo(first)
        assert jobs.put("jobs", 1, idempotency_key="k").duplicate

    @pytest.mark.parametrize("archive", [False, True])
    def test_key_of_a_completed_item_is_what_it_was(self, jobs: Broker, archive: bool) -> None:
        """Check that a key with a timeout outlives its item, and that a key that ends with its item is free."""
        first = jobs.put("jobs", 1, idempotency_key="k").id
        jobs.complete(take(jobs))
        if archive:
            jobs.archive(first)
        jobs.drop(first)
        is_timed = jobs.get_queue("jobs").settings.idempotency_timeout != "item"
        again = jobs.put("jobs", 1, idempotency_key="k")
        assert (again.duplicate, again.id == first) == (is_timed, is_timed)
        assert jobs.undo(first).status == "completed"
        assert jobs.put("jobs", 1, idempotency_key="k").id == again.id
        jobs.update_queue("jobs", keep_dropped=0)
        jobs.drop(first)
        assert jobs.put("jobs", 1, idempotency_key="k").duplicate

    def test_removed_items_leave_their_keys_free(self, jobs: Broker, clock: FakeClock) -> None:
        first = jobs.put("jobs", 1, idempotency_key="k").id
        jobs.drop(first)
        jobs.purge(first)
        second = jobs.put("jobs", 2, idempotency_key="k").id
        jobs.update_queue("jobs", keep_dropped=0)
        jobs.drop(second)
        third = jobs.put("jobs", 3, idempotency_key="k")
        assert not third.duplicate
        for _ in range(3):
            clock.advance("2d")
            jobs.run_maintenance()
        assert jobs.find_by_key("jobs", ["k"]) in ([None], [jobs.get(third.id)])

    def test_time_of_a_key_goes_on_while_its_item_is_dropped(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", idempotency_timeout="2h")
        ids = [broker.put("jobs", 1, idempotency_key=key).id for key in ("k", "l")]
        broker.update_queue("jobs", idempotency_timeout="item")
        broker.drop(ids)
        clock.advance("1h")
        broker.undo(ids[0])
        assert broker.put("jobs", 1, idempotency_key="k").duplicate
        clock.advance("1h")
        broker.run_maintenance()
        broker.undo(ids[1])
        assert broker.find_by_key("jobs", ["k", "l"]) == [None, None]
        assert not broker.put("jobs", 2, idempotency_key="l").duplicate

    def test_key_that_ends_with_its_item_is_kept_for_a_dropped_one(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", idempotency_timeout="item", keep_dropped="30d")
        first = broker.put("jobs", 1, idempotency_key="k").id
        broker.drop(first)
        for _ in range(5):
            clock.advance("2d")
            broker.run_maintenance()
        broker.undo(first)
        assert broker.put("jobs", 1, idempotency_key="k").id == first
