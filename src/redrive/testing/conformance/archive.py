"""The archive: any item that is not active is archived and restored unchanged; dropped items stay there for a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from redrive import Broker, Item
from redrive.contract.maintenance_calls import ApplyRetention
from redrive.errors import (
    ItemActive,
    QueueFull,
)
from redrive.model.duration import HOUR
from redrive.model.item import Status
from redrive.model.state_machine import Verb
from redrive.testing.conformance.actions import Boom, found, kill, perform, places, take, take_all, values
from redrive.testing.conformance.suite import StoreDriver, StoreSuite, Suite
from redrive.testing.fake_clock import FakeClock


def create_queues(broker: Broker, **settings: Any) -> None:
    """Create "jobs", which retries after 1 min, keeps completed items, and sends some dead ones to "morgue"."""
    broker.create_queue("morgue")
    retry = {"attempts": 5, "cooldown": "1m"}
    broker.create_queue("jobs", retry=retry, keep_completed="30d", dead_queue={"Boom": "morgue"}, **settings)


def ready(broker: Broker) -> str:
    """Return the id of an item that can be leased."""
    return broker.put("jobs", "x", headers={"a": "b"}, priority=7).id


def delayed(broker: Broker) -> str:
    """Return the id of an item with a delay and an expiry."""
    return broker.put("jobs", "x", delay="3h", expire_timeout="30d").id


def held(broker: Broker) -> str:
    """Return the id of a held item."""
    return broker.put("jobs", "x", held_by="breaker").id


def failed(broker: Broker) -> str:
    """Return the id of a failed item that waits for its next attempt."""
    return broker.fail((broker.put("jobs", "x"), take(broker))[1], "boom").id


def held_and_failed(broker: Broker) -> str:
    """Return the id of a failed item that is held."""
    id = failed(broker)
    broker.hold([id], "breaker")
    return id


def dead(broker: Broker) -> str:
    """Return the id of an item that died in place."""
    return kill(broker, "x").id


def in_a_dead_queue(broker: Broker) -> str:
    """Return the id of an item that died and moved to the dead queue."""
    return kill(broker, "x", error=Boom("panic")).id


def redriven(broker: Broker) -> str:
    """Return the id of an item that died in place and was redriven."""
    return broker.redrive(dead(broker)).id


def back_from_a_dead_queue(broker: Broker) -> str:
    """Return the id of an item that was redriven from the dead queue."""
    return broker.redrive(in_a_dead_queue(broker)).id


def completed(broker: Broker) -> str:
    """Return the id of an item that was completed with a result."""
    return broker.complete((broker.put("jobs", "x"), take(broker))[1], result={"n": 1}).id


def completed_in_a_dead_queue(broker: Broker) -> str:
    """Return the id of an item that was completed in the dead queue."""
    id = in_a_dead_queue(broker)
    broker.update_queue("morgue", keep_completed="30d")
    broker.complete(take(broker, "morgue"))
    return id


Start = Callable[[Broker], str]
LETTERS: tuple[Start, ...] = (dead, in_a_dead_queue)
OTHERS: tuple[Start, ...] = (
    *(ready, delayed, held, failed, held_and_failed, redriven, back_from_a_dead_queue),
    *(completed, completed_in_a_dead_queue),
)
STARTS = (*LETTERS, *OTHERS)
"""Functions that create every kind of item that is not active, as the only item of its store."""


def without_history(item: Item) -> Item:
    """Return the item without its history."""
    return msgspec.structs.replace(item, history=())


def seen(broker: Broker) -> list[Any]:
    """Return the counts and groups of all queues, without totals."""
    stats = [broker.stats(name) for name in ("jobs", "morgue")]
    return [*[(places(each), each.dead_letters) for each in stats], broker.groups()]


class ArchiveOfAnyConformance(Suite):
    """Archive and restore, from every status."""

    @pytest.mark.parametrize("start", STARTS)
    def test_it_comes_back_as_it_was(self, broker: Broker, clock: FakeClock, start: Start) -> None:
        create_queues(broker)
        id = start(broker)
        before, counted = broker.get(id), seen(broker)
        settled = broker.archive(id, actor="ada")
        archived = broker.get(id)
        assert (settled.status, archived.status, archived.dropped) == ("archived", "archived", None)
        assert (settled.dead_reason, archived.dead_reason) == (archived.dead_reason,) * 2
        assert (archived.dead_reason is not None) is (start in LETTERS)
        ended = before.deaths[-1].at if start in LETTERS else before.ended_at
        assert (archived.ended_at, archived.result, archived.held_by) == (ended, before.result, before.held_by)
        clock.advance("2h")
        assert take_all(broker) == take_all(broker, "morgue") == []
        assert (broker.stats(before.queue).dead_letters, places(broker.stats(before.queue))) == (0, {"archived": 1})
        restored = broker.restore(id, actor="bob")
        after = broker.get(id)
        assert without_history(after) == without_history(before)
        assert (restored.status, restored.ready_at, restored.undo_until) == (before.status, before.ready_at, None)
        assert seen(broker) == counted

    @pytest.mark.parametrize("start", STARTS)
    def test_history_has_who_archived_what_was_no_dead_letter(
        self, broker: Broker, clock: FakeClock, start: Start
    ) -> None:
        create_queues(broker)
        id = start(broker)
        before = broker.get(id)
        broker.archive(id, actor="ada")
        archived_at = clock.now()
        clock.advance("1h")
        broker.restore(id, actor="bob")
        told = [
            (entry.at, entry.event, entry.actor, entry.from_status)
            for entry in broker.get(id).history[len(before.history) :]
        ]
        expected = [(archived_at, "archived", "ada", before.status), (clock.now(), "restored", "bob", "archived")]
        assert told == ([] if start in LETTERS else expected)
        kinds = [(entry.kind, entry.actor) for entry in broker.feed(kinds=["archived", "restored"]).entries]
        assert kinds == [("archived", "ada"), ("restored", "bob")]

    def test_lists_and_counts_leave_it_out_unless_it_is_asked_for(self, broker: Broker) -> None:
        create_queues(broker)
        broker.archive(broker.put("jobs", "archived").id)
        dropped = broker.drop(broker.put("jobs", "dropped").id)
        kept = broker.put("jobs", "kept")
        assert found(broker, status=None) == found(broker, status=None, queue="jobs") == ["kept"]
        assert found(broker, status=None, archived=True) == ["archived", "dropped", "kept"]
        assert found(broker, status="archived") == ["archived", "dropped"]
        assert found(broker, status="archived", dropped=True) == found(broker, status=None, dropped=True) == ["dropped"]
        assert found(broker, status="archived", dropped=False, queue="jobs") == ["archived"]
        assert found(broker, status=None, archived=True, dropped=False) == ["archived", "kept"]
        assert found(broker, status=None, ids=[dropped.id, kept.id]) == ["dropped", "kept"]
        assert found(broker, status=None, id_prefix=dropped.id[:24]) == ["dropped"]
        assert found(broker, status="pending", dropped=True) == []

    def test_archived_items_are_found_in_the_order_in_which_they_died_or_were_archived(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        create_queues(broker)
        ids = [broker.put("jobs", n).id for n in range(3)]
        dead = kill(broker, "dead").id
        for id in (ids[2], dead, ids[0]):
            clock.advance("1h")
            broker.archive(id)
        assert found(broker, status="archived") == ["dead", 2, 0]
        assert found(broker, status="archived", since="90m") == [0]
        assert found(broker, status="archived", until="90m") == ["dead", 2]
        assert found(broker, status="archived", limit=1) == ["dead", 2, 0]
        assert found(broker, status="archived", reason="final_error") == ["dead"]

    def test_what_was_brought_back_is_archived_without_its_past(self, broker: Broker) -> None:
        create_queues(broker)
        id = redriven(broker)
        broker.archive(id)
        assert (broker.get(id).dead_reason, broker.get(id).ended_at) == (None, None)
        assert found(broker, status="archived", words="boom") == found(broker, status="archived", words="x") == []
        assert found(broker, status="archived", error_type="str") == []
        assert found(broker, status="archived", min_attempts=1) == []
        assert found(broker, status="archived", min_redrives=1) == ["x"]

    def test_archived_work_makes_room_and_needs_it_when_it_is_restored(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1, keep_completed="1d")
        archived, dropped = broker.put("jobs", 1).id, None
        broker.archive(archived)
        dropped = broker.put("jobs", 2).id
        broker.drop(dropped)
        broker.put("jobs", 3)
        for id, restore in ((archived, broker.restore), (dropped, broker.restore), (dropped, broker.undo)):
            before = broker.get(id)
            with pytest.raises(QueueFull):
                restore(id)
            assert broker.get(id) == before
        broker.complete(take(broker))
        assert broker.restore(archived).status == "pending"
        broker.complete(take(broker))
        assert broker.undo(dropped).status == "pending"

    def test_completed_and_dead_items_need_no_room(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1, keep_completed="1d")
        done = broker.complete((broker.put("jobs", 1), take(broker))[1]).id
        dead = kill(broker).id
        for id in (done, dead):
            broker.drop(id)
        broker.put("jobs", "fills it")
        assert [broker.undo(done).status, broker.undo(dead).status] == ["completed", "dead"]

    @pytest.mark.parametrize("keep", ["keep_archived", "keep_dropped"])
    def test_retention_counts_from_the_end_or_the_archiving_or_the_drop(
        self, broker: Broker, clock: FakeClock, keep: str
    ) -> None:
        settings: dict[str, Any] = {"keep_completed": "30d", keep: "3h"}
        broker.create_queue("jobs", **settings)
        waiting = broker.put("jobs", "waiting", delay="30d").id
        dead, done = kill(broker, "dead").id, broker.complete((broker.put("jobs", "done"), take(broker))[1]).id
        clock.advance("1h")
        ids = [waiting, dead, done]
        (broker.archive if keep == "keep_archived" else broker.drop)(ids)
        clock.advance("1h59m")
        broker.run_maintenance()
        assert sorted(found(broker, status="archived")) == ["dead", "done", "waiting"]
        clock.advance("1m")
        broker.run_maintenance()
        assert found(broker, status="archived") == (
            ["waiting"] if keep == "keep_archived" else ["dead", "waiting", "done"]
        )
        clock.advance("1h")
        broker.run_maintenance()
        assert found(broker, status="archived") == []
        entries = [(entry.kind, entry.from_status, entry.actor) for entry in broker.feed(kinds=["removed"]).entries]
        assert entries == [("removed", "archived", "retention")] * 3
        purged = [entry for entry in broker.audit() if entry.verb == "purge"]
        assert (sum(entry.count for entry in purged), {entry.actor for entry in purged}) == (3, {"retention"})

    def test_restored_item_is_kept_like_any_other(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_archived="1h", keep_dropped="1h")
        ids = [broker.put("jobs", n).id for n in range(2)]
        broker.archive(ids[0])
        broker.drop(ids[1])
        broker.restore(ids)
        clock.advance("2h")
        broker.run_maintenance()
        assert values(take_all(broker)) == [0, 1]

    def test_completed_item_that_is_completed_by_hand_has_no_result(self, broker: Broker) -> None:
        broker.create_queue("jobs", keep_completed="1h")
        broker.put("jobs", 1)
        lease = take(broker)
        broker.complete(lease, result=2)
        broker.archive(lease.id)
        broker.complete_items(lease.id)
        assert (broker.get(lease.id).status, broker.get(lease.id).result) == ("completed", None)

    def test_key_of_a_completed_item_stays_free(self, broker: Broker) -> None:
        broker.create_queue("jobs", keep_completed="1d", idempotency_timeout="item")
        done = broker.put("jobs", 1, idempotency_key="k").id
        broker.complete(take(broker))
        broker.archive(done)
        assert broker.find_by_key("jobs", ["k"]) == [None]
        assert not broker.put("jobs", 2, idempotency_key="k").duplicate
        assert broker.restore(done).status == "completed"

    def test_key_of_archived_work_is_kept(self, broker: Broker) -> None:
        for timeout in ("1d", "item"):
            broker.create_queue(timeout, idempotency_timeout=timeout)
            first = broker.put(timeout, 1, idempotency_key="k").id
            broker.archive(first)
            assert broker.put(timeout, 1, idempotency_key="k").id == first

    def test_operation_archives_items_of_any_status_and_is_undone(self, broker: Broker, clock: FakeClock) -> None:
        create_queues(broker)
        broker.put_many("jobs", range(5))
        lease = take(broker)
        done = perform(broker, clock, "archive", status="pending", queue="jobs", actor="ada")
        assert (done.changed, places(broker.stats("jobs"))) == (4, {"active": 1, "archived": 4})
        back = perform(broker, clock, "restore", queue="jobs", actor="bob")
        assert (back.changed, places(broker.stats("jobs"))) == (4, {"active": 1, "pending": 4})
        operation = broker.undo_operation(back.id)
        broker.run_operation(operation.id)
        assert places(broker.stats("jobs")) == {"active": 1, "archived": 4}
        broker.complete(lease)


class ArchiveCallsConformance(StoreSuite):
    """Cases that only direct calls of the store can express."""

    def test_retention_takes_no_more_than_it_may(self, direct: StoreDriver) -> None:
        direct.queue(keep_dropped=HOUR, keep_archived=HOUR)
        ids = [direct.put(b"x")[0] for _ in range(6)]
        for number, id in enumerate(ids):
            direct.change(Verb.DROP if number % 2 else Verb.ARCHIVE, id)
        direct.clock.advance("1h")
        assert direct.do(ApplyRetention(4)) == 4
        assert direct.stats().archived == 2
        assert direct.do(ApplyRetention(4)) == 2
        assert direct.stats().archived == 0

    def test_active_item_is_archived_by_force(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"x")
        direct.take()
        assert isinstance(direct.change(Verb.ARCHIVE, id), ItemActive)
        assert direct.change(Verb.ARCHIVE, id, force=True).status is Status.ARCHIVED
        assert direct.change(Verb.RESTORE, id).status is Status.PENDING
