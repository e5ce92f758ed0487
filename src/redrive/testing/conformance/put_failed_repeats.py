"""`put_failed` under a known key: no failure is lost, regardless of the state of the item of the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redrive import Broker
from redrive.contract.item_calls import Complete, NewItem, Put
from redrive.contract.maintenance_calls import FinishMove
from redrive.errors import IdempotencyConflict, InvalidInput, ItemMoving, ItemNotFound, QueueFull
from redrive.model.failure import failure_from_fields
from redrive.model.ids import ItemId
from redrive.model.item import Overrides
from redrive.model.judge import Dead, RetryVerdict, Verdict
from redrive.model.retry_policy import RetryPolicy
from redrive.testing.conformance.actions import places, take
from redrive.testing.conformance.item_states import DROPPED, GONE, THERE, Journey, create_queues, dead
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StorePair, StorePairSuite, StoreSuite, Suite, put
from redrive.testing.fake_clock import FakeClock


def _put(broker: Broker) -> ItemId:
    create_queues(broker)
    return broker.put("jobs", 1, idempotency_key="k").id


def _texts(broker: Broker, id: str) -> list[str]:
    return [entry.failure.text for entry in broker.get(id).history if entry.failure]


class CaptureAgainConformance(Suite):
    """Every state of the item of a known key."""

    @pytest.mark.parametrize("journey", THERE)
    def test_item_that_is_there_gets_the_failure(self, broker: Broker, clock: FakeClock, journey: Journey) -> None:
        first = _put(broker)
        journey(broker, clock, first)
        before, total = broker.get(first), broker.count(status="any")
        receipt = broker.put_failed("jobs", 1, "again", idempotency_key="k")
        assert (receipt.id, receipt.duplicate) == (first, True)
        after = broker.get(first)
        assert (after.queue, after.status, after.ready_at, after.held_by) == (
            before.queue,
            before.status,
            before.ready_at,
            before.held_by,
        )
        assert (len(after.history), _texts(broker, first)[-1]) == (len(before.history) + 1, "again")
        counted = before.status != "active"
        assert after.counters.failures == before.counters.failures + counted
        assert (broker.count(status="any"), len(after.deaths)) == (total, len(before.deaths))

    def test_archived_item_is_kept_no_longer_for_a_failure(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_archived="1m")
        id = broker.put("jobs", 1, idempotency_key="k").id
        broker.archive([id])
        clock.advance("30s")
        assert broker.put_failed("jobs", 1, "again", idempotency_key="k").duplicate
        assert broker.count(status="archived", since="20s") == 0
        clock.advance("30s")
        broker.run_maintenance()
        assert broker.count(status="any") == 0

    def test_failure_is_judged_by_settings_that_another_program_changed(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        two.create_queue("jobs")
        assert one.get(one.put_failed("jobs", 1, "no seats").id).status == "dead"
        rules = [{"error_class": "resource", "contains": ["no seats"]}]
        two.update_queue("jobs", retry={"attempts": 3, "cooldown": "1m"}, error_rules=rules)
        item = one.get(one.put_failed("jobs", 2, "no seats").id)
        assert item.last_failure is not None
        assert (item.status, item.last_failure.error_class) == ("failed", "resource")
        two.delete_queue("jobs", confirm=2)
        two.create_queue("jobs", retry={"attempts": 2})
        item = one.get(one.put_failed("jobs", 3, "no seats").id)
        assert item.last_failure is not None
        assert (item.status, item.last_failure.error_class) == ("failed", "permanent")

    @pytest.mark.parametrize("journey", GONE)
    def test_failure_of_work_that_is_gone_is_a_new_item(
        self, broker: Broker, clock: FakeClock, journey: Journey
    ) -> None:
        first = _put(broker)
        journey(broker, clock, first)
        receipt = broker.put_failed("jobs", 1, "again", idempotency_key="k")
        assert not receipt.duplicate
        assert receipt.id != first
        item = broker.get(receipt.id)
        assert (item.status, item.idempotency_key, item.counters.failures) == ("failed", "k", 1)
        assert _texts(broker, receipt.id) == ["again"]

    @pytest.mark.parametrize("journey", GONE)
    def test_new_item_takes_the_key(self, broker: Broker, clock: FakeClock, journey: Journey) -> None:
        first = _put(broker)
        journey(broker, clock, first)
        new = broker.put_failed("jobs", 1, "again", idempotency_key="k").id
        clock.advance("1h")
        broker.run_maintenance()
        assert broker.put("jobs", 1, idempotency_key="k").id == new
        assert broker.put_failed("jobs", 1, "once more", idempotency_key="k").id == new
        assert _texts(broker, new) == ["again", "once more"]

    @pytest.mark.parametrize("journey", [journey for journey in GONE if journey not in DROPPED])
    def test_another_payload_is_refused_aloud(self, broker: Broker, clock: FakeClock, journey: Journey) -> None:
        first = _put(broker)
        journey(broker, clock, first)
        total = broker.count(status="any")
        with pytest.raises(IdempotencyConflict):
            broker.put_failed("jobs", 2, "again", idempotency_key="k")
        assert broker.count(status="any") == total

    def test_failure_after_the_time_of_the_key_is_a_new_item(self, broker: Broker, clock: FakeClock) -> None:
        first = _put(broker)
        clock.advance("25h")
        receipt = broker.put_failed("jobs", 2, "again", idempotency_key="k")
        assert (receipt.duplicate, _texts(broker, receipt.id), _texts(broker, first)) == (False, ["again"], [])

    def test_key_of_an_item_that_was_edited_stands_for_the_one_aside(self, broker: Broker, clock: FakeClock) -> None:
        first = _put(broker)
        dead(broker, clock, first)
        broker.redrive(first, payload=2)
        assert broker.put_failed("jobs", 1, "again", idempotency_key="k").id == first
        assert (broker.get(first).status, _texts(broker, first)) == ("archived", ["boom", "again"])

    def test_several_that_are_born_dead_in_one_put_are_moved_and_found(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        failure = failure_from_fields("Boom", "out of luck")
        version = broker.get_queue("jobs").version
        born = [
            NewItem(text, "text/plain", failure=failure, verdict=Dead(to="morgue"), version=version)
            for text in (b"alpha", b"beta", b"gamma")
        ]
        broker.submit(Put("jobs", tuple(born)))
        assert sorted(item.payload for item in broker.find(queue="morgue").items) == [b"alpha", b"beta", b"gamma"]
        assert [item.payload for item in broker.find(words="beta").items] == [b"beta"]

    def test_new_item_needs_room(self, broker: Broker) -> None:
        _put(broker)
        broker.complete(take(broker))
        broker.update_queue("jobs", max_size=1)
        broker.put("jobs", "other")
        with pytest.raises(QueueFull):
            broker.put_failed("jobs", 1, "again", idempotency_key="k")
        assert broker.put_failed("jobs", 1, "again", idempotency_key="k", verdict=Dead()).duplicate is False

    def test_failure_counts_by_the_limits_of_the_item_that_is_there(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 5, "cooldown": "1s"})
        broker.put("jobs", 1, idempotency_key="k", retry={"attempts": 2})
        broker.put_failed("jobs", 1, "one", idempotency_key="k")
        settled = broker.fail(take(broker), "two")
        assert (settled.status, settled.dead_reason) == ("dead", "retries_exhausted")

    def test_new_item_is_judged_by_its_own_limits(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 1, "cooldown": "1s"})
        patient = broker.put_failed("jobs", 1, "one", retry={"attempts": 3}, max_attempts=9, max_losses=2)
        item = broker.get(patient.id)
        assert (item.status, item.overrides) == ("failed", Overrides(9, 2, RetryPolicy(3)))
        broker.update_queue("jobs", retry={"attempts": 4, "cooldown": "1s"})
        assert broker.get(broker.put_failed("jobs", 2, "one", retry={"attempts": 1}).id).status == "dead"


def _by_its_death(pair: StorePair, id: ItemId) -> None:
    pair.source.fail(take(pair.source), "boom", final=True)


def _by_a_move(pair: StorePair, id: ItemId) -> None:
    pair.source.move(id, pair.there("mails"))


def _by_a_redrive(pair: StorePair, id: ItemId) -> None:
    pair.source.update_queue("jobs", dead_queue=None)
    pair.source.fail(take(pair.source), "boom", final=True)
    pair.source.redrive(id, to=pair.there("mails"))


class CaptureOfMovingConformance(StorePairSuite):
    """The item of the key is moving to another store, or has arrived there."""

    @pytest.mark.parametrize("received", [False, True])
    @pytest.mark.parametrize("leave", [_by_its_death, _by_a_move, _by_a_redrive])
    def test_item_on_its_way_refuses_it_and_once_gone_it_is_a_new_one(
        self, pair: StorePair, leave: Callable[[StorePair, ItemId], None], received: bool
    ) -> None:
        pair.create_queues()
        pair.target.create_queue("mails")
        first = pair.source.put("jobs", 1, idempotency_key="k").id
        leave(pair, first)
        if received:
            pair.receive()
        before = pair.source.get(first)
        with pytest.raises(ItemMoving, match=first) as refusal:
            pair.source.put_failed("jobs", 1, "again", idempotency_key="k")
        assert (refusal.value.retryable, refusal.value.to) == (True, before.moving_to)
        assert pair.source.get(first) == before
        assert pair.source.put("jobs", 1, idempotency_key="k").id == first
        pair.source.run_maintenance()
        with pytest.raises(ItemNotFound):
            pair.source.get(first)
        new = pair.source.put_failed("jobs", 1, "again", idempotency_key="k", verdict=RetryVerdict())
        assert (new.duplicate, _texts(pair.source, new.id)) == (False, ["again"])

    def test_failure_and_the_end_of_the_move_in_one_batch(self, pair: StorePair) -> None:
        pair.create_queues()
        first = pair.source.put("jobs", 1, idempotency_key="k").id
        pair.source.fail(take(pair.source), "boom", final=True)
        pair.receive()
        version = pair.source.get_queue("jobs").version
        again = Put("jobs", (NewItem(b"1", "application/json", idempotency_key="k", **_failed(Dead(), version)),))
        commit = pair.source.core.store.commit
        refusal, gone = commit([again, FinishMove((first,))]).results
        assert (type(refusal), gone) == (ItemMoving, 1)
        ((receipt,),) = commit([again]).results
        assert receipt.duplicate is False


def _failed(verdict: Verdict, version: int, text: str = "again") -> dict[str, Any]:
    return {"failure": failure_from_fields("Error", text), "verdict": verdict, "version": version}


class CaptureBatchConformance(StoreSuite):
    """Failures under one key in one call or one batch, and failures that cannot be put."""

    def test_later_failures_of_a_call_and_a_batch_go_to_the_new_item(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"x", idempotency_key="k")
        direct.do(Complete(direct.take().token))
        failed = _failed(Dead(), direct.version())
        call = put(b"x", b"x", idempotency_key="k", **failed)
        (one, two), (three, four) = direct.commit(call, call).results
        assert [each.duplicate for each in (one, two, three, four)] == [False, True, True, True]
        assert len({each.id for each in (one, two, three, four)}) == 1
        assert len(direct.get(one.id).history) == 4

    def test_later_failure_of_a_call_whose_item_is_dropped_is_one_more_item(self, direct: StoreDriver) -> None:
        direct.queue()
        failed = _failed(Dead(drop=True), direct.version())
        kept = NewItem(b"x", "text/plain", idempotency_key="k", **_failed(RetryVerdict(), direct.version(), "kept"))
        dropped = NewItem(b"x", "text/plain", idempotency_key="k", **failed)
        for calls in ([Put("jobs", (dropped, kept))], [Put("jobs", (dropped,)), Put("jobs", (kept,))]):
            results = direct.commit(*calls).results
            one, two = [receipt for receipts in results for receipt in receipts]
            assert (one.duplicate, two.duplicate, one.id == two.id) == (False, False, False)
            assert [entry.failure and entry.failure.text for entry in direct.get(two.id).history] == ["kept"]
            direct.do(Complete(direct.take().token))

    def test_dropped_and_kept_of_one_call_need_room(self, direct: StoreDriver) -> None:
        direct.queue(max_size=1)
        direct.put(b"other")
        dropped = NewItem(b"x", "text/plain", idempotency_key="k", **_failed(Dead(drop=True), direct.version()))
        kept = NewItem(b"x", "text/plain", idempotency_key="k", **_failed(RetryVerdict(), direct.version()))
        assert isinstance(direct.do(Put("jobs", (dropped, kept))), QueueFull)
        assert places(direct.stats()) == {"pending": 1}

    def test_failure_before_the_end_of_a_delivery_in_one_batch_is_recorded(self, direct: StoreDriver) -> None:
        direct.queue(keep_completed=10_000_000)
        (id,) = direct.put(b"x", idempotency_key="k")
        failed = put(b"x", idempotency_key="k", **_failed(Dead(), direct.version()))
        receipts, settled = direct.commit(failed, Complete(direct.take().token)).results
        assert (receipts[0].id, receipts[0].duplicate, settled.status) == (id, True, "completed")
        assert len(direct.get(id).history) == 1
        assert direct.do(failed)[0].duplicate is False

    def test_failure_under_a_known_key_is_added_whatever_its_source(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"x", idempotency_key="k")
        failed = _failed(Dead(), direct.version())
        (receipt,) = direct.do(put(b"x", idempotency_key="k", source_id=ItemId("0" * 31 + "1"), **failed))
        assert (receipt.id, receipt.duplicate) == (id, True)
        assert len(direct.get(id).history) == 1

    def test_second_item_of_a_source_is_put_where_the_first_is_known_by_its_key(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"x", idempotency_key="k")
        source_id = ItemId("0" * 31 + "1")
        items = (
            NewItem(b"x", "application/octet-stream", idempotency_key="k", source_id=source_id),
            NewItem(b"x", "application/octet-stream", source_id=source_id),
        )
        known, new = direct.do(Put("jobs", items))
        assert (known.id, known.duplicate, new.duplicate) == (id, True, False)
        assert direct.get(new.id).source_id == source_id
        assert places(direct.stats()) == {"pending": 2}

    @pytest.mark.parametrize("part", ["failure", "verdict"])
    def test_failure_without_its_verdict_is_refused(self, direct: StoreDriver, part: str) -> None:
        direct.queue()
        failed = {name: value for name, value in _failed(Dead(), direct.version()).items() if name != part}
        refusal = direct.do(put(b"x", **failed))
        assert isinstance(refusal, InvalidInput), refusal
        assert places(direct.stats()) == {}

    def test_puts_of_a_completion_bring_no_failure(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"x", idempotency_key="k")
        failed = put(b"x", idempotency_key="k", **_failed(Dead(), direct.version()))
        refusal = direct.do(Complete(direct.take().token, puts=(failed,)))
        assert isinstance(refusal, InvalidInput), refusal
        assert direct.get(id).status == "active"

    def test_note_of_the_verdict_is_in_the_history(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        id = broker.put_failed("jobs", 1, "one", verdict=Dead(note="gave up"), idempotency_key="k").id
        broker.put_failed("jobs", 1, "two", verdict=Dead(note="once more"), idempotency_key="k")
        assert [entry.note for entry in broker.get(id).history] == ["gave up", "once more"]

    def test_note_without_a_failure_is_refused(self, direct: StoreDriver) -> None:
        direct.queue()
        assert isinstance(direct.do(put(b"x", note="n")), InvalidInput)

    def test_worker_of_the_failure_is_in_the_history(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        failure = failure_from_fields("Error", "boom", worker="w1")
        id = broker.put_failed("jobs", 1, failure, idempotency_key="k").id
        broker.put_failed("jobs", 1, failure, idempotency_key="k")
        assert [entry.worker for entry in broker.get(id).history] == ["w1", "w1"]
