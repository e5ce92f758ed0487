"""How type checkers see brokers. Checked, not run: a line that is marked must be refused, every other accepted."""

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from redrive import (
    AsyncBroker,
    AsyncQueueHandle,
    Broker,
    FeedEntry,
    Health,
    Lease,
    Page,
    QueueHandle,
    Receipt,
    RedriveError,
    Settled,
)


def blocking(broker: Broker) -> None:
    assert_type(broker.put("jobs", 1, priority=9), Receipt)
    assert_type(broker.lease("jobs"), list[Lease])
    assert_type(broker.lease_by_id("1"), Lease)
    assert_type(broker.lease_by_id(["1"]), list[Lease | RedriveError])
    assert_type(broker.retry("1"), Settled)
    assert_type(broker.retry(["1"]), list[Settled | RedriveError])
    assert_type(broker.find(queue="jobs"), Page)
    assert_type(broker.follow(), Iterator[FeedEntry])
    assert_type(broker.export(), Iterator[bytes])
    assert_type(broker.queue("jobs"), QueueHandle)
    assert_type(broker.queue("jobs").put(1), Receipt)
    assert_type(broker.health(), Health)
    assert_type(broker.on_store("other"), Broker)
    with broker as opened:
        assert_type(opened, Broker)
    broker.put("jobs", 1, colour="red")  # type: ignore[call-arg]
    broker.retry(1)  # type: ignore[call-overload]
    broker.complete("token", results=1)  # type: ignore[call-arg, arg-type]


async def awaited(broker: AsyncBroker) -> None:
    assert_type(await broker.put("jobs", 1, priority=9), Receipt)
    assert_type(await broker.lease("jobs"), list[Lease])
    assert_type(await broker.lease_by_id("1"), Lease)
    assert_type(await broker.lease_by_id(["1"]), list[Lease | RedriveError])
    assert_type(await broker.retry("1"), Settled)
    assert_type(await broker.retry(["1"]), list[Settled | RedriveError])
    assert_type(await broker.find(queue="jobs"), Page)
    assert_type(broker.follow(), AsyncIterator[FeedEntry])
    assert_type(broker.export(), AsyncIterator[bytes])
    assert_type(broker.queue("jobs"), AsyncQueueHandle)
    assert_type(await broker.queue("jobs").put(1), Receipt)
    assert_type(await broker.health(), Health)
    assert_type(await broker.on_store("other"), AsyncBroker)
    async with broker as opened:
        assert_type(opened, AsyncBroker)
    await broker.put("jobs", 1, colour="red")  # type: ignore[call-arg]
    await broker.retry(1)  # type: ignore[call-overload]
    await broker.complete("token", results=1)  # type: ignore[call-arg, arg-type]
