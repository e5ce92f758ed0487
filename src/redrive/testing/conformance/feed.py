"""The feed: all events, in order, by queue and by item."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker
from redrive.contract.base import FEED_RETENTION
from redrive.errors import InvalidInput, QueueNotFound
from redrive.model.duration import SECOND
from redrive.model.feed import FeedEntry, FeedKind
from redrive.testing.conformance.actions import Background, dead_queue, die, kill, lose, perform, take
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


def told(broker: Broker, **conditions: Any) -> list[str]:
    """Return the kinds of the entries, in order."""
    return [entry.kind.value for entry in broker.feed(**conditions).entries]


def last(broker: Broker, **conditions: Any) -> FeedEntry:
    """Return the newest entry."""
    return broker.feed(**conditions).entries[-1]


class FeedConformance(Suite):
    """The entries of the feed, and their fields."""

    def test_what_goes_well_is_not_told_unless_asked_for(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        broker.complete(take(broker))
        page = broker.feed()
        assert (page.entries, page.more) == ((), False)
        broker.update_queue("jobs", feed="all")
        receipt = broker.put("jobs", 1)
        broker.complete(take(broker))
        page = broker.feed()
        assert [entry.kind for entry in page.entries] == ["put", "leased", "completed"]
        assert {(entry.queue, entry.id) for entry in page.entries} == {("jobs", receipt.id)}

    def test_failures_and_returns_are_told(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 9})
        receipt = broker.put("jobs", 1)
        broker.fail(take(broker), ValueError("bad number 7"))
        assert told(broker) == ["failed"]
        entry = last(broker)
        assert (entry.queue, entry.id, entry.at, entry.reason) == ("jobs", receipt.id, clock.now(), None)
        assert entry.title is not None
        assert entry.title.startswith("ValueError: bad number")
        broker.run_maintenance()
        lose(broker, clock)
        broker.release(take(broker))
        broker.release(take(broker), counted=False)
        broker.release(take(broker), counted=False, error="not mine")
        assert told(broker) == ["failed", "lost", "released", "returned"]

    def test_death_is_one_entry(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", max_losses=1)
        dead = kill(broker, error=ValueError("bad number 7"))
        entry = last(broker)
        assert (entry.kind, entry.queue, entry.id, entry.source_id) == ("dead", "jobs", dead.id, None)
        assert (entry.title, entry.reason) == ("ValueError: bad number 7", "final_error")
        broker.put("jobs", 1)
        lose(broker, clock)
        broker.put("jobs", 1)
        broker.bury(take(broker), note="odd")
        assert told(broker) == ["dead", "dead", "dead"]
        assert [entry.reason for entry in broker.feed().entries] == ["final_error", "worker_lost", "buried"]

    def test_death_into_a_dead_queue_names_both_ids_and_the_queue_it_left(self, broker: Broker) -> None:
        dead_queue(broker)
        receipt = broker.put("jobs", 1)
        dead = broker.fail(take(broker), "boom")
        entry = last(broker)
        assert (entry.kind, entry.queue, entry.id, entry.source_id) == ("dead", "jobs", dead.id, receipt.id)
        back = broker.redrive(dead.id, actor="ada")
        entry = last(broker)
        assert (entry.kind, entry.id, entry.source_id) == ("redriven", back.id, dead.id)
        assert (entry.queue, entry.actor) == ("morgue", "ada")

    def test_death_by_the_settings_that_drop_is_told(self, broker: Broker) -> None:
        broker.create_queue("jobs", on_dead="drop")
        dead = kill(broker)
        assert [(entry.kind, entry.id) for entry in broker.feed().entries] == [("dead", dead.id)]

    def test_changes_by_hand_name_who_did_them(self, broker: Broker) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs", retry={"attempts": 2, "cooldown": "1m"})
        (id,) = die(broker, 1)
        broker.retry(id, actor="ada")
        broker.bury_items(id, actor="bob")
        broker.redrive(id, actor="cyd")
        broker.undo(id, actor="dan")
        broker.archive(id, actor="eve")
        broker.restore(id, actor="fay")
        moved = broker.move(id, "other", actor="gil")
        broker.drop(moved.id, actor="hal")
        expected = ["dead", "redriven", "dead", "redriven", "undone", "archived", "restored", "moved", "dropped"]
        assert told(broker) == expected
        actors = [entry.actor for entry in broker.feed().entries]
        assert actors == [None, "ada", "bob", "cyd", "dan", "eve", "fay", "gil", "hal"]
        entry = broker.feed(kinds=["moved"]).entries[0]
        assert (entry.queue, entry.id, entry.source_id) == ("jobs", moved.id, id)

    def test_done_failed_and_purged_by_hand_are_told(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 2, "cooldown": "1m"})
        receipt = broker.put("jobs", 1)
        broker.fail_items(receipt.id, "boom", actor="ada")
        broker.fail_items(receipt.id, "boom", actor="bob")
        broker.archive(receipt.id, actor="cyd")
        broker.purge(receipt.id, actor="dan")
        broker.complete_items(broker.put("jobs", 1).id, actor="eve")
        assert [(entry.kind, entry.actor) for entry in broker.feed().entries] == [
            ("failed", "ada"),
            ("dead", "bob"),
            ("archived", "cyd"),
            ("removed", "dan"),
            ("done", "eve"),
        ]

    def test_what_was_dropped_or_removed_says_what_it_was(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_completed="1h", keep_dead="1h")
        broker.put("jobs", 1)
        broker.complete(take(broker))
        broker.drop([item.id for item in broker.find(status="completed").items], actor="ada")
        broker.drop(broker.put("jobs", 1).id, actor="bob")
        dead, old, *archived = die(broker, 22)
        broker.drop(dead, actor="cyd")
        broker.archive(archived)
        broker.purge(archived, actor="dan")
        clock.advance("2h")
        broker.run_maintenance()
        entries = broker.feed(kinds=["dropped", "removed"]).entries
        assert [(entry.kind, entry.from_status, entry.actor) for entry in entries] == [
            ("dropped", "completed", "ada"),
            ("dropped", "pending", "bob"),
            ("dropped", "dead", "cyd"),
            *[("removed", "archived", "dan")] * 20,
            ("removed", "dead", "retention"),
        ]
        assert entries[-1].id == old
        assert {entry.from_status for entry in broker.feed(kinds=["dead", "archived"]).entries} == {None}

    def test_refused_changes_are_not_told(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        broker.redrive([receipt.id, "f" * 32])
        broker.undo([receipt.id])
        assert told(broker) == []

    def test_born_failed_or_dead_is_told(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 2})
        broker.create_queue("mails", feed="all")
        broker.put_failed("jobs", 1, "boom")
        broker.put_failed("mails", 1, "boom")
        assert told(broker) == ["failed", "put", "dead"]

    def test_expiry_is_a_death(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, expire_timeout="1m")
        clock.advance("1m")
        broker.run_maintenance()
        assert [(entry.kind, entry.reason) for entry in broker.feed().entries] == [("dead", "expired")]

    def test_queue_keeps_the_kinds_it_asks_for(self, broker: Broker) -> None:
        broker.create_queue("morgue", feed="none")
        broker.create_queue("jobs", feed=["dead"], dead_queue="morgue", retry={"attempts": 2})
        broker.put("jobs", 1)
        for _ in range(2):
            broker.fail(take(broker), "boom")
            broker.run_maintenance()
        dead = broker.find().items[0]
        broker.redrive(dead.id)  # an event of "morgue", which has no feed
        assert told(broker) == ["dead"]

    def test_deleted_queue_tells_nothing(self, broker: Broker) -> None:
        broker.create_queue("jobs", feed="all")
        die(broker, 2)
        before = broker.feed().last
        broker.delete_queue("jobs", confirm=2)
        assert broker.feed(after=before).entries == ()

    def test_operation_is_named(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        ids = die(broker, 3)
        operation = perform(broker, clock, "redrive", actor="ada")
        entries = broker.feed(operation=operation.id).entries
        assert [(entry.kind, entry.actor) for entry in entries] == [("redriven", "ada")] * 3
        assert {entry.operation for entry in entries} == {operation.id}
        assert [entry.id for entry in entries] == [broker.get(id).id for id in ids]
        assert broker.get(ids[0]).history[-1].operation == operation.id


class FeedReadingConformance(Suite):
    """Pages of the feed, and reading on from the last one."""

    def test_numbers_grow_and_pages_make_up_the_whole(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        die(broker, 25)
        whole = broker.feed().entries
        assert len(whole) == 25
        assert [entry.number for entry in whole] == sorted({entry.number for entry in whole})
        entries: list[FeedEntry] = []
        after = 0
        for _ in range(26):
            page = broker.feed(after=after, limit=10)
            entries += page.entries
            after = page.last
            if not page.more:
                break
        assert tuple(entries) == whole
        assert broker.feed(after=after).entries == ()
        assert broker.feed(after=after).last == after

    def test_without_a_number_the_newest_entries_are_given(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        die(broker, 10)
        whole = broker.feed().entries
        newest = broker.feed(limit=3)
        assert (newest.entries, newest.more) == (whole[-3:], True)
        assert broker.feed(before=newest.entries[0].number, limit=3).entries == whole[-6:-3]
        (id,) = die(broker, 1)
        assert [entry.id for entry in broker.feed(after=newest.last).entries] == [id]

    def test_feed_of_a_queue_that_nothing_tells_of(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        assert broker.feed(queue="jobs").entries == ()
        with pytest.raises(QueueNotFound):
            broker.feed(queue="jbos")
        with pytest.raises(QueueNotFound):
            list(broker.follow(queue="jbos", wait=0))

    def test_newest_entries_before_a_number(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        die(broker, 10)
        whole = broker.feed().entries
        assert broker.feed(before=whole[-1].number, limit=3).entries == whole[-4:-1]
        assert broker.feed(before=whole[1].number, limit=3).entries == whole[:1]
        assert broker.feed(before=whole[0].number).entries == ()

    def test_feed_of_one_queue_and_of_some_kinds(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.create_queue("mails")
        (id,) = die(broker, 1)
        die(broker, 2, queue="mails")
        broker.redrive(id)
        assert told(broker, queue="jobs") == ["dead"]
        assert told(broker, queue="mails") == ["dead", "dead"]
        assert told(broker, queue="morgue") == ["redriven"]
        assert told(broker, kinds=["redriven", "archived"]) == ["redriven"]
        assert told(broker, kinds=[FeedKind.DEAD], queue="mails") == ["dead", "dead"]
        assert told(broker, kinds=()) == []
        with pytest.raises(InvalidInput):
            broker.feed(kinds=["exploded"])

    def test_feed_of_one_item_over_all_its_moves(self, broker: Broker) -> None:
        dead_queue(broker)
        ids = [str(broker.put("jobs", 1).id)]
        for _ in range(2):
            ids.append(str(broker.fail(take(broker), "boom").id))
            ids.append(str(broker.redrive(ids[-1]).id))
        die(broker, 3)
        for id in ids:
            assert told(broker, id=id) == ["dead", "redriven", "dead", "redriven"]
        assert told(broker, id=ids[2], kinds=["dead"]) == ["dead", "dead"]
        assert told(broker, id="f" * 32) == []

    def test_entries_are_kept_for_a_week(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 2)
        clock.advance(FEED_RETENTION // SECOND - 1)
        die(broker, 1)
        broker.run_maintenance()
        assert told(broker) == ["dead"] * 3
        clock.advance("2s")
        broker.run_maintenance()
        assert told(broker) == ["dead"]
        number = broker.feed().last
        die(broker, 1)
        assert broker.feed(after=number).entries[0].number > number

    def test_follow_gives_what_is_there_and_ends(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        die(broker, 3)
        whole = broker.feed().entries
        assert tuple(broker.follow(after=0, wait=0)) == whole
        assert tuple(broker.follow(after=whole[0].number, kinds=["dead"], wait=0)) == whole[1:]
        assert tuple(broker.follow(wait=0)) == ()

    def test_follow_gives_what_happens_later(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        die(broker, 1)
        follower = broker.follow(after=broker.feed().last)
        waiting = Background(lambda: next(iter(follower)))
        clock.until_waiting()
        dead = kill(broker)
        clock.advance("1s")
        assert waiting.result().id == dead.id

    def test_limit_of_the_feed_has_bounds(self, broker: Broker) -> None:
        for limit in (0, -1, 1_001):
            with pytest.raises(InvalidInput):
                broker.feed(limit=limit)
