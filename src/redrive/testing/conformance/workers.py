"""Workers that announce themselves, and what a plan makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from redrive import AsyncBroker, Broker, WorkerInfo
from redrive.broker import workers
from redrive.broker.flow import run
from redrive.errors import InvalidInput
from redrive.store import ListRegistrations
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.asynchronous import Scenario
from redrive.testing.conformance.deliveries import take
from redrive.testing.conformance.suite import OpenBroker, Suite


def announce(broker: Broker, name: str = "w1", **options: Any) -> WorkerInfo:
    """A worker says that it is there."""
    given: dict[str, Any] = {
        "host": "here",
        "pid": 7,
        "queues": ("jobs",),
        "handlers": ("send",),
        "versions": {"redrive": "1", "python": "3"},
        "started_at": broker._core.clock.now(),
        "concurrency": 4,
        **options,
    }
    info = WorkerInfo(name, **given)
    run(broker._core, workers.announce(info))
    return info


def dead_task(broker: Broker, *tasks: str | None) -> None:
    """A dead letter for each of these tasks; None: one that is no task."""
    for task in tasks:
        broker.put("jobs", 1, headers={} if task is None else {"task": task})
        broker.fail(take(broker), "boom", final=True)


class WorkersConformance(Suite):
    """`workers`, and the warning of a plan."""

    def test_worker_is_seen_as_it_announced_itself(self, broker: Broker, clock: FakeClock) -> None:
        assert broker.workers() == ()
        info = announce(broker, running=3)
        assert broker.workers() == (msgspec.structs.replace(info, seen_at=clock.now()),)

    def test_workers_come_by_name(self, broker: Broker) -> None:
        for name in ("w2", "w10", "w1"):
            announce(broker, name)
        assert [worker.name for worker in broker.workers()] == ["w1", "w10", "w2"]

    def test_worker_that_says_nothing_any_more_is_gone(self, broker: Broker, clock: FakeClock) -> None:
        announce(broker, "silent")
        clock.advance("20s")
        announce(broker, "speaks")
        clock.advance("10s")
        assert [worker.name for worker in broker.workers()] == ["speaks"]

    def test_worker_that_leaves_is_gone_at_once(self, broker: Broker) -> None:
        announce(broker)
        assert run(broker._core, workers.leave("w1")) is True
        assert broker.workers() == ()

    def test_other_processes_see_it(self, broker: Broker, open_broker: OpenBroker) -> None:
        self.require("shared")
        announce(broker)
        assert [worker.name for worker in open_broker().workers()] == ["w1"]

    def test_more_handlers_than_can_be_named_are_left_out(self, broker: Broker) -> None:
        announce(broker, handlers=tuple(f"task_{n:050d}" for n in range(2_000)))
        assert broker.workers()[0].handlers is None

    def test_what_cannot_be_read_is_passed_over(self, broker: Broker) -> None:
        """Of a worker with another release, say."""
        announce(broker)
        run(broker._core, workers.register("worker", "odd", b"[1, 2]"))
        assert [worker.name for worker in broker.workers()] == ["w1"]

    @pytest.mark.parametrize(
        ("kind", "name", "value", "options"),
        [
            ("no good", "n", b"", {}),
            ("worker", "", b"", {}),
            ("worker", "a\0b", b"", {}),
            ("worker", "n", b"x" * (64 * 1024 + 1), {}),
            ("worker", "n", "text", {}),
            ("worker", "n", b"", {"timeout": 0}),
            ("worker", "n", b"", {"version": -1}),
        ],
        ids=lambda value: repr(value)[:20],
    )
    def test_bad_registration_is_refused(
        self, broker: Broker, kind: str, name: str, value: Any, options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidInput):
            run(broker._core, workers.register(kind, name, value, **options))
        assert broker._core.read(ListRegistrations("worker")) == ()

    def test_plan_names_tasks_that_no_worker_knows(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead_task(broker, "send", "gone", "gone", None)
        announce(broker)
        plan = broker.plan("redrive")
        assert (plan.changed, dict(plan.unhandled)) == (4, {"gone": 2})
        assert "no worker knows: gone 2" in str(plan)
        announce(broker, "w2", handlers=("gone",))
        assert dict(broker.plan("redrive").unhandled) == {}

    def test_plan_says_nothing_where_no_worker_is_alive(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        dead_task(broker, "gone")
        assert dict(broker.plan("redrive").unhandled) == {}
        announce(broker, queues=("other",))
        assert dict(broker.plan("redrive").unhandled) == {}
        announce(broker, "w2", handlers=("send",))
        assert dict(broker.plan("redrive").unhandled) == {"gone": 1}
        clock.advance("30s")
        assert dict(broker.plan("redrive").unhandled) == {}

    def test_plan_goes_by_the_workers_of_the_queue_that_items_go_to(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("spare")
        dead_task(broker, "send")
        announce(broker)
        announce(broker, "w2", queues=("spare",), handlers=("other",))
        assert dict(broker.plan("redrive").unhandled) == {}
        assert dict(broker.plan("redrive", to="spare").unhandled) == {"send": 1}
        assert dict(broker.plan("archive").unhandled) == {}

    def test_worker_that_names_no_handlers_may_know_all(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead_task(broker, "gone")
        announce(broker, handlers=None)
        assert dict(broker.plan("redrive").unhandled) == {}


class AsyncWorkersConformance(Suite):
    """The same on an event loop; `play` is that of `AsyncConformance`."""

    def test_async_result_loss_and_workers(self, play: Callable[[Scenario], None]) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs", max_losses=1)
            receipt, _ = await broker.put_many("jobs", [1, 2])
            done, killer = await broker.lease("jobs", 2, worker="w1")
            await broker.complete(done, result="r", keep_result="1m")
            result = await broker.result(receipt.id)
            assert result is not None
            assert result.value == "r"
            assert (await broker.lost(killer, "killed")).dead_reason == "worker_lost"
            assert await broker.workers() == ()

        play(scenario)
