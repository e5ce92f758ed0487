"""Idempotency keys of puts, and `put_failed`: work that failed outside a queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from redrive import Broker, Dead, DeadReason, new_item
from redrive.errors import IdempotencyConflict, InvalidPayload
from redrive.model.duration import SECOND
from redrive.model.item import Counters
from redrive.testing.conformance.actions import Boom, places, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock


def completed(broker: Broker) -> None:
    """Complete the item."""
    broker.complete(take(broker))


def dead(broker: Broker) -> None:
    """Let the item die in place."""
    broker.fail(take(broker), "boom", final=True)


def redriven(broker: Broker) -> None:
    """Let the item die, and redrive it."""
    broker.redrive(broker.fail(take(broker), "boom", final=True).id)


def archived(broker: Broker) -> None:
    """Let the item die, and archive it."""
    broker.archive(broker.fail(take(broker), "boom", final=True).id)


def moved(broker: Broker) -> None:
    """Let the item die and move to a dead queue."""
    broker.create_queue("morgue")
    broker.update_queue("jobs", dead_queue="morgue")
    broker.fail(take(broker), "boom", final=True)


def moved_and_done(broker: Broker) -> None:
    """Let the item die and move to a dead queue, and complete it there."""
    moved(broker)
    broker.complete(take(broker, "morgue"))


class IdempotencyConformance(Suite):
    """A key is unique within a queue, from the first put until its timeout."""

    def test_known_key_gives_the_first_item_and_puts_nothing(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        first = broker.put("jobs", {"n": 1}, idempotency_key="order-1")
        again = broker.put("jobs", {"n": 1}, idempotency_key="order-1")
        assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)
        assert places(broker.stats("jobs")) == {"pending": 1}
        assert broker.get(first.id).idempotency_key == "order-1"

    def test_other_keys_and_no_key_are_other_items(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, idempotency_key="a")
        broker.put("jobs", 1, idempotency_key="A")
        broker.put("jobs", 1)
        broker.put("jobs", 1)
        assert places(broker.stats("jobs")) == {"pending": 4}

    @pytest.mark.parametrize("value", [2, "1", 1.0, b"1", None, [1]], ids=repr)
    def test_same_key_with_another_payload_is_refused(self, broker: Broker, value: object) -> None:
        broker.create_queue("jobs")
        first = broker.put("jobs", 1, idempotency_key="k")
        with pytest.raises(IdempotencyConflict, match="use a key that changes with the payload") as refusal:
            broker.put("jobs", value, idempotency_key="k")
        assert refusal.value.id == first.id
        assert places(broker.stats("jobs")) == {"pending": 1}

    def test_same_bytes_of_another_content_type_are_another_payload(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", b"1", idempotency_key="k", content_type="a/b")
        with pytest.raises(IdempotencyConflict):
            broker.put("jobs", b"1", idempotency_key="k", content_type="a/c")

    @pytest.mark.parametrize("end", [completed, dead, redriven, archived, moved, moved_and_done])
    def test_key_is_remembered_after_its_item_ended(self, broker: Broker, end: Callable[[Broker], None]) -> None:
        broker.create_queue("jobs")
        first = broker.put("jobs", 1, idempotency_key="k")
        end(broker)
        before = places(broker.stats("jobs"))
        again = broker.put("jobs", 1, idempotency_key="k")
        assert (again.id, again.duplicate) == (first.id, True)
        with pytest.raises(IdempotencyConflict):
            broker.put("jobs", 2, idempotency_key="k")
        assert places(broker.stats("jobs")) == before

    def test_key_is_forgotten_when_its_time_from_the_first_put_is_over(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        first = broker.put("jobs", 1, idempotency_key="k")
        clock.advance("23h59m")
        assert broker.put("jobs", 1, idempotency_key="k").duplicate
        clock.advance("2m")
        second = broker.put("jobs", 2, idempotency_key="k")
        assert not second.duplicate
        assert second.id != first.id
        assert places(broker.stats("jobs")) == {"pending": 2}

    def test_queue_says_how_long_keys_are_remembered(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", idempotency_timeout="10s")
        broker.put("jobs", 1, idempotency_key="k")
        clock.advance("11s")
        broker.run_maintenance()
        assert not broker.put("jobs", 1, idempotency_key="k").duplicate
        assert broker.put("jobs", 1, idempotency_key="k").duplicate

    def test_upkeep_keeps_keys_whose_time_is_not_over(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, idempotency_key="k")
        broker.complete(take(broker))
        clock.advance("23h")
        broker.run_maintenance()
        assert broker.put("jobs", 1, idempotency_key="k").duplicate

    def test_queues_do_not_share_keys(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("mails")
        broker.put("jobs", 1, idempotency_key="k")
        assert not broker.put("mails", 2, idempotency_key="k").duplicate

    def test_namespaces_do_not_share_keys(self, open_broker: OpenBroker) -> None:
        for namespace in ("one", "two"):
            broker = open_broker(namespace)
            broker.create_queue("jobs")
            assert not broker.put("jobs", namespace, idempotency_key="k").duplicate

    def test_key_twice_in_one_put_puts_one_item(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        one, two, three = broker.put_many(
            "jobs", [new_item(1, idempotency_key="k"), 2, new_item(1, idempotency_key="k")]
        )
        assert (one.duplicate, two.duplicate, three.duplicate) == (False, False, True)
        assert three.id == one.id
        assert places(broker.stats("jobs")) == {"pending": 2}

    def test_conflict_in_one_put_puts_nothing(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        with pytest.raises(IdempotencyConflict):
            broker.put_many("jobs", [new_item(1, idempotency_key="k"), new_item(2, idempotency_key="k")])
        assert places(broker.stats("jobs")) == {}
        assert not broker.put("jobs", 3, idempotency_key="k").duplicate

    def test_refused_put_does_not_remember_its_keys(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1)
        broker.put("jobs", 0)
        with pytest.raises(Exception, match="is full"):
            broker.put("jobs", 1, idempotency_key="k")
        broker.complete(take(broker))
        assert not broker.put("jobs", 2, idempotency_key="k").duplicate

    @pytest.mark.parametrize("key", ["🦆", "a b", "x" * 256, "'; DROP TABLE items; --", "%", "\n"], ids=ascii)
    def test_key_may_be_any_text(self, broker: Broker, key: str) -> None:
        broker.create_queue("jobs")
        first = broker.put("jobs", 1, idempotency_key=key)
        assert broker.put("jobs", 1, idempotency_key=key).id == first.id


class CaptureConformance(Suite):
    """A put with a failure is failed or dead by the settings of the queue."""

    def test_born_dead_without_retry(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put_failed("jobs", {"n": 1}, Boom("why"), headers={"h": "x"})
        item = broker.get(receipt.id)
        assert (item.status, item.dead_reason, item.ended_at) == ("dead", "retries_exhausted", clock.now())
        assert (item.value, dict(item.headers), item.counters) == ({"n": 1}, {"h": "x"}, Counters(failures=1))
        assert [entry.event for entry in item.history] == ["failed"]
        assert item.last_failure is not None
        assert item.last_failure.text == "why"
        assert len(item.deaths) == 1
        assert (item.deaths[0].counters, item.deaths[0].first_leased_at) == (Counters(failures=1), None)
        assert places(broker.stats("jobs")) == {"dead": 1}

    def test_born_failed_with_retry(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"})
        receipt = broker.put_failed("jobs", 1, "why")
        item = broker.get(receipt.id)
        assert (item.status, item.ready_at, item.counters.failures) == ("failed", clock.now() + 30 * SECOND, 1)
        assert take_all(broker) == []
        clock.advance("30s")
        assert [broker.fail(take(broker), "boom").status for _ in range(1)] == ["failed"]
        clock.advance("30s")
        assert broker.fail(take(broker), "boom").status == "dead"

    def test_born_in_the_dead_queue(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        receipt = broker.put_failed("jobs", "x", "why")
        item = broker.get(receipt.id)
        assert (item.queue, item.status) == ("morgue", "pending")
        assert [death.queue for death in item.deaths] == ["jobs"]
        assert values(take_all(broker, "morgue")) == ["x"]
        assert places(broker.stats("jobs")) == {}

    def test_known_key_adds_a_failure_to_the_item_that_is_there(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"})
        first = broker.put_failed("jobs", 1, "one", idempotency_key="k")
        second = broker.put_failed("jobs", 1, "two", idempotency_key="k")
        assert (second.id, second.duplicate) == (first.id, True)
        item = broker.get(first.id)
        assert (item.status, item.counters.failures) == ("failed", 2)
        assert [entry.failure and entry.failure.text for entry in item.history] == ["one", "two"]
        assert places(broker.stats("jobs")) == {"failed": 1}

    def test_failures_under_one_key_count_when_the_next_delivery_is_judged(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"})
        for text in ("one", "two"):
            broker.put_failed("jobs", 1, text, idempotency_key="k")
        clock.advance("30s")
        settled = broker.fail(take(broker), "three")
        assert (settled.status, settled.counters.failures) == ("dead", 3)

    def test_failure_under_the_key_of_a_dead_item_leaves_it_dead(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_failed("jobs", 1, "one", idempotency_key="k")
        receipt = broker.put_failed("jobs", 1, "two", idempotency_key="k")
        item = broker.get(receipt.id)
        assert (item.status, len(item.deaths), len(item.history)) == ("dead", 1, 2)
        assert places(broker.stats("jobs")) == {"dead": 1}

    def test_failure_under_the_key_of_an_active_item_leaves_its_lease(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        broker.put("jobs", 1, idempotency_key="k")
        lease = take(broker)
        broker.put_failed("jobs", 1, "elsewhere", idempotency_key="k")
        assert broker.get(lease.id).status == "active"
        assert broker.complete(lease).status is None

    def test_known_key_with_another_payload_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put_failed("jobs", 1, "one", idempotency_key="k")
        before = broker.get(receipt.id)
        with pytest.raises(IdempotencyConflict):
            broker.put_failed("jobs", 2, "two", idempotency_key="k")
        assert broker.get(receipt.id) == before

    def test_program_may_bring_its_own_verdict(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        receipt = broker.put_failed("jobs", 1, "why", verdict=Dead(DeadReason.POLICY))
        assert broker.get(receipt.id).dead_reason == "policy"

    def test_bad_payload_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidPayload):
            broker.put_failed("jobs", float("nan"), "why")
        assert places(broker.stats("jobs")) == {}

    def test_redriven_capture_is_ordinary_work(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put_failed("jobs", "x", "why")
        broker.redrive(receipt.id)
        lease = take(broker)
        assert (lease.value, lease.failures, lease.redrives) == ("x", 0, 1)
        assert broker.complete(lease).status is None
