"""Dead queues: a dead item moves there as a fresh pending item, and is redriven from there."""

from __future__ import annotations

import pytest

from redrive import Broker, Dead, DeadReason, Item
from redrive.errors import ItemNotFound
from redrive.model.item import Counters
from redrive.testing.conformance.actions import Boom, dead_queue, kill, lose, places, take, take_all, values
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


def only(broker: Broker, queue: str) -> Item:
    """Return the only item that can be leased from a queue; its lease is released uncounted."""
    lease = take(broker, queue)
    broker.release(lease, counted=False)
    return broker.get(lease.id)


class MoveConformance(Suite):
    """The state of a dead item in its dead queue."""

    def test_dead_item_moves_as_a_fresh_pending_item(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        receipt = broker.put("jobs", {"n": 1}, headers={"h": "x"}, expire_timeout="1h")
        put_at = clock.now()
        clock.advance("1m")
        settled = broker.fail(take(broker), Boom("why"))
        item = broker.get(settled.id)
        assert (settled.queue, settled.status, settled.source_id) == ("morgue", "pending", receipt.id)
        assert (settled.ready_at, settled.dead_reason) == (clock.now(), "retries_exhausted")
        assert settled.id != receipt.id
        assert (item.id, item.queue, item.status) == (settled.id, "morgue", "pending")
        assert (item.source_id, item.origin_id, item.origin_queue) == (receipt.id, receipt.id, "jobs")
        assert item.counters == settled.counters == Counters(deliveries=1)
        assert (item.expire_deadline, item.lease_deadline, item.worker) == (None, None, None)
        assert (item.value, dict(item.headers), item.put_at) == ({"n": 1}, {"h": "x"}, put_at)
        assert item.last_failure is not None
        assert item.last_failure.text == "why"
        assert [(death.queue, death.id, death.reason) for death in item.deaths] == [
            ("jobs", receipt.id, "retries_exhausted")
        ]
        assert places(broker.stats("jobs")) == {}
        assert places(broker.stats("morgue")) == {"pending": 1}

    def test_death_record_of_a_move_has_the_instant_of_the_first_lease(self, broker: Broker, clock: FakeClock) -> None:
        """Regression test: a predecessor recorded the instant of the put."""
        dead_queue(broker)
        broker.put("jobs", 1)
        leased_at = clock.advance("1m")
        lease = take(broker)
        clock.advance("1m")
        settled = broker.fail(lease, "boom")
        (death,) = broker.get(settled.id).deaths
        assert (death.first_leased_at, death.counters) == (leased_at, Counters(1, 1, 1))

    def test_dead_items_come_to_the_tail_in_the_order_of_their_deaths(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.put("morgue", "there before")
        broker.put_many("jobs", [0, 1, 2])
        for lease in reversed(take_all(broker)):
            broker.fail(lease, "boom")
        assert values(take_all(broker, "morgue")) == ["there before", 2, 1, 0]

    @pytest.mark.parametrize("end", ["fail", "bury", "release", "lose", "expire", "verdict", "by hand"])
    def test_every_death_moves(self, broker: Broker, clock: FakeClock, end: str) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue", max_attempts=1)
        receipt = broker.put("jobs", "x", expire_timeout="1h")
        match end:
            case "fail":
                broker.fail(take(broker), "boom")
            case "bury":
                broker.bury(take(broker))
            case "release":
                broker.release(take(broker))
            case "lose":
                lose(broker, clock)
            case "expire":
                clock.advance("1h")
                broker.run_maintenance()
            case "verdict":
                broker.fail(take(broker), "boom", verdict=Dead(DeadReason.POLICY))
            case "by hand":
                broker.bury_items(receipt.id)
        item = broker.get(receipt.id)
        assert (item.queue, item.status, item.source_id) == ("morgue", "pending", receipt.id)
        assert values(take_all(broker, "morgue")) == ["x"]
        assert places(broker.stats("jobs")) == {}

    def test_expired_item_that_was_never_leased_is_moved_and_not_copied(self, broker: Broker, clock: FakeClock) -> None:
        """Regression test: a predecessor copied such an item at every poll."""
        dead_queue(broker)
        broker.put("jobs", 1, expire_timeout="1s")
        clock.advance("1s")
        for _ in range(3):
            broker.run_maintenance()
            broker.lease("jobs")
        assert places(broker.stats("jobs")) == {}
        assert places(broker.stats("morgue")) == {"pending": 1}

    def test_moved_item_does_not_expire_in_its_dead_queue(self, broker: Broker, clock: FakeClock) -> None:
        """Regression test: a predecessor deleted dead letters when the expiry of the dead queue passed."""
        dead_queue(broker, expire_timeout="1s")
        kill(broker)
        clock.advance("365d")
        broker.run_maintenance()
        assert only(broker, "morgue").expire_deadline is None

    def test_moves_ignore_the_size_and_the_pause_of_the_target(self, broker: Broker) -> None:
        dead_queue(broker, max_size=1)
        broker.put("morgue", "full", priority=9)
        broker.pause_queue("morgue")
        kill(broker, "x")
        assert places(broker.stats("morgue")) == {"pending": 2}
        broker.resume_queue("morgue")
        assert values(take_all(broker, "morgue")) == ["full", "x"]

    def test_older_id_finds_the_item(self, broker: Broker) -> None:
        dead_queue(broker)
        receipt = broker.put("jobs", 1)
        settled = broker.fail(take(broker), "boom")
        assert broker.get(receipt.id) == broker.get(settled.id)

    def test_older_id_of_a_consumed_dead_letter_finds_nothing(self, broker: Broker) -> None:
        dead_queue(broker)
        receipt = broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        broker.complete(take(broker, "morgue"))
        with pytest.raises(ItemNotFound):
            broker.get(receipt.id)

    def test_changing_the_dead_queue_moves_nothing_that_is_dead(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("cellar")
        broker.create_queue("jobs")
        kill(broker, "in place")
        broker.update_queue("jobs", dead_queue="morgue")
        kill(broker, "in the morgue")
        broker.update_queue("jobs", dead_queue="cellar")
        kill(broker, "in the cellar")
        broker.run_maintenance()
        assert places(broker.stats("jobs")) == {"dead": 1}
        assert values(take_all(broker, "morgue")) == ["in the morgue"]
        assert values(take_all(broker, "cellar")) == ["in the cellar"]

    def test_dead_queue_given_while_an_item_is_active_takes_it(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        broker.update_queue("jobs", dead_queue="morgue")
        assert broker.fail(lease, "boom").queue == "morgue"

    def test_item_that_dies_in_the_dead_queue_stays_there(self, broker: Broker) -> None:
        dead_queue(broker)
        kill(broker)
        settled = broker.fail(take(broker, "morgue"), "again", final=True)
        item = broker.get(settled.id)
        assert (item.queue, item.status) == ("morgue", "dead")
        assert [death.queue for death in item.deaths] == ["jobs", "morgue"]

    def test_dead_letters_are_counted_where_they_lie(self, broker: Broker) -> None:
        dead_queue(broker)
        kill(broker)
        broker.put("morgue", "no dead letter")
        assert (broker.stats("jobs").dead_letters, broker.stats("jobs").dead_total) == (0, 1)
        assert broker.stats("morgue").dead_letters == 1
        broker.fail(take(broker, "morgue", limit=1), "again", final=True)
        assert broker.stats("morgue").dead_letters >= 1


class RouteConformance(Suite):
    """A table routes dead items to queues by the type or class of their error."""

    @pytest.mark.parametrize(
        ("error", "queue"),
        [
            (ValueError("x"), "values"),
            (UnicodeError("x"), "values"),
            (ConnectionResetError("x"), "nets"),
            (TimeoutError("x"), "nets"),
            (Boom("x"), "rest"),
            ("just a text", "rest"),
        ],
    )
    def test_table_routes_by_type_then_class_then_default(
        self, broker: Broker, error: BaseException | str, queue: str
    ) -> None:
        for name in ("values", "nets", "rest"):
            broker.create_queue(name)
        broker.create_queue("jobs", dead_queue={"ValueError": "values", "network": "nets", "default": "rest"})
        assert kill(broker, 1, error=error).queue == queue
        assert values(take_all(broker, queue)) == [1]

    def test_type_goes_before_class_and_nearer_type_before_farther(self, broker: Broker) -> None:
        for name in ("near", "far", "class"):
            broker.create_queue(name)
        broker.create_queue(
            "jobs", dead_queue={"network": "class", "ConnectionError": "far", "ConnectionResetError": "near"}
        )
        assert kill(broker, error=ConnectionResetError("x")).queue == "near"
        assert kill(broker, error=ConnectionAbortedError("x")).queue == "far"
        assert kill(broker, error=TimeoutError("x")).queue == "class"

    def test_item_that_no_route_takes_stays(self, broker: Broker) -> None:
        broker.create_queue("values")
        broker.create_queue("jobs", dead_queue={"ValueError": "values"})
        settled = kill(broker, error=Boom("x"))
        assert (settled.queue, settled.status) == ("jobs", "dead")

    def test_death_without_an_error_takes_the_default_route(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("rest")
        broker.create_queue("jobs", dead_queue={"default": "rest"}, max_losses=1)
        broker.put_many("jobs", [1, 2])
        lose(broker, clock)
        broker.bury(take(broker))
        assert values(take_all(broker, "rest")) == [1, 2]
