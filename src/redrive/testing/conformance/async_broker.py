"""The core rules through `AsyncBroker`: another interface, the same rules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from redrive import AsyncBroker, Lease, new_item
from redrive.errors import InvalidInput, LeaseLost, QueueFull, QueueNotFound, RedriveError
from redrive.model.feed import FeedEntry
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock

Scenario = Callable[[AsyncBroker], Awaitable[None]]


class AsyncConformance(Suite):
    """A core of the suite on an event loop. `asyncio.run` is enough; no plugin is needed."""

    @pytest.fixture
    def play(self, connect_async: Any, clock: FakeClock) -> Callable[[Scenario], None]:
        """Return a function that runs a scenario with a broker on a new event loop."""

        async def open_and_close(scenario: Scenario) -> None:
            broker = connect_async(clock=clock, maintenance=False)
            try:
                await asyncio.wait_for(scenario(broker), PATIENCE_SECONDS)
            finally:
                await broker.close()

        return lambda scenario: asyncio.run(open_and_close(scenario))

    def test_async_life_of_an_item(self, play: Callable[[Scenario], None], clock: FakeClock) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("morgue")
            await broker.create_queue("jobs", retry={"attempts": 2, "cooldown": "1m"}, dead_queue="morgue")
            receipt = await broker.put("jobs", {"n": 1})
            (lease,) = await broker.lease("jobs")
            assert lease.value == {"n": 1}
            await broker.extend(lease)
            assert (await broker.fail(lease, "one")).status == "failed"
            assert await broker.lease("jobs") == []
            clock.advance("1m")
            (lease,) = await broker.lease("jobs")
            dead = await broker.fail(lease, "two")
            assert (dead.queue, dead.status) == ("morgue", "pending")
            assert (await broker.redrive(receipt.id, actor="ada")).queue == "jobs"
            (lease,) = await broker.lease("jobs")
            assert (await broker.complete(lease)).status is None
            assert [entry.actor for entry in await broker.audit()] == ["ada"]
            assert (await broker.stats("jobs")).completed_total == 1

        play(scenario)

    def test_async_many_callers_at_once(self, play: Callable[[Scenario], None]) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            receipts = await asyncio.gather(*(broker.put("jobs", n) for n in range(300)))
            assert len({receipt.id for receipt in receipts}) == 300

            async def work() -> list[Any]:
                done = []
                while leases := await broker.lease("jobs", 3):
                    await asyncio.gather(*(broker.complete(lease) for lease in leases))
                    done += [lease.value for lease in leases]
                return done

            done = await asyncio.gather(*(work() for _ in range(16)))
            assert sorted(value for values in done for value in values) == list(range(300))

        play(scenario)

    def test_async_one_bad_call_fails_alone(self, play: Callable[[Scenario], None]) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs", max_size=2)
            results = await asyncio.gather(
                broker.put("jobs", 1),
                broker.put("nowhere", 1),
                broker.put("jobs", 2),
                broker.put("jobs", 3),
                return_exceptions=True,
            )
            kinds = sorted(type(result).__name__ for result in results)
            assert kinds == sorted(["Receipt", "Receipt", QueueFull.__name__, QueueNotFound.__name__])

        play(scenario)

    def test_async_of_two_settles_with_one_token_one_is_accepted(self, play: Callable[[Scenario], None]) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            await broker.put_many("jobs", range(50))
            for lease in await broker.lease("jobs", 50):
                results = await asyncio.gather(
                    broker.complete(lease),
                    broker.fail(lease, "boom"),
                    broker.release(lease, counted=False),
                    return_exceptions=True,
                )
                assert sum(isinstance(result, LeaseLost) for result in results) == 2

        play(scenario)

    def test_async_refusals_are_raised(self, play: Callable[[Scenario], None]) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            with pytest.raises(QueueNotFound):
                await broker.lease("nowhere")
            with pytest.raises(InvalidInput):
                await broker.create_queue("no good")
            await broker.create_queue("jobs")
            with pytest.raises(InvalidInput):
                await broker.put("jobs", float("nan"))
            assert (await broker.stats("jobs")).pending == 0

        play(scenario)

    def test_async_completion_with_follow_ups(self, play: Callable[[Scenario], None]) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            await broker.put("jobs", 1)
            (lease,) = await broker.lease("jobs")
            with pytest.raises(QueueNotFound):
                await broker.complete(lease, puts=[("nowhere", 1)])
            await broker.complete(lease, puts=[("jobs", new_item(2, priority=9)), ("jobs", 3)])
            assert [lease.value for lease in await broker.lease("jobs", 5)] == [2, 3]

        play(scenario)

    def test_async_waiter_is_woken_by_put(self, play: Callable[[Scenario], None], clock: FakeClock) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            waiters = [asyncio.create_task(broker.lease("jobs", wait="10m")) for _ in range(8)]
            await asyncio.to_thread(clock.until_waiting)
            for n in range(8):
                await broker.put("jobs", n)
            found = [lease.value for leases in await asyncio.gather(*waiters) for lease in leases]
            assert sorted(found) == list(range(8))

        play(scenario)

    def test_async_waiter_is_woken_by_what_falls_due(self, play: Callable[[Scenario], None], clock: FakeClock) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            await broker.put("jobs", 1, delay="30s")
            waiter = asyncio.create_task(broker.lease("jobs", wait="10m"))
            await asyncio.to_thread(clock.until_waiting)
            clock.advance("30s")
            assert [lease.value for lease in await waiter] == [1]

        play(scenario)

    def test_async_wait_ends_with_nothing_when_its_time_is_over(
        self, play: Callable[[Scenario], None], clock: FakeClock
    ) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            waiter = asyncio.create_task(broker.lease("jobs", wait="10m"))
            await asyncio.to_thread(clock.until_waiting)
            clock.advance("10m")
            assert await waiter == []

        play(scenario)

    def test_async_cancelled_waiter_takes_no_item_with_it(
        self, play: Callable[[Scenario], None], clock: FakeClock
    ) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            first = asyncio.create_task(broker.lease("jobs", wait="10m"))
            second = asyncio.create_task(broker.lease("jobs", wait="10m"))
            await asyncio.to_thread(clock.until_waiting)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            await broker.put("jobs", 1)
            leases: list[Lease] = await second
            assert [lease.value for lease in leases] == [1]

        play(scenario)

    def test_async_list_by_hand_gives_a_result_for_each(self, play: Callable[[Scenario], None]) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            receipt = await broker.put_failed("jobs", 1, "boom")
            missing, settled = await broker.retry(["0" * 32, receipt.id])
            assert isinstance(missing, RedriveError)
            assert not isinstance(settled, RedriveError)
            assert settled.status == "pending"

        play(scenario)


async def die(broker: AsyncBroker, count: int) -> None:
    """Put `count` items, and let them die."""
    await broker.put_many("jobs", range(count))
    for lease in await broker.lease("jobs", count):
        await broker.fail(lease, "boom")


class AsyncLookingConformance(Suite):
    """Find, groups, feed, operations, export and import on an event loop; `play` is that of `AsyncConformance`."""

    def test_async_find_and_bring_back(self, play: Callable[[Scenario], None]) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            await die(broker, 5)
            page = await broker.find(words="boom", limit=3)
            assert (len(page.items), await broker.count(queue="jobs")) == (3, 5)
            assert (await broker.find(words="boom", limit=3, cursor=page.cursor)).cursor is None
            (group,) = await broker.groups()
            plan = await broker.plan_operation("redrive", fingerprint=group.fingerprint)
            operation = await broker.start_operation("redrive", fingerprint=group.fingerprint)
            ended = await broker.run_operation(operation.id)
            assert (plan.total, ended.status, ended.changed) == (5, "finished", 5)
            undo = await broker.undo_operation(operation.id)
            assert (await broker.run_operation(undo.id)).changed == await broker.count() == 5
            (first, *_) = (await broker.find()).items
            assert (await broker.redrive(first.id, payload="mended")).status == "pending"
            assert [lease.value for lease in await broker.lease("jobs", 5)] == ["mended"]

        play(scenario)

    def test_async_operation_is_paused_and_cancelled(self, play: Callable[[Scenario], None]) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            await die(broker, 3)
            operation = await broker.start_operation("archive", queue="jobs", paused=True)
            assert (await broker.run_maintenance()).operated == 0
            assert (await broker.resume_operation(operation.id)).status == "running"
            assert (await broker.set_operation_rate(operation.id, 5)).rate == 5
            assert (await broker.pause_operation(operation.id)).status == "paused"
            assert (await broker.cancel_operation(operation.id)).status == "cancelled"
            assert [found.id for found in await broker.list_operations()] == [operation.id]

        play(scenario)

    def test_async_follow_gives_what_happens_later(self, play: Callable[[Scenario], None], clock: FakeClock) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            await die(broker, 2)
            there = [entry async for entry in broker.follow(after=0, wait=0)]
            assert [entry.kind for entry in there] == ["dead", "dead"]
            seen: list[FeedEntry] = []

            async def follow() -> None:
                async for entry in broker.follow(after=there[-1].number):
                    seen.append(entry)
                    if len(seen) == 3:
                        return

            follower = asyncio.create_task(follow())
            await asyncio.sleep(0)
            await die(broker, 3)
            clock.advance("1s")
            await follower
            assert len({entry.id for entry in seen}) == 3

        play(scenario)

    def test_async_export_and_import(self, play: Callable[[Scenario], None]) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            await broker.create_queue("other")
            await die(broker, 3)
            lines = [line async for line in broker.export(queue="jobs", redacted=False)]
            first = await broker.import_items(lines, queue="other")
            second = await broker.import_items(lines, queue="other")
            assert (first.imported, second.ignored, await broker.count(queue="other")) == (3, 3, 3)

        play(scenario)
