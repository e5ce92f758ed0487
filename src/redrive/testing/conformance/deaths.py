"""Death: its reason, its record, and the place of the dead item."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from redrive import Broker, Dead, DeadReason
from redrive.errors import ItemNotFound
from redrive.model.item import Counters
from redrive.testing.conformance.actions import Boom, kill, lose, places, take, take_all, values
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class BuryConformance(Suite):
    """A worker makes an item dead, regardless of its counters."""

    def test_buried_item_is_dead_with_its_note(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 9}, max_attempts=0)
        broker.put("jobs", 1)
        settled = broker.bury(take(broker, worker="w1"), note="makes no sense")
        item = broker.get(settled.id)
        assert (settled.status, settled.dead_reason, settled.ready_at) == ("dead", "buried", None)
        assert (item.status, item.dead_reason, item.ended_at) == ("dead", "buried", clock.now())
        (entry,) = item.history
        assert (entry.event, entry.note, entry.worker) == ("buried", "makes no sense", "w1")

    def test_bury_may_carry_an_error_and_counts_no_failure(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        settled = broker.bury(take(broker), error=Boom("why"))
        failure = broker.get(settled.id).last_failure
        assert settled.counters == Counters(deliveries=1, attempts=1)
        assert failure is not None
        assert failure.text == "why"

    @pytest.mark.parametrize("content_type", ["text/plain", "application/json", None])
    def test_item_with_nothing_in_it_dies_like_any_other(self, broker: Broker, content_type: str | None) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", b"", content_type=content_type)
        settled = broker.bury(take(broker))
        assert broker.get(settled.id).payload == b""


class ReasonConformance(Suite):
    """If several reasons apply, the first of the list is recorded."""

    def dying(self, broker: Broker, **options: Any) -> None:
        """Put an item whose first delivery exceeds all limits of counters."""
        broker.create_queue("jobs", max_attempts=1, max_losses=1)
        broker.put("jobs", 1, **options)

    def test_buried_goes_before_expired_and_max_attempts(self, broker: Broker, clock: FakeClock) -> None:
        self.dying(broker, expire_timeout="1s")
        lease = take(broker)
        clock.advance("1s")
        assert broker.bury(lease).dead_reason == "buried"

    @pytest.mark.parametrize("reason", [DeadReason.UNDECODABLE, DeadReason.UNKNOWN_HANDLER, DeadReason.POLICY])
    def test_verdict_of_the_worker_goes_before_the_counters(
        self, broker: Broker, clock: FakeClock, reason: DeadReason
    ) -> None:
        self.dying(broker, expire_timeout="1s")
        lease = take(broker)
        clock.advance("1s")
        assert broker.fail(lease, "boom", verdict=Dead(reason)).dead_reason == reason

    def test_final_error_goes_before_expired(self, broker: Broker, clock: FakeClock) -> None:
        self.dying(broker, expire_timeout="1s")
        lease = take(broker)
        clock.advance("1s")
        assert broker.fail(lease, "boom", final=True).dead_reason == "final_error"

    def test_expired_goes_before_worker_lost(self, broker: Broker, clock: FakeClock) -> None:
        self.dying(broker, expire_timeout="1s")
        assert lose(broker, clock).dead_reason == "expired"

    def test_expired_goes_before_max_attempts(self, broker: Broker, clock: FakeClock) -> None:
        self.dying(broker, expire_timeout="1s")
        lease = take(broker)
        clock.advance("1s")
        assert broker.fail(lease, "boom").dead_reason == "expired"

    def test_worker_lost_goes_before_max_attempts(self, broker: Broker, clock: FakeClock) -> None:
        self.dying(broker)
        assert lose(broker, clock).dead_reason == "worker_lost"

    def test_max_attempts_goes_before_retries_exhausted(self, broker: Broker) -> None:
        self.dying(broker)
        assert broker.fail(take(broker), "boom").dead_reason == "max_attempts"


class DeadInPlaceConformance(Suite):
    """Without a dead queue, the item stays in its queue with status dead."""

    def test_dead_item_stays_with_its_id_and_payload(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", {"n": 1}, headers={"h": "x"}, priority=7)
        clock.advance("1m")
        settled = broker.fail(take(broker), "boom")
        item = broker.get(receipt.id)
        assert (settled.id, settled.queue, settled.source_id) == (receipt.id, "jobs", None)
        assert (item.value, dict(item.headers), item.priority) == ({"n": 1}, {"h": "x"}, 7)
        assert (item.ended_at, item.ready_at, item.lease_deadline) == (clock.now(), None, None)
        assert places(broker.stats("jobs")) == {"dead": 1}

    def test_death_record_tells_the_whole_story(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 2})
        receipt = broker.put("jobs", 1)
        first_leased_at = clock.advance("1m")
        broker.fail(take(broker), "boom")
        died_at = clock.advance("1m")
        broker.fail(take(broker), "boom")
        (death,) = broker.get(receipt.id).deaths
        assert (death.at, death.reason, death.queue, death.id) == (died_at, "retries_exhausted", "jobs", receipt.id)
        assert (death.namespace, bool(death.store)) == ("default", True)
        assert death.counters == Counters(deliveries=2, attempts=2, failures=2)
        assert death.first_leased_at == first_leased_at

    def test_item_that_was_never_leased_has_no_first_lease_in_its_death_record(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        broker.create_queue("jobs", expire_timeout="1s")
        receipt = broker.put("jobs", 1)
        clock.advance("1s")
        broker.run_maintenance()
        (death,) = broker.get(receipt.id).deaths
        assert (death.reason, death.first_leased_at) == ("expired", None)

    def test_second_death_has_a_record_of_its_own(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        for _ in range(2):
            clock.advance("1m")
            broker.fail(take(broker), "boom", final=True)
            broker.redrive(receipt.id)
        deaths = broker.get(receipt.id).deaths
        assert [death.counters for death in deaths] == [
            Counters(deliveries=1, attempts=1, failures=1),
            Counters(deliveries=2, attempts=1, failures=1, redrives=1),
        ]
        assert deaths[1].at - deaths[0].at == 60_000_000

    def test_nothing_dead_goes_away_by_itself(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", expire_timeout="1s")
        kill(broker)
        clock.advance("36500d")
        broker.run_maintenance()
        assert places(broker.stats("jobs")) == {"dead": 1}


class DropConformance(Suite):
    """on_dead = drop removes dead items, with a warning and an audit row."""

    def test_dropped_item_leaves_an_audit_row_and_a_warning(
        self, broker: Broker, clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        broker.create_queue("jobs", on_dead="drop")
        receipt = broker.put("jobs", 1)
        with caplog.at_level(logging.WARNING, "redrive"):
            settled = broker.fail(take(broker), "boom")
        assert settled.status is None
        with pytest.raises(ItemNotFound):
            broker.get(receipt.id)
        entry = broker.audit()[0]
        assert (entry.at, entry.queue, entry.ids, entry.count) == (clock.now(), "jobs", (receipt.id,), 1)
        assert any(receipt.id in record.getMessage() for record in caplog.records)

    def test_item_lost_for_good_is_dropped_too(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", on_dead="drop", expire_timeout="1s", max_losses=1)
        broker.put_many("jobs", [1, 2])
        take(broker, lease_timeout="1s")
        clock.advance("1s")
        broker.run_maintenance()
        assert places(broker.stats("jobs")) == {}
        assert sum(entry.count for entry in broker.audit()) == 2

    def test_dead_queue_goes_before_drop(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", on_dead="drop", dead_queue={"ValueError": "morgue"})
        kill(broker, 1, error=ValueError("x"))
        kill(broker, 2, error=Boom("x"))
        assert values(take_all(broker, "morgue")) == [1]
        assert places(broker.stats("jobs")) == {}

    def test_dropped_items_are_counted_as_dead(self, broker: Broker) -> None:
        broker.create_queue("jobs", on_dead="drop")
        kill(broker)
        assert broker.stats("jobs").dead_total == 1
