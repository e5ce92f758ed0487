"""Lost leases: the worker crashed, hung, or lost its connection; leases of a worker that is known to be gone."""

from __future__ import annotations

import msgspec
import pytest

from redrive import Broker, Failure
from redrive.contract.item_calls import Extend, LeaseItems, ReturnLease, Settle, StaleSettings
from redrive.contract.queries import ListWorkerLeases
from redrive.errors import LeaseLost
from redrive.model.classify import ErrorClass
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND
from redrive.model.item import Counters, Lease, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict
from redrive.testing.conformance.actions import lose, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StoreSuite, Suite
from redrive.testing.fake_clock import FakeClock


class LossConformance(Suite):
    """A crashed worker costs an attempt and a loss, but not the item."""

    def test_vanished_worker_does_not_kill_the_item(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        item = lose(broker, clock)
        assert (item.status, item.ready_at) == ("pending", clock.now())
        assert item.counters == Counters(deliveries=1, attempts=1, losses=1)
        assert (item.worker, item.lease_deadline) == (None, None)

    def test_loss_is_in_the_history_with_its_worker(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        take(broker, worker="w1", lease_timeout="1s")
        clock.advance("1s")
        broker.run_maintenance()
        (entry,) = broker.get(receipt.id).history
        assert (entry.event, entry.worker, entry.delivery, entry.at) == ("lost", "w1", 1, clock.now())

    def test_lost_item_goes_to_the_tail(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [0, 1, 2])
        lose(broker, clock)
        assert values(take_all(broker)) == [1, 2, 0]

    def test_lease_is_not_swept_before_its_deadline(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="10s")
        broker.put("jobs", 1)
        take(broker)
        clock.advance("9.999999s")
        assert broker.run_maintenance().lost == 0
        clock.advance(0.000001)
        assert broker.run_maintenance().lost == 1
        assert broker.run_maintenance().lost == 0

    def test_lease_itself_brings_back_what_ran_out(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="10s")
        broker.put("jobs", 1)
        first = take(broker)
        clock.advance("10s")
        second = take(broker)
        assert (second.id, second.counters) == (first.id, Counters(deliveries=2, attempts=2, losses=1))

    def test_lease_brings_back_many_at_once(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="10s")
        broker.put_many("jobs", range(200))
        take_all(broker)
        clock.advance("10s")
        broker.put("jobs", 200)
        assert sorted(values(take_all(broker))) == list(range(201))

    def test_fifth_loss_is_death_by_default(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", max_attempts=0)
        broker.put("jobs", 1)
        items = [lose(broker, clock) for _ in range(5)]
        assert [item.status for item in items] == ["pending"] * 4 + ["dead"]
        assert items[-1].dead_reason == "worker_lost"
        assert items[-1].counters == Counters(deliveries=5, attempts=5, losses=5)

    @pytest.mark.parametrize("most", [1, 2, 7])
    def test_max_losses_bounds_them(self, broker: Broker, clock: FakeClock, most: int) -> None:
        broker.create_queue("jobs", max_attempts=0, max_losses=most)
        broker.put("jobs", 1)
        assert [lose(broker, clock).status for _ in range(most)] == ["pending"] * (most - 1) + ["dead"]

    def test_zero_losses_is_unlimited(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", max_attempts=0, max_losses=0)
        broker.put("jobs", 1)
        assert {lose(broker, clock).status for _ in range(12)} == {"pending"}

    def test_losses_of_an_item_go_before_those_of_its_queue(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", max_losses=4)
        broker.put("jobs", 1, max_losses=2)
        assert [lose(broker, clock).status for _ in range(2)] == ["pending", "dead"]

    def test_loss_at_max_attempts_is_death(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", max_attempts=2)
        broker.put("jobs", 1)
        assert [lose(broker, clock).status for _ in range(2)] == ["pending", "dead"]
        assert broker.stats("jobs").dead == 1

    def test_losses_and_failures_are_counted_apart(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 2}, max_losses=2)
        broker.put("jobs", 1)
        lose(broker, clock)
        settled = broker.fail(take(broker), "boom")
        assert (settled.status, settled.counters) == ("failed", Counters(2, 2, failures=1, losses=1))

    def test_lowered_max_losses_holds_for_the_next_loss(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        take(broker, lease_timeout="1s")
        broker.update_queue("jobs", max_losses=1)
        clock.advance("1s")
        broker.run_maintenance()
        assert broker.get(receipt.id).dead_reason == "worker_lost"

    def test_worker_killed_by_its_item_makes_a_dead_letter_in_the_dead_queue(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue", max_losses=2)
        broker.put("jobs", "killer")
        lose(broker, clock)
        assert lose(broker, clock).queue == "morgue"
        assert values(take_all(broker, "morgue")) == ["killer"]

    def test_sweeps_of_two_brokers_count_one_loss(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs")
        receipt = one.put("jobs", 1)
        take(one, lease_timeout="1s")
        clock.advance("1s")
        assert one.run_maintenance().lost + two.run_maintenance().lost == 1
        assert one.get(receipt.id).counters.losses == 1


KILLED = Failure("WorkerLost", "killed by signal 9", error_class=ErrorClass.POISON, fingerprint="killed")


class HeldConformance(StoreSuite):
    """The leases that a worker holds."""

    def test_leases_of_a_worker_are_as_it_got_them(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b", headers={"h": "x"}, expire_timeout=90 * SECOND)
        direct.put(b"c")
        mine = direct.lease(limit=2, worker="w1")
        direct.lease(limit=1, worker="w2")
        assert direct.read(ListWorkerLeases("w1")) == tuple(mine)
        assert [lease.payload for lease in direct.read(ListWorkerLeases("w2"))] == [b"c"]
        assert direct.read(ListWorkerLeases("w")) == ()

    def test_those_of_all_queues_are_found_oldest_first(self, direct: StoreDriver) -> None:
        for name in ("b", "a"):
            direct.queue(name)
            direct.put(b"1", b"2", queue=name)
        leases: list[Lease] = []
        for queue in ("a", "b", "a", "b"):
            leases += direct.lease(queue, worker="w1")
            direct.clock.advance("1s")
        assert direct.read(ListWorkerLeases("w1")) == tuple(leases)
        assert direct.read(ListWorkerLeases("w1", limit=3)) == tuple(leases[:3])

    def test_those_of_one_instant_are_in_line(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"low", priority=1)
        direct.put(b"high", priority=9)
        assert [lease.payload for lease in direct.lease(limit=2, worker="w1")] == [b"high", b"low"]
        assert [lease.payload for lease in direct.read(ListWorkerLeases("w1"))] == [b"low", b"high"]

    def test_extension_is_seen(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        (lease,) = direct.lease(worker="w1")
        direct.clock.advance("1s")
        deadline = direct.do(Extend(lease.token, 90 * SECOND))
        assert direct.read(ListWorkerLeases("w1")) == (msgspec.structs.replace(lease, deadline=deadline),)

    def test_lease_that_ran_out_and_was_not_swept_is_still_held(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=SECOND)
        direct.put(b"a")
        leases = direct.lease(worker="w1")
        direct.clock.advance("1h")
        assert direct.read(ListWorkerLeases("w1")) == tuple(leases)

    def test_what_ended_is_held_no_longer(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b", b"c")
        one, two, three = direct.lease(limit=3, worker="w1")
        direct.commit(ReturnLease(one.token), Settle(two.token, OutcomeKind.RELEASED, RetryVerdict(), direct.version()))
        assert direct.read(ListWorkerLeases("w1")) == (three,)
        direct.bury(three)
        assert direct.read(ListWorkerLeases("w1")) == ()

    def test_item_that_was_brought_back_is_held_under_its_new_id(self, direct: StoreDriver) -> None:
        direct.queue("morgue")
        direct.queue()
        direct.put(b"a")
        moved = direct.bury(direct.take(), to="morgue")
        (lease,) = direct.lease("morgue", worker="w1")
        assert lease.id == moved.id
        assert direct.read(ListWorkerLeases("w1")) == (lease,)

    def test_leases_without_a_worker_are_nobodys(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        direct.take()
        assert direct.read(ListWorkerLeases("")) == ()

    def test_leases_of_other_namespaces_are_not_seen(self, direct: StoreDriver, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        direct.queue()
        direct.put(b"a")
        direct.lease(worker="w1")
        assert open_broker("elsewhere").core.store.read(ListWorkerLeases("w1")) == ()


class LostAtOnceConformance(StoreSuite):
    """A loss that is reported before the lease expires."""

    def test_loss_at_once_is_accepted_before_the_deadline(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        (lease,) = direct.lease(worker="w1")
        settled = direct.do(
            Settle(lease.token, OutcomeKind.LOST, RetryVerdict(), direct.version(), KILLED, worker_is_gone=True)
        )
        assert (settled.status, settled.counters) == (Status.PENDING, Counters(1, 1, 0, 1))
        (entry,) = direct.get(lease.id).history
        assert (entry.event, entry.worker, entry.failure) == ("lost", "w1", KILLED)

    def test_loss_that_is_not_at_once_waits_for_the_deadline(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=SECOND)
        direct.put(b"a")
        lease = direct.take()
        refusal = direct.do(Settle(lease.token, OutcomeKind.LOST, RetryVerdict(), direct.version(), KILLED))
        assert isinstance(refusal, LeaseLost)
        assert direct.get(lease.id).status is Status.ACTIVE

    def test_lost_item_is_free_for_a_lease_of_the_same_batch(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        loss = Settle(lease.token, OutcomeKind.LOST, RetryVerdict(), direct.version(), worker_is_gone=True)
        leased, _ = direct.commit(LeaseItems("jobs", 1), loss).results
        assert (leased.leases[0].id, leased.leases[0].losses) == (lease.id, 1)

    def test_token_and_version_count_for_a_loss_at_once_too(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        loss = Settle(lease.token, OutcomeKind.LOST, RetryVerdict(), direct.version() + 1, worker_is_gone=True)
        assert isinstance(direct.do(loss), StaleSettings)
        direct.do(ReturnLease(lease.token))
        assert isinstance(direct.do(loss), LeaseLost)

    @pytest.mark.parametrize("to", [None, "morgue"])
    def test_item_dies_of_the_failure_that_came_with_it(self, direct: StoreDriver, to: str | None) -> None:
        direct.queue("morgue")
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        dead = Dead(DeadReason.WORKER_LOST, to)
        settled = direct.do(Settle(lease.token, OutcomeKind.LOST, dead, direct.version(), KILLED, worker_is_gone=True))
        death = direct.get(settled.id).death
        assert death is not None
        assert (death.reason, death.counters.losses) == (DeadReason.WORKER_LOST, 1)
        assert (death.cause.title, death.cause.error_type) == ("WorkerLost: killed by signal 9", "WorkerLost")
        assert death.cause.fingerprint == "killed"


class LostConformance(Suite):
    """Reports of a supervisor about a worker that is gone: `report_lost`."""

    def test_loss_counts_at_once_and_says_what_is_known(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_losses=2)
        broker.put("jobs", 1)
        lease = take(broker, worker="w1")
        settled = broker.report_lost(lease, "killed by signal 9 after 3 s")
        assert (settled.status, settled.counters.losses, settled.counters.failures) == ("pending", 1, 0)
        settled = broker.report_lost(take(broker, worker="w1").token, "killed by signal 9 after 4 s")
        assert (settled.status, settled.dead_reason) == ("dead", "worker_lost")
        item = broker.get(lease.id)
        assert [entry.event for entry in item.history] == ["lost", "lost"]
        assert item.death is not None
        assert item.death.cause.error_class is ErrorClass.POISON
        assert "killed by signal 9" in item.death.cause.title
        assert item.last_failure is not None
        assert item.last_failure.worker == "w1"

    def test_failure_is_taken_as_it_is(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_losses=1)
        broker.put("jobs", 1)
        lease = take(broker)
        broker.report_lost(lease, KILLED)
        failure = broker.get(lease.id).last_failure
        assert failure is not None
        assert (failure.type, failure.text, failure.error_class) == (KILLED.type, KILLED.text, KILLED.error_class)

    def test_neighbours_keep_their_leases(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [1, 2])
        one, two = take_all(broker, worker="w1")
        broker.report_lost(one, "gone")
        assert broker.get(two.id).status == "active"
        broker.release(two, counted=False)
        assert values(take_all(broker)) == [2, 1]

    def test_limits_of_the_item_itself_count(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_losses=5)
        broker.put("jobs", 1, max_losses=1)
        assert broker.report_lost(take(broker), "gone").dead_reason == "worker_lost"

    def test_changed_settings_are_judged_by(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_losses=5)
        broker.put("jobs", 1)
        lease = take(broker)
        broker.update_queue("jobs", max_losses=1)
        assert broker.report_lost(lease, "gone").dead_reason == "worker_lost"

    def test_loss_of_what_another_has_now_is_refused(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="1s")
        broker.put("jobs", 1)
        old = take(broker, worker="old")
        clock.advance("1s")
        new = take(broker, worker="new")
        with pytest.raises(LeaseLost):
            broker.report_lost(old, "gone")
        assert broker.get(new.id).counters.losses == 1
        broker.complete(new)
