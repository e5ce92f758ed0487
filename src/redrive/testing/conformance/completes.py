"""Complete: with a result, with follow-up items, in one transaction."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker, new_item
from redrive.errors import IdempotencyConflict, InvalidInput, ItemNotFound, QueueFull, QueueNotFound, RedriveError
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import places, take, take_all, values
from redrive.testing.conformance.suite import Suite

REFUSED_PUTS: list[tuple[type[RedriveError], list[tuple[str, Any]]]] = [
    (QueueNotFound, [("nowhere", 1)]),
    (QueueNotFound, [("mails", 1), ("nowhere", 2)]),
    (QueueFull, [("mails", "ok"), ("full", 2)]),
    (QueueFull, [("mails", "ok"), ("narrow", 1), ("narrow", 2)]),
    (IdempotencyConflict, [("mails", new_item("other", idempotency_key="known"))]),
    (IdempotencyConflict, [("mails", new_item(n, idempotency_key="same")) for n in (1, 2)]),
    (InvalidInput, [("mails", 1), ("mails", float("nan"))]),
    (InvalidInput, [("no good", 1)]),
    (InvalidInput, [("tiny", b"too large")]),
]


class CompleteConformance(Suite):
    """The work is done."""

    def test_completed_item_is_removed(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        settled = broker.complete(lease)
        assert (settled.id, settled.queue, settled.status) == (lease.id, "jobs", None)
        assert settled.counters == lease.counters
        with pytest.raises(ItemNotFound):
            broker.get(lease.id)
        assert places(broker.stats("jobs")) == {}

    def test_completed_item_is_kept_where_asked_for(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_completed="1h")
        broker.put("jobs", {"n": 1})
        lease = take(broker)
        clock.advance("1s")
        settled = broker.complete(lease, result={"total": 42})
        item = broker.get(lease.id)
        assert (settled.status, settled.ready_at, settled.dead_reason) == ("completed", None, None)
        assert (item.status, item.value, item.ended_at) == ("completed", {"n": 1}, clock.now())
        assert item.result is not None
        assert item.result.value == {"total": 42}
        assert (item.worker, item.lease_deadline, item.counters) == (None, None, lease.counters)
        assert item.history == ()

    def test_result_may_be_bytes(self, broker: Broker) -> None:
        broker.create_queue("jobs", keep_completed="1h")
        broker.put("jobs", 1)
        lease = take(broker)
        broker.complete(lease, result=b"\x00\xff")
        result = broker.get(lease.id).result
        assert result is not None
        assert result.value == b"\x00\xff"

    def test_follow_up_items_are_put_with_the_completion(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("mails")
        broker.put("jobs", 1)
        broker.complete(take(broker), puts=[("mails", "a"), ("jobs", 2), ("mails", new_item("b", priority=9))])
        assert values(take_all(broker, "mails")) == ["b", "a"]
        assert values(take_all(broker)) == [2]

    def test_follow_up_item_takes_the_place_of_the_completed_one_in_a_full_queue(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=1)
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(QueueFull):
            broker.complete(lease, puts=[("jobs", 2), ("jobs", 3)])
        broker.complete(lease, puts=[("jobs", 2)])
        assert values(take_all(broker)) == [2]

    def test_follow_up_item_under_a_known_key_is_put_once(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("mails")
        for n in (1, 2):
            broker.put("jobs", n)
            broker.complete(take(broker), puts=[("mails", new_item("m", idempotency_key="k"))])
        assert values(take_all(broker, "mails")) == ["m"]

    @pytest.mark.parametrize(("error", "puts"), REFUSED_PUTS, ids=lambda value: repr(value)[:50])
    def test_refused_put_refuses_the_completion(
        self, broker: Broker, error: type[RedriveError], puts: list[tuple[str, Any]]
    ) -> None:
        broker.create_queue("jobs", keep_completed="1h")
        broker.create_queue("mails")
        broker.create_queue("full", max_size=1)
        broker.create_queue("narrow", max_size=1)
        broker.create_queue("tiny", max_payload_size=3)
        broker.put("full", 0)
        broker.put("mails", "first", idempotency_key="known")
        broker.put("jobs", 1)
        lease = take(broker)
        before = broker.get(lease.id)
        with pytest.raises(error):
            broker.complete(lease, result=1, puts=puts)
        assert broker.get(lease.id) == before
        assert values(take_all(broker, "mails")) == ["first"]
        assert values(take_all(broker, "narrow")) == []
        assert broker.complete(lease).status == "completed"

    def test_completing_is_counted(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(3))
        for lease in take_all(broker):
            broker.complete(lease)
        stats = broker.stats("jobs")
        assert (stats.put_total, stats.completed_total, stats.dead_total) == (3, 3, 0)
