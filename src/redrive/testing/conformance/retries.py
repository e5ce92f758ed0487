"""What a person does with items: retry, fail and bury, archive and restore."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.errors import (
    QueueFull,
    WrongStatus,
)
from redrive.model.duration import SECOND
from redrive.model.item import Counters
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import kill, places, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, Suite


class RetryConformance(Suite):
    """Retry and redrive in place: a fresh start, with the past on record."""

    @pytest.mark.parametrize("verb", ["retry", "redrive"])
    def test_person_starts_the_counters_anew(self, broker: Broker, clock: FakeClock, verb: str) -> None:
        broker.create_queue("jobs", retry={"attempts": 2}, expire_timeout="1h")
        receipt = broker.put("jobs", 1)
        for _ in range(2):
            broker.fail(take(broker), "boom")
        clock.advance("2h")
        settled = getattr(broker, verb)(receipt.id, actor="ada")
        item = broker.get(receipt.id)
        assert (settled.id, settled.status, settled.ready_at) == (receipt.id, "pending", clock.now())
        assert item.counters == settled.counters == Counters(deliveries=2, redrives=1)
        assert item.expire_deadline == clock.now() + 3600 * SECOND
        assert (item.dead_reason, item.ended_at) == (None, None)
        assert [(entry.event, entry.actor) for entry in item.history] == [
            ("failed", None),
            ("failed", None),
            ("redriven", "ada"),
        ]
        assert len(item.deaths) == 1
        assert [broker.fail(take(broker), "boom").status for _ in range(2)] == ["failed", "dead"]

    def test_losses_start_anew_too(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", max_losses=1)
        receipt = broker.put("jobs", 1)
        take(broker, lease_timeout="1s")
        clock.advance("1s")
        broker.step()
        assert broker.retry(receipt.id).counters == Counters(deliveries=1, redrives=1)

    def test_retried_item_goes_to_the_tail(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", ["dead", "a", "b"])
        broker.retry(broker.fail(take(broker), "boom").id)
        assert values(take_all(broker)) == ["a", "b", "dead"]

    def test_failed_item_is_tried_at_once(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1h"})
        receipt = broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        settled = broker.retry(receipt.id)
        assert (settled.status, settled.ready_at, settled.counters.failures) == ("pending", clock.now(), 0)
        assert take(broker).id == receipt.id

    def test_redrives_add_up(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        for n in range(1, 4):
            broker.fail(take(broker), "boom")
            assert broker.redrive(receipt.id).counters == Counters(deliveries=n, redrives=n)
        assert len(broker.get(receipt.id).deaths) == 3

    def test_redrive_of_a_dead_item_to_another_queue_moves_it(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("slow")
        dead = kill(broker, "x")
        settled = broker.redrive(dead.id, to="slow")
        assert (settled.queue, settled.status, settled.source_id) == ("slow", "pending", dead.id)
        assert settled.id != dead.id
        assert broker.get(dead.id).id == settled.id
        assert values(take_all(broker, "slow")) == ["x"]
        assert places(broker.stats("jobs")) == {}

    def test_retry_works_in_a_paused_queue(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = kill(broker)
        broker.pause_queue("jobs")
        assert broker.retry(dead.id).status == "pending"
        assert take_all(broker) == []


class FailByHandConformance(Suite):
    """A person counts a failure, or buries."""

    def test_failure_by_hand_is_judged_like_any_other(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 2, "cooldown": "30s"})
        receipt = broker.put("jobs", 1)
        settled = broker.fail_by_hand(receipt.id, "bad data", actor="ada")
        assert (settled.status, settled.ready_at) == ("failed", clock.now() + 30 * SECOND)
        assert settled.counters == Counters(failures=1)
        settled = broker.fail_by_hand(receipt.id, "bad data", actor="ada")
        assert (settled.status, settled.dead_reason) == ("dead", "retries_exhausted")
        item = broker.get(receipt.id)
        assert [(entry.event, entry.actor) for entry in item.history] == [("failed", "ada")] * 2
        assert item.last_failure is not None
        assert item.last_failure.text == "bad data"

    def test_burial_by_hand_is_on_record(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        settled = broker.bury_by_hand(receipt.id, note="recalled", actor="ada")
        assert (settled.status, settled.dead_reason, settled.counters) == ("dead", "buried", Counters())
        (entry,) = broker.get(receipt.id).history
        assert (entry.event, entry.note, entry.actor) == ("buried", "recalled", "ada")

    def test_setting_changed_by_another_broker_holds(self, open_broker: OpenBroker) -> None:
        self.require("shared")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs", retry={"attempts": 9})
        ids = [one.put("jobs", n).id for n in range(2)]
        one.fail_by_hand(ids[0], "x")
        two.update_queue("jobs", retry=None)
        assert one.fail_by_hand(ids[1], "x").status == "dead"


class ArchiveConformance(Suite):
    """Archive puts dead letters aside; restore brings them back as they were."""

    def test_archive_keeps_everything_and_restore_returns_it(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = broker.get(kill(broker, {"n": 1}).id)
        broker.archive(dead.id, actor="ada")
        archived = broker.get(dead.id)
        assert (archived.status, archived.dead_reason, archived.value) == ("archived", dead.dead_reason, {"n": 1})
        assert places(broker.stats("jobs")) == {"archived": 1}
        broker.restore(dead.id, actor="ada")
        assert broker.get(dead.id) == dead

    def test_dead_letter_in_a_dead_queue_returns_to_pending(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        dead = kill(broker, "x")
        assert broker.archive(dead.id).status == "archived"
        assert take_all(broker, "morgue") == []
        assert broker.stats("morgue").dead_letters == 0
        assert broker.restore(dead.id).status == "pending"
        assert values(take_all(broker, "morgue")) == ["x"]

    def test_restore_is_refused_by_a_full_queue(self, broker: Broker) -> None:
        broker.create_queue("morgue", max_size=1)
        broker.create_queue("jobs", dead_queue="morgue")
        dead = kill(broker)
        broker.archive(dead.id)
        broker.put("morgue", "taken")
        with pytest.raises(QueueFull):
            broker.restore(dead.id)
        assert broker.get(dead.id).status == "archived"

    def test_archived_items_are_not_removed_by_keep_dead(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_dead="1h")
        dead = kill(broker)
        broker.archive(dead.id)
        clock.advance("2h")
        broker.step()
        assert broker.get(dead.id).status == "archived"

    def test_archived_item_must_be_restored_before_it_is_redriven(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = kill(broker)
        broker.archive(dead.id)
        with pytest.raises(WrongStatus):
            broker.redrive(dead.id)
        broker.restore(dead.id)
        assert broker.redrive(dead.id).status == "pending"
