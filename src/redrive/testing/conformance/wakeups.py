"""Wake-ups: every event that makes an item eligible wakes a waiting lease, and a commit reports arrivals.

Extra wake-ups are harmless, so these tests require the necessary reports and forbid no others.
"""

from __future__ import annotations

import contextlib

from redrive import Broker, Lease
from redrive.contract.admin_calls import ManualChange, ManualTarget, SetPaused, Unhold
from redrive.contract.item_calls import ReturnLease, Settle
from redrive.contract.maintenance_calls import Promote
from redrive.errors import Closed
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND
from redrive.model.failure import Failure
from redrive.model.item import Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict
from redrive.model.state_machine import Verb
from redrive.store import Commit
from redrive.testing.conformance.actions import Background, kill, take, values
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StoreSuite, Suite, put
from redrive.testing.fake_clock import FakeClock


def waiting(broker: Broker, clock: FakeClock, queue: str = "jobs", limit: int = 1) -> Background[list[Lease]]:
    """Start a lease that waits in another thread, and return once it waits."""
    worker = Background(lambda: broker.lease(queue, limit, wait="10m"))
    clock.until_waiting()
    return worker


class WaitConformance(Suite):
    """`lease(wait=…)` in another thread. No test sleeps: it moves the clock, or joins the thread."""

    def test_woken_by_put(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        worker = waiting(broker, clock)
        broker.put("jobs", 1)
        assert values(worker.result()) == [1]

    def test_woken_by_release(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        worker = waiting(broker, clock)
        broker.release(lease)
        assert values(worker.result()) == [1]

    def test_woken_by_an_uncounted_release(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        worker = waiting(broker, clock)
        broker.release(lease, counted=False)
        assert values(worker.result()) == [1]

    def test_woken_by_an_immediate_retry(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3})
        broker.put("jobs", 1)
        lease = take(broker)
        worker = waiting(broker, clock)
        broker.fail(lease, "boom")
        assert values(worker.result()) == [1]

    def test_woken_by_a_retry_that_fell_due(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"})
        broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        worker = waiting(broker, clock)
        clock.advance("30s")
        assert values(worker.result()) == [1]

    def test_woken_by_a_retry_that_was_scheduled_while_it_waited(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"})
        broker.put("jobs", 1)
        lease = take(broker)
        worker = waiting(broker, clock)
        broker.fail(lease, "boom")
        clock.advance("30s")
        assert values(worker.result()) == [1]

    def test_woken_by_a_scheduled_item_that_fell_due(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, delay="30s")
        worker = waiting(broker, clock)
        clock.advance("30s")
        assert values(worker.result()) == [1]

    def test_woken_by_a_scheduled_item_that_was_put_while_it_waited(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        worker = waiting(broker, clock)
        broker.put("jobs", 1, delay="30s")
        clock.advance("30s")
        assert values(worker.result()) == [1]

    def test_woken_by_a_lease_that_ran_out(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", lease_timeout="30s")
        broker.put("jobs", 1)
        take(broker)
        worker = waiting(broker, clock)
        clock.advance("30s")
        assert values(worker.result()) == [1]

    def test_woken_by_a_moved_item(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        worker = waiting(broker, clock, "morgue")
        kill(broker, 1)
        assert values(worker.result()) == [1]

    def test_woken_by_an_expired_item_that_moved(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue", expire_timeout="30s")
        broker.put("jobs", 1)
        worker = waiting(broker, clock, "morgue")
        clock.advance("30s")
        broker.run_maintenance()
        assert values(worker.result()) == [1]

    def test_woken_by_retry_and_redrive(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        for change in (broker.retry, broker.redrive):
            dead = kill(broker, 1)
            worker = waiting(broker, clock)
            change(dead.id)
            assert values(worker.result()) == [1]

    def test_woken_by_redrive_from_a_dead_queue(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        dead = kill(broker, 1)
        worker = waiting(broker, clock)
        broker.redrive(dead.id)
        assert values(worker.result()) == [1]

    def test_woken_by_restore(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        dead = kill(broker, 1)
        broker.archive(dead.id)
        worker = waiting(broker, clock, "morgue")
        broker.restore(dead.id)
        assert values(worker.result()) == [1]

    def test_woken_by_reschedule(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        id = broker.put("jobs", 1, delay="1h").id
        worker = waiting(broker, clock)
        broker.reschedule(id)
        assert values(worker.result()) == [1]

    def test_woken_by_unhold(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, held_by="breaker")
        worker = waiting(broker, clock)
        broker.unhold("breaker")
        assert values(worker.result()) == [1]

    def test_woken_by_resume(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        broker.pause_queue("jobs")
        worker = waiting(broker, clock)
        broker.resume_queue("jobs")
        assert values(worker.result()) == [1]

    def test_woken_by_a_follow_up_of_a_completion(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.create_queue("mails")
        broker.put("jobs", 1)
        lease = take(broker)
        worker = waiting(broker, clock, "mails")
        broker.complete(lease, puts=[("mails", 2)])
        assert values(worker.result()) == [2]

    def test_woken_by_another_broker(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs")
        worker = waiting(one, clock)
        two.put("jobs", 1)
        clock.advance("1s")
        assert values(worker.result()) == [1]

    def test_wait_ends_with_nothing_when_its_time_is_over(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        worker = waiting(broker, clock)
        clock.advance("10m")
        assert worker.result() == []

    def test_item_that_is_there_is_given_without_waiting(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        assert values(broker.lease("jobs", 5, wait="10m")) == [1]

    def test_each_waiting_worker_gets_an_item(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        workers = [waiting(broker, clock) for _ in range(8)]
        broker.put_many("jobs", range(8))
        assert sorted(lease.value for worker in workers for lease in worker.result()) == list(range(8))

    def test_items_put_one_by_one_reach_every_worker(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        workers = [waiting(broker, clock) for _ in range(4)]
        for n in range(4):
            broker.put("jobs", n)
        assert sorted(lease.value for worker in workers for lease in worker.result()) == [0, 1, 2, 3]

    def test_work_in_another_queue_does_not_end_a_wait(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.create_queue("mails")
        worker = waiting(broker, clock)
        broker.put("mails", 1)
        broker.put("jobs", 2)
        assert values(worker.result()) == [2]

    def test_closing_the_broker_ends_a_wait(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        worker = waiting(broker, clock)
        broker.close()
        with contextlib.suppress(Closed):
            assert worker.result() == []


def told(commit: Commit, queue: str = "jobs") -> int:
    """Return the number of arrivals in the queue. The test fails if the commit does not report the queue."""
    assert queue in commit.arrivals, f"no waiter for '{queue}' is woken: {commit.arrivals}"
    return commit.arrivals[queue]


class ArrivalConformance(StoreSuite):
    """Events that make an item leasable, and new instants at which one is due."""

    def test_put_items_arrive(self, direct: StoreDriver) -> None:
        direct.queue()
        assert told(direct.commit(put(b"a", b"b"), put(b"c"), put(b"later", delay=SECOND))) >= 3

    def test_unheld_items_arrive(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b", held_by="x")
        assert told(direct.commit(Unhold("x"))) >= 2

    def test_item_that_fell_due_arrives(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", delay=SECOND)
        direct.clock.advance("1s")
        assert told(direct.commit(Promote())) >= 1

    def test_returned_item_arrives(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        assert told(direct.commit(ReturnLease(direct.take().token))) >= 1

    def test_new_time_to_wait_for_is_told(self, direct: StoreDriver) -> None:
        direct.queue()
        told(direct.commit(put(b"a", delay=2 * SECOND)))
        told(direct.commit(put(b"b", delay=SECOND)))

    def test_time_of_a_retry_is_told(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        verdict = RetryVerdict(SECOND, Status.FAILED)
        failed = Settle(
            direct.take().token, OutcomeKind.FAILED, verdict, direct.version(), Failure("ValueError", "boom")
        )
        told(direct.commit(failed))

    def test_time_to_wait_for_is_told_when_a_paused_queue_goes_on(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", delay=SECOND)
        direct.do(SetPaused("jobs", True, "ada"))
        told(direct.commit(SetPaused("jobs", False, "ada")))

    def test_items_of_a_paused_queue_arrive_when_it_goes_on(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.commit(SetPaused("jobs", True, "ada"), put(b"a", b"b"))
        assert list(direct.lease(limit=5)) == []
        assert told(direct.commit(SetPaused("jobs", False, "ada"))) >= 2

    def test_dead_item_arrives_in_its_dead_queue(self, direct: StoreDriver) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue="morgue")
        direct.put(b"a")
        verdict = Dead(DeadReason.BURIED, "morgue")
        buried = Settle(direct.take().token, OutcomeKind.BURIED, verdict, direct.version())
        assert told(direct.commit(buried), "morgue") >= 1

    def test_redriven_item_arrives_where_it_came_from(self, direct: StoreDriver) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue="morgue")
        direct.put(b"a")
        moved = direct.bury(direct.take(), "morgue")
        assert told(direct.commit(ManualChange(Verb.REDRIVE, (ManualTarget(moved.id),), "ada"))) >= 1

    def test_immediate_retry_arrives_though_it_is_still_failed(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        lease = direct.take()
        verdict = RetryVerdict(0, Status.FAILED)
        failed = Settle(lease.token, OutcomeKind.FAILED, verdict, direct.version(), Failure("ValueError", "boom"))
        commit = direct.commit(failed)
        assert commit.results[0].status is Status.FAILED
        assert told(commit) >= 1
        assert direct.take().id == lease.id
