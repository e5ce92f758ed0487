"""Retention of the dead: archived by themselves, and the archive emptied by itself, where a queue asks for it."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.errors import ItemNotFound
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import dead_queue, kill, places, take
from redrive.testing.conformance.many import die, found
from redrive.testing.conformance.suite import Suite


class RetentionOfTheDeadConformance(Suite):
    """archive_after and keep_archived, and what is told of all retention."""

    def test_dead_letters_are_archived_when_their_time_has_come(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", archive_after="1h")
        die(broker, 2)
        clock.advance("59m")
        kill(broker, "late")
        broker.step()
        assert places(broker.stats("jobs")) == {"dead": 3}
        clock.advance("1m")
        broker.step()
        assert places(broker.stats("jobs")) == {"dead": 1, "archived": 2}
        assert found(broker, status="archived", words="boom") == [0, 1]
        assert [group.count for group in broker.groups()] == [1]
        entries = broker.feed(kinds=["archived"]).entries
        assert [(entry.actor, entry.queue) for entry in entries] == [("retention", "jobs")] * 2

    def test_archiving_by_itself_is_audited(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", archive_after="1h")
        ids = die(broker, 2)
        clock.advance("1h")
        broker.step()
        entries = [entry for entry in broker.audit() if entry.actor == "retention"]
        assert {entry.verb for entry in entries} == {"archive"}
        assert sum(entry.count for entry in entries) == 2
        assert {id for entry in entries for id in entry.ids} == set(ids)

    def test_queue_in_which_it_lies_decides(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue", archive_after="1h")
        broker.create_queue("jobs", dead_queue="morgue", archive_after="1m")
        dead = kill(broker, "x")
        other = broker.put("morgue", "no dead letter")
        clock.advance("59m")
        broker.step()
        assert broker.get(dead.id).status == "pending"
        clock.advance("1m")
        broker.step()
        assert broker.get(dead.id).status == "archived"
        assert broker.get(other.id).status == "pending"
        assert broker.restore(dead.id).status == "pending"

    def test_active_dead_letter_is_left_alone(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker, archive_after="1h")
        kill(broker, "x")
        lease = take(broker, "morgue", lease_timeout="1d")
        clock.advance("2h")
        broker.step()
        assert broker.get(lease.id).status == "active"
        broker.complete(lease)

    def test_archived_items_are_removed_when_their_time_is_over(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_archived="2h")
        ids = die(broker, 2)
        clock.advance("1h")
        broker.archive(ids[0])
        clock.advance("59m")
        broker.step()
        assert found(broker, status="archived") == [0]
        clock.advance("1m")
        broker.step()
        with pytest.raises(ItemNotFound):
            broker.get(ids[0])
        assert (found(broker, status="archived"), found(broker)) == ([], [1])
        (entry,) = broker.feed(kinds=["removed"]).entries
        assert (entry.actor, entry.id) == ("retention", ids[0])
        assert ("retention", 1) in [(row.actor, row.count) for row in broker.audit()]

    def test_archived_first_and_removed_later(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker, archive_after="1h", keep_archived="3h")
        die(broker, 3)
        seen = []
        for _ in range(4):
            clock.advance("1h")
            broker.step()
            broker.step()
            seen.append(places(broker.stats("morgue")))
        assert seen == [{"archived": 3}, {"archived": 3}, {}, {}]

    def test_what_was_removed_by_keep_dead_is_told(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_dead="1h")
        (id,) = die(broker, 1)
        clock.advance("1h")
        assert broker.step().removed >= 1
        (entry,) = broker.feed(kinds=["removed"]).entries
        assert (entry.actor, entry.id, entry.queue) == ("retention", id, "jobs")

    def test_completed_items_go_without_a_word(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_completed="1h", feed="all")
        broker.put("jobs", 1)
        broker.complete(take(broker))
        clock.advance("1h")
        broker.step()
        assert places(broker.stats("jobs")) == {}
        assert [entry.kind for entry in broker.feed().entries] == ["put", "leased", "completed"]

    def test_unset_means_for_ever(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 2)
        broker.archive(ids[0])
        clock.advance("3650d")
        broker.step()
        assert (found(broker), found(broker, status="archived")) == ([1], [0])

    def test_changed_setting_holds_for_what_is_archived_already(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.archive(die(broker, 1))
        clock.advance("2h")
        broker.update_queue("jobs", keep_archived="1h")
        broker.step()
        assert found(broker, status="archived") == []
