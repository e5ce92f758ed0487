"""Waiting: a lease that waits is woken by whatever makes an item eligible."""

from __future__ import annotations

import contextlib

from redrive import Broker, Lease
from redrive.errors import Closed
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import Background, kill, take, values
from redrive.testing.conformance.suite import OpenBroker, Suite


def waiting(broker: Broker, clock: FakeClock, queue: str = "jobs", limit: int = 1) -> Background[list[Lease]]:
    """A worker that waits for work, and is waiting when this returns."""
    worker = Background(lambda: broker.lease(queue, limit, wait="10m"))
    clock.until_waiting()
    return worker


class WaitConformance(Suite):
    """lease(wait=…) in another thread. Nothing sleeps: the clock is moved, or the test joins the thread."""

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
        broker.step()
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
        self.require("shared")
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
