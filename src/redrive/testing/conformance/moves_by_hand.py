"""Moving by hand: items go to another queue and stay what they are. Purging: the archive is emptied for good."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.errors import InvalidInput, ItemActive, ItemNotFound, LeaseLost, QueueNotFound, WrongStatus
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import dead_queue, kill, places, take, take_all, values
from redrive.testing.conformance.many import die, found
from redrive.testing.conformance.suite import Suite


class MoveByHandConformance(Suite):
    """`move`: one item or many, to a queue that exists."""

    def test_pending_item_moves_with_everything_it_has(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs", retry={"attempts": 3})
        receipt = broker.put("jobs", {"n": 1}, headers={"h": "1"}, priority=7)
        broker.release(take(broker))
        clock.advance("1s")
        before = broker.get(receipt.id)
        settled = broker.move(receipt.id, "other", actor="ada")
        item = broker.get(settled.id)
        assert (settled.queue, settled.status, settled.source_id) == ("other", "pending", receipt.id)
        assert (item.value, item.headers, item.priority, item.counters) == ({"n": 1}, {"h": "1"}, 7, before.counters)
        assert (item.origin_id, item.origin_queue, item.earlier_ids) == (receipt.id, "jobs", (receipt.id,))
        entry = item.history[-1]
        assert (entry.event, entry.actor, entry.queue) == ("moved", "ada", "jobs")
        assert (places(broker.stats("jobs")), places(broker.stats("other"))) == ({}, {"pending": 1})
        assert broker.get(receipt.id) == item
        assert values(take_all(broker, "other")) == [{"n": 1}]

    def test_failed_item_stays_failed_until_it_is_due(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1m"})
        receipt = broker.put("jobs", "x")
        broker.fail(take(broker), "boom")
        assert broker.move(receipt.id, "other").status == "failed"
        assert take_all(broker, "other") == []
        clock.advance("1m")
        assert values(take_all(broker, "other")) == ["x"]

    def test_dead_item_stays_dead_with_its_cause(self, broker: Broker) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs")
        first, _ = die(broker, 2)
        moved = broker.move(first, "other")
        assert (moved.status, broker.get(moved.id).dead_reason) == ("dead", "final_error")
        assert found(broker, queue="other") == found(broker, words="boom", queue="other") == [0]
        assert found(broker) == [0, 1]
        (group,) = broker.groups()
        assert dict(group.queues) == {"other": 1, "jobs": 1}
        assert broker.stats("other").dead_letters == 1

    def test_dead_letter_in_a_dead_queue_goes_to_another_dead_queue_as_one(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.create_queue("cellar")
        broker.create_queue("mails", dead_queue="cellar")
        dead = kill(broker, "x")
        moved = broker.move(dead.id, "cellar")
        assert found(broker, queue="cellar") == ["x"]
        assert (broker.stats("cellar").dead_letters, broker.stats("morgue").dead_letters) == (1, 0)
        assert broker.redrive(moved.id).queue == "jobs"

    def test_move_to_where_it_is_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", "x")
        with pytest.raises(InvalidInput):
            broker.move(receipt.id, "jobs")
        assert (broker.get(receipt.id).queue, places(broker.stats("jobs"))) == ("jobs", {"pending": 1})

    def test_move_is_refused_for_what_is_not_at_rest(self, broker: Broker) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs", keep_completed="1h")
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(ItemActive):
            broker.move(lease.id, "other")
        with pytest.raises(QueueNotFound):
            broker.move(lease.id, "nowhere", force=True)
        assert broker.move(lease.id, "other", force=True).queue == "other"
        with pytest.raises(LeaseLost):
            broker.complete(lease)
        done = take(broker, "other")
        broker.create_queue("third", keep_completed="1h")
        third = broker.put("third", 1)
        broker.complete(take(broker, "third"))
        with pytest.raises(WrongStatus):
            broker.move(third.id, "jobs")
        broker.archive(kill(broker).id)
        with pytest.raises(WrongStatus):
            broker.move(broker.find(status="archived").items[0].id, "other")
        broker.complete(done)

    def test_move_of_many_is_one_audit_row(self, broker: Broker) -> None:
        broker.create_queue("other")
        broker.create_queue("jobs")
        ids = [receipt.id for receipt in broker.put_many("jobs", range(3))]
        broker.move([*ids, "f" * 32], "other", actor="ada")
        (entry,) = broker.audit(1)
        assert (entry.actor, entry.verb, entry.count) == ("ada", "move", 3)
        assert found(broker, status="pending", queue="other") == [0, 1, 2]


class PurgeConformance(Suite):
    """`purge`: archived items only, for good."""

    def test_archived_item_is_gone_with_an_audit_row(self, broker: Broker) -> None:
        dead_queue(broker)
        (id,) = die(broker, 1)
        broker.archive(id)
        settled = broker.purge(id, actor="ada")
        assert settled.status is None
        with pytest.raises(ItemNotFound):
            broker.get(id)
        assert found(broker, status="archived") == found(broker, status="archived", words="boom") == []
        (entry,) = broker.audit(1)
        assert (entry.actor, entry.verb, entry.count) == ("ada", "purge", 1)
        assert places(broker.stats("morgue")) == {}

    def test_purge_is_for_the_archive_only(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        pending = broker.put("jobs", 1)
        (dead,) = die(broker, 1)
        for id in (pending.id, dead):
            with pytest.raises(WrongStatus):
                broker.purge(id)
        assert places(broker.stats("jobs")) == {"pending": 1, "dead": 1}
