"""Several brokers on one store, brokers after close, health."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redrive import Broker, new_item
from redrive.contract.queries import GetNextDue, GetQueue, ListQueues
from redrive.errors import Closed, LeaseLost, QueueNotFound
from redrive.testing.conformance.actions import Background, kill, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StorePair, StorePairSuite, StoreSuite, Suite, put
from redrive.testing.fake_clock import FakeClock


class SharingConformance(Suite):
    """Several brokers on one store."""

    def test_brokers_see_each_others_work(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs")
        receipt = one.put("jobs", 1)
        lease = take(two)
        assert lease.id == receipt.id
        assert one.get(receipt.id).status == "active"
        one.complete(lease)
        with pytest.raises(LeaseLost):
            two.complete(lease)

    def test_no_item_is_given_twice(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        brokers = [open_broker() for _ in range(4)]
        brokers[0].create_queue("jobs")
        brokers[0].put_many("jobs", range(400))

        def work(broker: Broker) -> list[Any]:
            done = []
            while leases := broker.lease("jobs", 7):
                for lease in leases:
                    broker.complete(lease)
                    done.append(lease.value)
            return done

        workers = [Background(lambda broker=broker: work(broker)) for broker in brokers]  # type: ignore[misc]
        assert sorted(value for worker in workers for value in worker.result()) == list(range(400))

    def test_order_holds_over_brokers(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        brokers = [open_broker() for _ in range(3)]
        brokers[0].create_queue("jobs")
        for n in range(30):
            brokers[n % 3].put("jobs", n)
        assert values(take_all(brokers[1])) == list(range(30))

    def test_unhold_lets_only_items_of_its_namespace_go(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker(namespace="other")
        for broker in (one, two):
            broker.create_queue("jobs")
        one.put_many("jobs", [new_item(n, held_by="breaker") for n in range(1_000)])
        two.put("jobs", "mine", held_by="breaker")
        assert two.unhold("breaker") == 1
        assert values(take_all(two)) == ["mine"]
        assert one.unhold("breaker") == 1_000

    def test_pause_by_one_holds_for_all(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs")
        one.put("jobs", 1)
        two.pause_queue("jobs")
        assert take_all(one) == []

    def test_queue_deleted_by_one_is_gone_for_all(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs", retry={"attempts": 9})
        one.put("jobs", 1)
        one.fail(take(one), "boom")
        two.delete_queue("jobs", confirm=1)
        with pytest.raises(QueueNotFound):
            one.put("jobs", 1)
        two.create_queue("jobs")
        one.put("jobs", 1)
        assert one.fail(take(one), "boom").status == "dead"

    def test_queue_may_be_used_without_being_created_by_this_broker(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs", lease_timeout="7m")
        two.put("jobs", 1)
        lease = take(two)
        assert lease.deadline - lease.leased_at == 7 * 60 * 1_000_000


class DurableConformance(Suite):
    """Committed changes are kept when a broker is closed and opened again."""

    def test_everything_is_there_after_reopening(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("is_durable")
        broker = open_broker()
        broker.create_queue("morgue")
        broker.create_queue(
            "jobs", retry={"attempts": 3, "cooldown": "1m"}, keep_completed="1d", dead_queue={"ValueError": "morgue"}
        )
        ids = [broker.put("jobs", {"n": n}, headers={"h": str(n)}, priority=n).id for n in range(8)]
        leases = {lease.value["n"]: lease for lease in broker.lease("jobs", 6)}
        broker.complete(leases[7], result="r")
        broker.fail(leases[6], "boom")
        broker.fail(leases[5], ValueError("x"), final=True)
        broker.bury(leases[4])
        broker.archive(ids[4])
        broker.release(leases[3], delay="1h", error="later")
        broker.hold([ids[1]], "breaker")
        broker.pause_queue("morgue")
        items, queues, audit = [broker.get(id) for id in ids], broker.list_queues(), broker.audit()
        stats = [broker.stats(queue.name) for queue in queues]
        broker.close()
        broker = open_broker()
        assert [broker.get(id) for id in ids] == items
        assert (broker.list_queues(), broker.audit()) == (queues, audit)
        assert [broker.stats(queue.name) for queue in queues] == stats
        broker.complete(leases[2])
        assert values(take_all(broker, lease_timeout="1h")) == [{"n": 0}]
        clock.advance("1m")
        assert values(take_all(broker)) == [{"n": 6}]

    def test_retry_scheduled_before_a_restart_comes_due_after_it(
        self, open_broker: OpenBroker, clock: FakeClock
    ) -> None:
        """Regression test: a predecessor lost its timers at a restart."""
        self.require("is_durable")
        broker = open_broker()
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1m"})
        broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        broker.close()
        broker = open_broker()
        assert take_all(broker) == []
        clock.advance("1m")
        assert take(broker).failures == 1

    def test_item_in_work_at_a_restart_comes_back(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        """Regression test: a predecessor lost items that were being retried when its process died."""
        self.require("is_durable")
        broker = open_broker()
        broker.create_queue("jobs", lease_timeout="1m")
        broker.put("jobs", 1)
        take(broker)
        broker.close()
        broker = open_broker()
        clock.advance("1m")
        assert take(broker).losses == 1

    def test_key_is_remembered_over_a_restart(self, open_broker: OpenBroker) -> None:
        self.require("is_durable")
        broker = open_broker()
        broker.create_queue("jobs")
        first = broker.put("jobs", 1, idempotency_key="k")
        broker.complete(take(broker))
        broker.close()
        assert open_broker().put("jobs", 1, idempotency_key="k").id == first.id

    def test_order_holds_over_a_restart(self, open_broker: OpenBroker) -> None:
        self.require("is_durable")
        for n in range(4):
            broker = open_broker()
            broker.create_queue("jobs")
            broker.put("jobs", n)
            broker.close()
        assert values(take_all(open_broker())) == [0, 1, 2, 3]

    def test_rules_for_redaction_hold_from_the_next_look_on(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        one, other = open_broker(), open_broker()
        one.create_queue("jobs")
        id = one.put("jobs", {"iban": "DE02"}).id
        assert other.get(id).value == {"iban": "DE02"}
        one.update_queue("jobs", redact={"keys": ["iban"]})
        assert other.get(id).value == {"iban": "[redacted]"}
        one.update_queue("jobs", redact=None)
        assert other.get(id).value == {"iban": "DE02"}


USES: dict[str, Callable[[Broker], Any]] = {
    "put": lambda broker: broker.put("jobs", 1),
    "put_many": lambda broker: broker.put_many("jobs", [1, 2]),
    "lease": lambda broker: broker.lease("jobs"),
    "lease, waiting": lambda broker: broker.lease("jobs", wait="1h"),
    "get": lambda broker: broker.get("0" * 32),
    "stats": lambda broker: broker.stats("jobs"),
    "queues": lambda broker: broker.list_queues(),
    "create_queue": lambda broker: broker.create_queue("mails"),
    "hold": lambda broker: broker.hold(["0" * 32], "somebody"),
    "retry": lambda broker: broker.retry("0" * 32),
    "run_maintenance": lambda broker: broker.run_maintenance(),
}


class CloseConformance(StoreSuite):
    """Calls of a closed broker and a closed store."""

    @pytest.mark.parametrize("use", USES.values(), ids=USES)
    def test_closed_broker_refuses(self, broker: Broker, use: Callable[[Broker], Any]) -> None:
        broker.create_queue("jobs")
        broker.close()
        with pytest.raises(Closed):
            use(broker)

    def test_settle_after_close_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        (lease,) = broker.lease("jobs")
        broker.close()
        for use in (broker.complete, broker.extend, broker.release, broker.bury):
            with pytest.raises(Closed):
                use(lease)
        with pytest.raises(Closed):
            broker.fail(lease, "boom")

    def test_closing_twice_is_no_error(self, broker: Broker) -> None:
        broker.close()
        broker.close()

    def test_closed_store_serves_nothing(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.read(GetQueue("jobs"))
        direct.store.poll_changes()
        direct.store.close()
        direct.store.close()
        with pytest.raises(Closed):
            direct.commit(put(b"a"))
        for query in (GetNextDue(), ListQueues(), GetQueue("jobs")):
            with pytest.raises(Closed):
                direct.read(query)
        with pytest.raises(Closed):
            direct.store.poll_changes()

    def test_store_that_was_closed_before_its_first_use_serves_nothing(self, direct: StoreDriver) -> None:
        direct.store.close()
        with pytest.raises(Closed):
            direct.read(ListQueues())
        with pytest.raises(Closed):
            direct.store.poll_changes()
        with pytest.raises(Closed):
            direct.commit(put(b"a"))


class HealthConformance(Suite):
    """The health of a store without faults."""

    def test_new_store_is_well(self, broker: Broker) -> None:
        health = broker.health()
        assert health.is_healthy
        assert health.durability == broker.durability()
        assert health.durability.survives in str(health)
        assert broker.core.store.examine() == ()


class StuckMoveConformance(StorePairSuite):
    """Moves to another store that do not complete."""

    def test_items_that_do_not_arrive_are_told_of_after_five_minutes(self, pair: StorePair, clock: FakeClock) -> None:
        pair.create_queues()
        kill(pair.source, "x")
        clock.advance("5m")
        assert pair.source.health().is_healthy
        clock.advance("1s")
        (warning,) = pair.source.health().warnings
        assert f"moving to {pair.there('morgue')} for 5m1s" in warning
        assert warning in str(pair.source.health())
        pair.source.run_maintenance()
        assert pair.source.health().is_healthy
