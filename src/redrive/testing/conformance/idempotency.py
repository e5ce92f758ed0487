"""Idempotency keys: the same work is put once, for as long as the key is remembered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from redrive import Broker, new_item
from redrive.errors import IdempotencyConflict
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import places, take
from redrive.testing.conformance.suite import OpenBroker, Suite


def completed(broker: Broker) -> None:
    """The item was done."""
    broker.complete(take(broker))


def dead(broker: Broker) -> None:
    """The item died in place."""
    broker.fail(take(broker), "boom", final=True)


def redriven(broker: Broker) -> None:
    """The item died and a person brought it back."""
    broker.redrive(broker.fail(take(broker), "boom", final=True).id)


def archived(broker: Broker) -> None:
    """The item died and was put aside."""
    broker.archive(broker.fail(take(broker), "boom", final=True).id)


def moved(broker: Broker) -> None:
    """The item died into a dead queue."""
    broker.create_queue("morgue")
    broker.update_queue("jobs", dead_queue="morgue")
    broker.fail(take(broker), "boom", final=True)


def moved_and_done(broker: Broker) -> None:
    """The item died into a dead queue, and what was there was consumed."""
    moved(broker)
    broker.complete(take(broker, "morgue"))


def dropped(broker: Broker) -> None:
    """The item was removed by hand."""
    lease = take(broker)
    broker.drop(lease.id, force=True)


class IdempotencyConformance(Suite):
    """A key is unique for each queue, from the first put until its time is over."""

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

    @pytest.mark.parametrize("end", [completed, dead, redriven, archived, moved, moved_and_done, dropped])
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
        broker.step()
        assert not broker.put("jobs", 1, idempotency_key="k").duplicate
        assert broker.put("jobs", 1, idempotency_key="k").duplicate

    def test_upkeep_keeps_keys_whose_time_is_not_over(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, idempotency_key="k")
        broker.complete(take(broker))
        clock.advance("23h")
        broker.step()
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
