"""Retry, fail and bury, archive and restore by an operator; redrive with an edited payload, which keeps the
original."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker
from redrive.errors import (
    InvalidInput,
    PayloadTooLarge,
    QueueFull,
    RedriveError,
    WrongStatus,
)
from redrive.model.duration import SECOND
from redrive.model.item import Counters
from redrive.testing.conformance.actions import dead_queue, die, found, kill, places, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock


class RetryConformance(Suite):
    """Retry and redrive in place: new counters, and the same history."""

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
        broker.run_maintenance()
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
    """Manual failures and burials by an operator."""

    def test_failure_by_hand_is_judged_like_any_other(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 2, "cooldown": "30s"})
        receipt = broker.put("jobs", 1)
        settled = broker.fail_items(receipt.id, "bad data", actor="ada")
        assert (settled.status, settled.ready_at) == ("failed", clock.now() + 30 * SECOND)
        assert settled.counters == Counters(failures=1)
        settled = broker.fail_items(receipt.id, "bad data", actor="ada")
        assert (settled.status, settled.dead_reason) == ("dead", "retries_exhausted")
        item = broker.get(receipt.id)
        assert [(entry.event, entry.actor) for entry in item.history] == [("failed", "ada")] * 2
        assert item.last_failure is not None
        assert item.last_failure.text == "bad data"

    def test_burial_by_hand_is_on_record(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        settled = broker.bury_items(receipt.id, note="recalled", actor="ada")
        assert (settled.status, settled.dead_reason, settled.counters) == ("dead", "buried", Counters())
        (entry,) = broker.get(receipt.id).history
        assert (entry.event, entry.note, entry.actor) == ("buried", "recalled", "ada")

    def test_setting_changed_by_another_broker_holds(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs", retry={"attempts": 9})
        ids = [one.put("jobs", n).id for n in range(2)]
        one.fail_items(ids[0], "x")
        two.update_queue("jobs", retry=None)
        assert one.fail_items(ids[1], "x").status == "dead"


class ArchiveConformance(Suite):
    """Archive of dead letters, and restore without changes."""

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
        broker.run_maintenance()
        assert broker.get(dead.id).status == "archived"

    def test_archived_item_must_be_restored_before_it_is_redriven(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = kill(broker)
        broker.archive(dead.id)
        with pytest.raises(WrongStatus):
            broker.redrive(dead.id)
        broker.restore(dead.id)
        assert broker.redrive(dead.id).status == "pending"


class EditConformance(Suite):
    """Redrive with changes: `redrive(…, payload=, headers=, edit=, edit_headers=)`."""

    @pytest.mark.parametrize("to_dead_queue", [False, True])
    def test_edited_payload_is_what_the_worker_gets(self, broker: Broker, to_dead_queue: bool) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue" if to_dead_queue else None)
        dead = kill(broker, {"n": "1", "keep": True})
        settled = broker.redrive(dead.id, edit=lambda value: {**value, "n": int(value["n"])}, actor="ada")
        assert (settled.queue, settled.status) == ("jobs", "pending")
        lease = take(broker)
        assert (lease.id, lease.value) == (settled.id, {"n": 1, "keep": True})
        assert broker.get(settled.id).counters.redrives == 1
        broker.complete(lease)
        assert found(broker) == []

    def test_original_is_archived_and_linked(self, broker: Broker) -> None:
        dead_queue(broker)
        receipt = broker.put("jobs", {"n": "1"}, headers={"h": "1"})
        dead = broker.fail(take(broker), "boom")
        settled = broker.redrive(dead.id, edit={"n": 1})
        (original,) = broker.find(status="archived").items
        edited = broker.get(settled.id)
        assert (original.value, original.status) == ({"n": "1"}, "archived")
        assert (edited.value, edited.headers, edited.status) == ({"n": 1}, {"h": "1"}, "pending")
        assert edited.source_id == original.id
        assert edited.id != original.id
        assert edited.origin_id == receipt.id
        assert edited.deaths == original.deaths
        assert edited.history[-1].event == "redriven"

    def test_merge_patch_changes_adds_and_removes(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = kill(broker, {"a": 1, "b": {"c": 2, "d": 3}, "e": 4})
        broker.redrive(dead.id, edit={"a": None, "b": {"c": 20, "f": [1, None]}, "g": "new"})
        assert take(broker).value == {"b": {"c": 20, "d": 3, "f": [1, None]}, "e": 4, "g": "new"}

    def test_payload_and_headers_take_the_place_of_the_old_ones(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", {"n": 1}, headers={"old": "1"})
        dead = broker.fail(take(broker), "boom")
        broker.redrive(dead.id, payload=[1, 2], headers={"new": "2"})
        lease = take(broker)
        assert (lease.value, lease.headers) == ([1, 2], {"new": "2"})

    def test_headers_can_be_edited_alone(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", {"n": 1}, headers={"a": "1", "b": "2"})
        dead = broker.fail(take(broker), "boom")
        broker.redrive(dead.id, edit_headers={"a": None, "c": "3"})
        lease = take(broker)
        assert (lease.value, lease.headers) == ({"n": 1}, {"b": "2", "c": "3"})

    def test_each_of_many_is_edited_by_itself(self, broker: Broker) -> None:
        dead_queue(broker)
        ids = die(broker, 3)
        broker.redrive(ids, edit=lambda value: value * 10)
        assert values(take_all(broker)) == [0, 10, 20]

    def test_edit_that_fails_for_one_leaves_that_one_dead(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = [kill(broker, value).id for value in (2, 0, 5)]

        def edit(value: int) -> Any:
            return 10 // value

        results = broker.redrive(ids, edit=edit)
        assert [isinstance(result, RedriveError) for result in results] == [False, True, False]
        assert found(broker) == [0]
        assert values(take_all(broker)) == [5, 2]

    def test_edited_payload_keeps_the_limits_of_the_queue(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_payload_size=20)
        dead = kill(broker, "x")
        with pytest.raises(PayloadTooLarge):
            broker.redrive(dead.id, payload="x" * 30)
        assert found(broker) == ["x"]

    def test_payload_and_edit_are_alternatives(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = kill(broker, {"n": 1})
        with pytest.raises(InvalidInput):
            broker.redrive(dead.id, payload=1, edit={"n": 2})
        with pytest.raises(InvalidInput):
            broker.redrive(dead.id, edit="no")  # type: ignore[call-overload]
        assert found(broker) == [{"n": 1}]

    def test_payload_none_is_a_payload(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.redrive(kill(broker, {"n": 1}).id, payload=None)
        assert take(broker).value is None
