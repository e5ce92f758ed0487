"""Redrive: a dead letter comes back from its dead queue."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.errors import ItemActive, LeaseLost, QueueFull, QueueNotFound, RedriveError, WrongStatus
from redrive.model.duration import SECOND
from redrive.model.item import Counters
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import dead_queue, kill, places, take, take_all, values
from redrive.testing.conformance.suite import Suite


class RedriveFromDeadQueueConformance(Suite):
    """Redrive brings a dead letter back to where it died."""

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
