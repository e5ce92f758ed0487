"""Idempotency keys that end with their items (`idempotency_timeout="item"`), and the items of keys."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker, new_item
from redrive.contract.base import ENDED_KEY_RETENTION
from redrive.contract.item_calls import Complete, NewItem, Put
from redrive.contract.maintenance_calls import FinishMove
from redrive.errors import IdempotencyConflict, InvalidInput, InvalidSetting, ItemMoving, QueueNotFound
from redrive.model.duration import SECOND
from redrive.model.failure import failure_from_fields
from redrive.model.ids import ItemId
from redrive.model.judge import Dead, RetryVerdict
from redrive.model.queue import WITH_ITEM
from redrive.testing.conformance.actions import dead_queue, kill, take, take_all
from redrive.testing.conformance.item_states import DROPPED, GONE, THERE, Journey, create_queues, dead
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StorePair, StorePairSuite, StoreSuite, Suite, put
from redrive.testing.fake_clock import FakeClock

MANY = 60


def first_put(broker: Broker) -> ItemId:
    """Put an item under a key that ends with it, in the queue of all journeys, and return its id."""
    create_queues(broker)
    broker.update_queue("jobs", idempotency_timeout="item")
    return broker.put("jobs", 1, idempotency_key="k").id


class ItemKeyConformance(Suite):
    """A key is known while its item exists and is not completed."""

    @pytest.mark.parametrize("journey", THERE)
    def test_key_of_an_item_that_is_there_is_known(self, broker: Broker, clock: FakeClock, journey: Journey) -> None:
        first = first_put(broker)
        journey(broker, clock, first)
        total = broker.count(status="any")
        again = broker.put("jobs", 1, idempotency_key="k")
        assert (again.id, again.duplicate) == (first, True)
        with pytest.raises(IdempotencyConflict):
            broker.put("jobs", 2, idempotency_key="k")
        assert broker.put_failed("jobs", 1, "again", idempotency_key="k").id == first
        assert broker.count(status="any") == total

    @pytest.mark.parametrize("value", [1, 2], ids=["same payload", "another payload"])
    @pytest.mark.parametrize("journey", GONE)
    def test_key_of_an_item_that_ended_is_free(
        self, broker: Broker, clock: FakeClock, journey: Journey, value: int
    ) -> None:
        first = first_put(broker)
        journey(broker, clock, first)
        second = broker.put("jobs", value, idempotency_key="k")
        assert (second.duplicate, second.id == first) == (False, False)
        assert broker.put("jobs", value, idempotency_key="k").id == second.id
        assert broker.get(second.id).status == "pending"

    @pytest.mark.parametrize("journey", GONE)
    def test_failure_under_the_key_of_an_item_that_ended_is_a_new_item(
        self, broker: Broker, clock: FakeClock, journey: Journey
    ) -> None:
        first = first_put(broker)
        journey(broker, clock, first)
        second = broker.put_failed("jobs", 2, "again", idempotency_key="k")
        assert (second.duplicate, second.id == first) == (False, False)
        assert [entry.failure and entry.failure.text for entry in broker.get(second.id).history] == ["again"]
        assert broker.put_failed("jobs", 2, "once more", idempotency_key="k").id == second.id
        assert len(broker.get(second.id).history) == 2

    @pytest.mark.parametrize("journey", GONE)
    def test_key_can_be_used_again_and_again(self, broker: Broker, clock: FakeClock, journey: Journey) -> None:
        first = first_put(broker)
        journey(broker, clock, first)
        ids = {first}
        for value in range(3):
            receipt = broker.put("jobs", value, idempotency_key="k", priority=9)
            assert receipt.id not in ids
            ids.add(receipt.id)
            broker.complete_items(receipt.id)

    def test_no_time_ends_a_key(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", idempotency_timeout="item")
        waiting = broker.put("jobs", 1, idempotency_key="waits", delay="3650d").id
        dead = broker.put_failed("jobs", 2, "why", idempotency_key="dead").id
        for _ in range(5):
            clock.advance("400d")
            broker.run_maintenance()
            assert broker.put("jobs", 1, idempotency_key="waits").id == waiting
            assert broker.put("jobs", 2, idempotency_key="dead").id == dead

    def test_upkeep_of_many_keys_forgets_none_that_is_known(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", idempotency_timeout="item")
        items = [new_item(n, idempotency_key=str(n)) for n in range(MANY)]
        receipts = broker.put_many("jobs", items)
        broker.complete_items([receipt.id for receipt in receipts[::2]])
        for _ in range(3):
            clock.advance(ENDED_KEY_RETENTION // SECOND + 1)
            broker.run_maintenance()
        again = broker.put_many("jobs", items)
        assert [receipt.duplicate for receipt in again] == [n % 2 == 1 for n in range(MANY)]
        assert [receipt.id for receipt in again[1::2]] == [receipt.id for receipt in receipts[1::2]]

    def test_kind_of_a_key_is_decided_when_it_is_put(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", idempotency_timeout="item", keep_completed="1h")
        broker.put("jobs", 1, idempotency_key="of the item")
        broker.update_queue("jobs", idempotency_timeout="1h")
        timed = broker.put("jobs", 2, idempotency_key="for a time").id
        broker.update_queue("jobs", idempotency_timeout="item")
        for lease in take_all(broker):
            broker.complete(lease)
        assert not broker.put("jobs", 1, idempotency_key="of the item").duplicate
        assert broker.put("jobs", 2, idempotency_key="for a time").id == timed
        clock.advance("2h")
        assert broker.put("jobs", 1, idempotency_key="of the item").duplicate
        assert not broker.put("jobs", 2, idempotency_key="for a time").duplicate

    def test_completion_can_put_the_next_item_under_its_own_key(self, broker: Broker) -> None:
        broker.create_queue("jobs", idempotency_timeout="item")
        first = broker.put("jobs", 1, idempotency_key="k").id
        other = broker.put("jobs", 1, idempotency_key="other").id
        next_one = new_item(2, idempotency_key="k")
        again = new_item(1, idempotency_key="other")
        broker.complete(take(broker), puts=[("jobs", next_one), ("jobs", again), ("jobs", next_one)])
        items = broker.find(status="any", order="oldest").items
        assert [(item.value, item.idempotency_key) for item in items] == [(1, "other"), (2, "k")]
        assert (items[0].id, items[1].id == first) == (other, False)
        assert broker.put("jobs", 2, idempotency_key="k").id == items[1].id

    def test_completion_in_a_dead_queue_can_put_under_the_key_that_it_ends(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", idempotency_timeout="item", dead_queue="morgue")
        broker.put_failed("jobs", 1, "why", idempotency_key="k")
        broker.complete(take(broker, "morgue"), puts=[("jobs", new_item(2, idempotency_key="k"))])
        (item,) = broker.find(status="any").items
        assert (item.queue, item.value) == ("jobs", 2)

    def test_redrive_of_an_item_whose_key_another_one_has_is_refused(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", idempotency_timeout="10s")
        old = broker.put_failed("jobs", 1, "why", idempotency_key="k").id
        clock.advance("11s")
        broker.update_queue("jobs", idempotency_timeout="item")
        new = broker.put("jobs", 2, idempotency_key="k").id
        clock.advance("10d")
        with pytest.raises(IdempotencyConflict) as refusal:
            broker.redrive(old)
        assert refusal.value.id == new
        broker.complete(take(broker))
        assert broker.redrive(old).status == "pending"

    def test_key_of_an_edited_item_stands_for_the_one_aside(self, broker: Broker, clock: FakeClock) -> None:
        first = first_put(broker)
        dead(broker, clock, first)
        broker.redrive(first, payload=2)
        broker.complete(take(broker))
        assert broker.put("jobs", 1, idempotency_key="k").id == first
        broker.purge(first)
        assert not broker.put("jobs", 1, idempotency_key="k").duplicate

    def test_queues_without_it_are_as_they_were(self, broker: Broker) -> None:
        broker.create_queue("jobs", idempotency_timeout="item")
        broker.create_queue("mails")
        for queue in ("jobs", "mails"):
            broker.put(queue, 1, idempotency_key="k")
            broker.complete(take(broker, queue))
        assert not broker.put("jobs", 1, idempotency_key="k").duplicate
        assert broker.put("mails", 1, idempotency_key="k").duplicate

    def test_put_in_a_transaction_of_the_caller_finds_the_key_free_or_not(
        self, broker: Broker, request: pytest.FixtureRequest
    ) -> None:
        self.require("supports_transactions")
        connection: Any = request.getfixturevalue("own_connection")
        broker.create_queue("jobs", idempotency_timeout="item")
        first = broker.put("jobs", 1, idempotency_key="k").id
        for is_duplicate in (True, False):
            connection.execute("BEGIN")
            receipt = broker.put("jobs", 1, idempotency_key="k", transaction=connection)
            connection.execute("COMMIT")
            assert receipt.duplicate is is_duplicate
            assert (receipt.id == first) is is_duplicate
            broker.complete_items(receipt.id)

    @pytest.mark.parametrize("value", ["items", "ITEM", "", 0, None, "unset"], ids=repr)
    def test_only_that_word_is_a_setting(self, broker: Broker, value: Any) -> None:
        with pytest.raises(InvalidInput, match="idempotency_timeout"):
            broker.create_queue("jobs", idempotency_timeout=value)

    def test_setting_is_read_as_it_was_written(self, broker: Broker) -> None:
        broker.create_queue("jobs", idempotency_timeout="item")
        assert broker.create_queue("jobs", idempotency_timeout="item").settings.idempotency_timeout == WITH_ITEM
        assert broker.get_queue("jobs").settings.idempotency_timeout == "item"
        assert issubclass(InvalidSetting, InvalidInput)


class ItemKeyBatchConformance(StoreSuite):
    """Several puts under one key in one batch or one call."""

    def test_calls_of_one_batch_find_what_those_before_them_did(self, direct: StoreDriver) -> None:
        direct.queue(idempotency_timeout=WITH_ITEM)
        keyed = put(b"x", idempotency_key="k")
        (one,), (two,) = direct.commit(keyed, keyed).results
        assert (one.duplicate, two.duplicate, two.id) == (False, True, one.id)
        lease = direct.take()
        (three,), done = direct.commit(keyed, Complete(lease.token)).results  # puts come first
        assert (three.id, done.status) == (one.id, None)
        ((four,), (five,)) = direct.commit(keyed, keyed).results
        assert (four.duplicate, five.duplicate, five.id, four.id == one.id) == (False, True, four.id, False)

    def test_puts_of_a_completion_find_what_was_completed_before_in_the_batch(self, direct: StoreDriver) -> None:
        direct.queue(idempotency_timeout=WITH_ITEM)
        direct.put(b"x", idempotency_key="k")
        direct.put(b"other")
        keyed, other = direct.lease(limit=2)
        again = put(b"y", idempotency_key="k")
        same = put(b"x", idempotency_key="k")
        calls = (same, same, Complete(keyed.token), Complete(other.token, puts=(again,)))
        (known,), _, _, settled = direct.commit(*calls).results
        assert (known.id, settled.status) == (keyed.id, None)
        (lease,) = direct.lease(limit=9)
        assert lease.payload == b"y"

    def test_item_that_is_dropped_as_it_is_put_leaves_its_key_free(self, direct: StoreDriver) -> None:
        direct.queue(idempotency_timeout=WITH_ITEM)
        failure = failure_from_fields("Error", "boom")
        failed: dict[str, Any] = {"failure": failure, "verdict": Dead(drop=True), "version": direct.version()}
        dropped = NewItem(b"x", "text/plain", idempotency_key="k", **failed)
        plain = NewItem(b"x", "text/plain", idempotency_key="k")
        for calls in (
            [Put("jobs", (dropped, plain, plain))],
            [Put("jobs", (each,)) for each in (dropped, plain, plain)],
        ):
            results = direct.commit(*calls).results
            one, two, three = [receipt for receipts in results for receipt in receipts]
            assert [each.duplicate for each in (one, two, three)] == [False, False, True]
            assert (one.id == two.id, two.id == three.id) == (False, True)
            direct.do(Complete(direct.take().token))

    def test_many_keys_in_one_call_and_in_one_batch(self, direct: StoreDriver) -> None:
        direct.queue(idempotency_timeout=WITH_ITEM)
        items = tuple(NewItem(b"x", "a", idempotency_key=str(n)) for n in range(MANY))
        first = direct.do(Put("jobs", items))
        assert direct.do(Put("jobs", items)) == tuple(type(each)(each.id, duplicate=True) for each in first)
        direct.commit(*(Complete(lease.token) for lease in direct.lease(limit=MANY // 2)))
        again = direct.commit(*(Put("jobs", (item,)) for item in items)).results
        assert [receipt.duplicate for (receipt,) in again] == [n >= MANY // 2 for n in range(MANY)]


class MovingItemKeyConformance(StorePairSuite):
    """The key of an item that moves to another store."""

    def test_key_of_a_moving_item_is_known_and_then_free(self, pair: StorePair) -> None:
        pair.create_queues(idempotency_timeout="item")
        first = pair.source.put("jobs", 1, idempotency_key="k").id
        pair.source.fail(take(pair.source), "boom", final=True)
        pair.receive()
        assert pair.source.put("jobs", 1, idempotency_key="k").id == first
        with pytest.raises(ItemMoving):
            pair.source.put_failed("jobs", 1, "again", idempotency_key="k")
        (found,) = pair.source.find_by_key("jobs", "k")
        assert found is not None
        assert found.status == "moving"
        pair.source.core.store.commit([FinishMove((first,))])
        assert pair.source.find_by_key("jobs", "k") == [None]
        assert not pair.source.put_failed("jobs", 2, "again", idempotency_key="k", verdict=RetryVerdict()).duplicate


class FindByKeyConformance(Suite):
    """The items of keys, as a put would find them."""

    @pytest.mark.parametrize("timeout", ["1d", "item"])
    @pytest.mark.parametrize("journey", THERE)
    def test_item_that_is_there_is_found_wherever_it_is(
        self, broker: Broker, clock: FakeClock, journey: Journey, timeout: str
    ) -> None:
        create_queues(broker)
        broker.update_queue("jobs", idempotency_timeout=timeout)
        first = broker.put("jobs", {"password": "hidden"}, idempotency_key="k").id
        journey(broker, clock, first)
        assert broker.find_by_key("jobs", ["k"]) == [broker.get(first)]
        assert broker.find_by_key("jobs", ["k"], redacted=False) == [broker.get(first, redacted=False)]

    @pytest.mark.parametrize("journey", [journey for journey in GONE if journey not in DROPPED])
    def test_item_that_ended_is_not_found_unless_it_and_its_key_are_known(
        self, broker: Broker, clock: FakeClock, journey: Journey
    ) -> None:
        create_queues(broker)
        timed = broker.put("jobs", 1, idempotency_key="k").id
        journey(broker, clock, timed)
        (found,) = broker.find_by_key("jobs", ["k"])
        assert found == broker.get_many([timed])[0]

    @pytest.mark.parametrize("journey", GONE)
    def test_item_that_ended_has_no_key_that_ends_with_it(
        self, broker: Broker, clock: FakeClock, journey: Journey
    ) -> None:
        journey(broker, clock, first_put(broker))
        assert broker.find_by_key("jobs", ["k"]) == [None]

    def test_answers_are_in_the_order_of_the_keys(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = [broker.put("jobs", n, idempotency_key=str(n)).id for n in range(MANY)]
        asked = [str(n) for n in reversed(range(MANY))]
        found = broker.find_by_key("jobs", ["unknown", *asked, "0"])
        assert [item and item.id for item in found] == [None, *reversed(ids), ids[0]]
        assert broker.find_by_key("jobs", []) == []
        assert broker.queue("jobs").find_by_key("7") == [broker.get(ids[7])]

    def test_keys_are_those_of_the_queue_of_the_put(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        broker.put("jobs", 1, idempotency_key="k")
        kill(broker)
        broker.bury(take(broker))
        (found,) = broker.find_by_key("jobs", ["k"])
        assert found is not None
        assert found.queue == "morgue"
        assert broker.find_by_key("morgue", ["k"]) == [None]

    def test_expired_keys_and_those_of_other_namespaces_are_unknown(
        self, broker: Broker, clock: FakeClock, open_broker: OpenBroker
    ) -> None:
        elsewhere = open_broker("elsewhere")
        for each in (broker, elsewhere):
            each.create_queue("jobs", idempotency_timeout="10s")
        broker.put("jobs", 1, idempotency_key="k")
        assert elsewhere.find_by_key("jobs", ["k"]) == [None]
        clock.advance("10s")
        assert broker.find_by_key("jobs", ["k"]) == [None]

    def test_what_cannot_be_asked_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        with pytest.raises(QueueNotFound):
            broker.find_by_key("nowhere", ["k"])
        with pytest.raises(InvalidInput, match="1,000"):
            broker.find_by_key("jobs", map(str, range(1001)))
        for keys in ([""], [1], 1, b"k", ["x" * 257]):
            with pytest.raises(InvalidInput):
                broker.find_by_key("jobs", keys)  # type: ignore[arg-type]
