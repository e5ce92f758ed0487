"""Retention: what is removed by itself, and only where that was asked for."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.errors import ItemNotFound
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import kill, places, take
from redrive.testing.conformance.suite import Suite


class RetentionConformance(Suite):
    """keep_completed and keep_dead."""

    def test_completed_items_go_when_their_time_is_over(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_completed="1h")
        broker.put("jobs", 1)
        lease = take(broker)
        broker.complete(lease)
        clock.advance("59m")
        broker.step()
        assert broker.get(lease.id).status == "completed"
        clock.advance("2m")
        broker.step()
        with pytest.raises(ItemNotFound):
            broker.get(lease.id)
        assert places(broker.stats("jobs")) == {}

    def test_dead_items_go_when_their_time_is_over_with_an_audit_row(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_dead="1h")
        ids = {kill(broker).id, kill(broker).id}
        clock.advance("59m")
        late = kill(broker).id
        broker.step()
        assert places(broker.stats("jobs")) == {"dead": 3}
        clock.advance("2m")
        broker.step()
        assert places(broker.stats("jobs")) == {"dead": 1}
        assert broker.get(late).status == "dead"
        entries = [entry for entry in broker.audit() if entry.queue == "jobs"]
        assert sum(entry.count for entry in entries) == 2
        assert {id for entry in entries for id in entry.ids} == ids

    def test_retention_is_that_of_the_queue_in_which_the_item_lies(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue", keep_dead="1d")
        broker.create_queue("jobs", dead_queue="morgue", keep_dead="1h")
        dead = kill(broker)
        clock.advance("2h")
        broker.step()
        assert broker.get(dead.id).queue == "morgue"

    def test_dead_letters_in_a_dead_queue_go_by_its_retention(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue", keep_dead="1h")
        broker.create_queue("jobs", dead_queue="morgue")
        dead = kill(broker)
        other = broker.put("morgue", "no dead letter")
        clock.advance("59m")
        broker.step()
        assert broker.get(dead.id).queue == "morgue"
        clock.advance("2m")
        broker.step()
        with pytest.raises(ItemNotFound):
            broker.get(dead.id)
        assert broker.get(other.id).status == "pending"

    def test_changed_retention_holds_for_what_is_there(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        kill(broker)
        clock.advance("2h")
        broker.step()
        assert places(broker.stats("jobs")) == {"dead": 1}
        broker.update_queue("jobs", keep_dead="1h")
        broker.step()
        assert places(broker.stats("jobs")) == {}

    def test_retention_counts_from_the_death(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_dead="1h")
        broker.put("jobs", 1)
        clock.advance("1d")
        settled = broker.fail(take(broker, lease_timeout="10d"), "boom")
        clock.advance("59m")
        broker.step()
        assert broker.get(settled.id).status == "dead"

    def test_redriven_item_is_kept(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_dead="1h")
        dead = kill(broker)
        broker.redrive(dead.id)
        clock.advance("2h")
        broker.step()
        assert broker.get(dead.id).status == "pending"

    def test_done_by_hand_is_kept_like_any_completion(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_completed="1h")
        dead = kill(broker)
        broker.done(dead.id)
        assert broker.get(dead.id).status == "completed"
        clock.advance("61m")
        broker.step()
        assert places(broker.stats("jobs")) == {}

    def test_done_by_hand_is_removed_where_nothing_is_kept(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = kill(broker)
        assert broker.done(dead.id).status is None
        assert places(broker.stats("jobs")) == {}
