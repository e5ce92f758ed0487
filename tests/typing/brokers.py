"""How type checkers see brokers. Checked, not run: a line that is marked must be refused, every other accepted."""

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from redrive import (
    AsyncBroker,
    AsyncQueueHandle,
    Broker,
    Conditions,
    DeadReason,
    FeedEntry,
    Health,
    ItemOptions,
    Lease,
    NewItem,
    Operation,
    OperationPlan,
    Page,
    Queue,
    QueueHandle,
    QueueOptions,
    Receipt,
    RedriveError,
    Settled,
    connect,
    connect_async,
    new_item,
)
from redrive.mailbox import Mailbox
from redrive.server.application import application


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
    options: ItemOptions = {"delay": "5m", "held_by": "me"}
    settings: QueueOptions = {"max_attempts": 3, "retry": {"attempts": 3}, "dead_queue": None}
    conditions: Conditions = {"queue": "jobs", "since": "1h", "ids": ["1"]}
    assert_type(new_item(1, **options), NewItem)
    assert_type(broker.put("jobs", 1, **options), Receipt)
    assert_type(broker.queue("jobs").put(1, transaction=None, **options), Receipt)
    assert_type(broker.create_queue("jobs", **settings), Queue)
    assert_type(broker.update_queue("jobs", actor="ann", **settings), Queue)
    assert_type(broker.count(**conditions), int)
    assert_type(broker.find(reason=DeadReason.EXPIRED, error_class="network"), Page)
    assert_type(broker.start_operation("redrive", rate=5, canary=2, **conditions), Operation)
    assert_type(broker.plan_operation("move", to="other", **conditions), OperationPlan)
    assert_type(broker.queue("jobs").start_operation("redrive", rate=5, words="disk"), Operation)
    assert_type(connect("memory://", namespace="tests", redact=False), Broker)
    broker.put("jobs", 1, colour="red")  # type: ignore[call-arg]
    broker.put("jobs", 1, priority="high")  # type: ignore[arg-type]
    broker.queue("jobs").put(1, dealy="5m")  # type: ignore[call-arg]
    broker.create_queue("jobs", lease_tiemout="5m")  # type: ignore[call-arg]
    broker.create_queue("jobs", max_size="many")  # type: ignore[arg-type]
    broker.update_queue("jobs", retries=3)  # type: ignore[call-arg]
    broker.find(colour="red")  # type: ignore[call-arg]
    broker.find(min_attempts="3")  # type: ignore[arg-type]
    broker.count(quue="jobs")  # type: ignore[call-arg]
    broker.export(colour="red")  # type: ignore[call-arg]
    broker.start_operation("redrive", rat=5)  # type: ignore[call-arg]
    broker.start_operation("redrive", canary=0.5)  # type: ignore[arg-type]
    broker.plan_operation("redrive", rate=5)  # type: ignore[call-arg]
    broker.queue("jobs").find(queue="other")  # type: ignore[call-arg]
    broker.queue("jobs").start_operation("redrive", rat=5)  # type: ignore[call-arg]
    connect("memory://", nmespace="tests")  # type: ignore[call-arg]
    connect("memory://", stores=["sqlite:///other.db"])  # type: ignore[arg-type]
    application("memory://", namespace="tests")  # type: ignore[call-arg]
    Mailbox(broker, "jobs", settings={"max_size": "many"})  # type: ignore[arg-type]
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
    await broker.create_queue("jobs", lease_tiemout="5m")  # type: ignore[call-arg]
    await broker.find(colour="red")  # type: ignore[call-arg]
    await broker.start_operation("redrive", rat=5)  # type: ignore[call-arg]
    await broker.queue("jobs").count(colour="red")  # type: ignore[call-arg]
    connect_async("memory://", nmespace="tests")  # type: ignore[call-arg]
    await broker.retry(1)  # type: ignore[call-overload]
    await broker.complete("token", results=1)  # type: ignore[call-arg, arg-type]
