"""Gates with waiting workers, threads and several brokers, and after a restart."""

from __future__ import annotations

from redrive import Broker
from redrive.clock import Instant
from redrive.contract.item_calls import Settle
from redrive.contract.queries import GetNextDue
from redrive.model.breaker import Breaker
from redrive.model.duration import SECOND
from redrive.model.gate import BREAKER_GATE, Gate
from redrive.model.item import Status
from redrive.model.judge import OutcomeKind, RetryVerdict
from redrive.model.queue import Queue
from redrive.testing.conformance.actions import Background, values
from redrive.testing.conformance.gates import breaker, change_of, close
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StoreSuite, Suite
from redrive.testing.conformance.wakeups import waiting
from redrive.testing.fake_clock import FakeClock


class GateWaitConformance(StoreSuite):
    """A waiting worker is woken when a gate opens or is removed."""

    def test_woken_when_the_time_is_over(self, broker: Broker, direct: StoreDriver, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        close(direct, 30)
        worker = waiting(broker, clock)
        clock.advance("30s")
        assert values(worker.result()) == [1]

    def test_woken_though_the_item_came_while_it_was_closed(
        self, broker: Broker, direct: StoreDriver, clock: FakeClock
    ) -> None:
        broker.create_queue("jobs")
        worker = waiting(broker, clock)
        close(direct, 30)
        broker.put("jobs", 1)
        clock.advance("30s")
        assert values(worker.result()) == [1]

    def test_woken_when_the_gate_is_removed(self, broker: Broker, direct: StoreDriver, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        close(direct, 0, allowance=0)
        worker = waiting(broker, clock)
        broker.submit(change_of(broker.get_queue("jobs"), gate=None))
        assert values(worker.result()) == [1]

    def test_all_that_wait_are_woken_one_after_the_other(
        self, broker: Broker, direct: StoreDriver, clock: FakeClock
    ) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(3))
        close(direct, 30)
        workers = [waiting(broker, clock) for _ in range(3)]
        clock.advance("30s")
        assert sorted(value for each in workers for value in values(each.result())) == [0, 1, 2]

    def test_threads_of_one_broker_share_the_allowance(self, broker: Broker, direct: StoreDriver) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(40))
        close(direct, 0, allowance=5)
        workers = [Background(lambda: sum(len(broker.lease("jobs", 2)) for _ in range(5))) for _ in range(4)]
        assert sum(worker.result() for worker in workers) == 5

    def test_closed_queue_with_due_items_leaves_maintenance_idle(
        self, broker: Broker, direct: StoreDriver, clock: FakeClock
    ) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, delay="1s")
        close(direct, 600)
        clock.advance("1s")
        broker.run_maintenance()
        assert broker.run_maintenance().promoted == 0
        assert broker.lease("jobs") == []
        assert direct.read(GetNextDue()) is None


class SharedGateConformance(Suite):
    """Gates that several brokers of one store share, and gates after a restart."""

    def test_allowance_is_exact_among_brokers(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        brokers = [open_broker() for _ in range(3)]
        brokers[0].create_queue("jobs")
        brokers[0].put_many("jobs", range(20))
        assert [len(broker.lease("jobs")) for broker in brokers] == [1, 1, 1]
        self.set_gate(brokers[1], allowance=4)
        assert [len(brokers[n % 3].lease("jobs")) for n in range(7)] == [1, 1, 1, 1, 0, 0, 0]

    def test_allowance_is_exact_among_threads(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        brokers = [open_broker() for _ in range(4)]
        brokers[0].create_queue("jobs")
        brokers[0].put_many("jobs", range(60))
        for allowance in (1, 3, 7):
            self.set_gate(brokers[0], allowance=allowance)
            workers = [
                Background(lambda broker=broker: sum(len(broker.lease("jobs", 2)) for _ in range(5)))  # type: ignore[misc]
                for broker in brokers
            ]
            assert sum(worker.result() for worker in workers) == allowance

    def test_gate_closed_by_one_holds_for_all(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs")
        one.put_many("jobs", range(3))
        (lease,) = two.lease("jobs")
        StoreDriver(two.core.store, clock).do(
            Settle(
                lease.token,
                OutcomeKind.FAILED,
                RetryVerdict(0, Status.FAILED),
                two.get_queue("jobs").version,
                close_until=Instant(clock.now() + 10 * SECOND),
            )
        )
        assert one.lease("jobs") == []
        clock.advance("10s")
        assert len(one.lease("jobs", 5)) == 3

    def test_worker_is_woken_when_another_broker_removes_the_gate(
        self, open_broker: OpenBroker, clock: FakeClock
    ) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs")
        one.put("jobs", 1)
        self.set_gate(one, allowance=0)
        worker = waiting(one, clock)
        two.submit(change_of(two.get_queue("jobs"), gate=None))
        clock.advance("1s")
        assert values(worker.result()) == [1]

    def test_gates_and_breakers_survive_a_restart(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("is_durable")
        with open_broker() as before:
            before.create_queue("jobs")
            before.put_many("jobs", range(5))
            self.set_gate(before, breaker("queue", clock.now()), allowance=3)
            assert len(before.lease("jobs", 2)) == 2
            queue = before.get_queue("jobs")
        with open_broker() as after:
            assert after.get_queue("jobs") == queue
            assert len(queue.gates[0].leased) == 2
            assert len(after.lease("jobs", 5)) == 1

    def set_gate(self, broker: Broker, *breakers: Breaker, allowance: int) -> None:
        """Set a gate that allows `allowance` leases from now on."""
        gate = Gate(BREAKER_GATE, Instant(0), allowance)
        call = change_of(broker.get_queue("jobs"), *breakers, gate=gate)
        (changed,) = broker.core.store.commit([call]).results
        assert isinstance(changed, Queue), changed
