"""Looking and bringing back through `AsyncBroker`: the face differs, the rules do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redrive import AsyncBroker
from redrive.model.feed import FeedEntry
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.asynchronous import Scenario
from redrive.testing.conformance.suite import Suite


async def die(broker: AsyncBroker, count: int) -> None:
    """Put so many items and let them die."""
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
            plan = await broker.plan("redrive", fingerprint=group.fingerprint)
            operation = await broker.start("redrive", fingerprint=group.fingerprint)
            ended = await broker.drive(operation.id)
            assert (plan.total, ended.status, ended.changed) == (5, "finished", 5)
            undo = await broker.undo_operation(operation.id)
            assert (await broker.drive(undo.id)).changed == await broker.count() == 5
            (first, *_) = (await broker.find()).items
            assert (await broker.redrive(first.id, payload="mended")).status == "pending"
            assert [lease.value for lease in await broker.lease("jobs", 5)] == ["mended"]

        play(scenario)

    def test_async_operation_is_paused_and_cancelled(self, play: Callable[[Scenario], None]) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs")
            await die(broker, 3)
            operation = await broker.start("archive", queue="jobs", paused=True)
            assert (await broker.step()).operated == 0
            assert (await broker.resume_operation(operation.id)).status == "running"
            assert (await broker.set_rate(operation.id, 5)).rate == 5
            assert (await broker.pause_operation(operation.id)).status == "paused"
            assert (await broker.cancel_operation(operation.id)).status == "cancelled"
            assert [found.id for found in await broker.operations()] == [operation.id]

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
