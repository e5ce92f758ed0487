"""No method of `AsyncBroker` calls the store in the thread of the event loop, where a slow store stops everything."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from redrive import AsyncBroker
from redrive.broker.core import Core
from redrive.broker.flow import run_query
from redrive.contract.item_calls import LeaseItems
from redrive.contract.queries import GetQueue
from redrive.model.item import Lease
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.testing import FakeClock

NO_INPUT_OUTPUT = {"subscribe"}
"""What only keeps something in memory, on every store."""
OF_THE_CALLER = {"put_in_transaction"}
"""What runs on the caller's own connection, which may belong to this very thread."""
_NOWHERE = "0" * 32


class Watched:
    """A store that refuses to be called where an event loop runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not inspect.ismethod(value) or name in NO_INPUT_OUTPUT | OF_THE_CALLER:
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                self.called.add(name)
                return value(*arguments, **named)
            raise AssertionError(f"{name} is called in the thread of the loop")

        return call


async def first(entries: AsyncIterator[Any]) -> Any:
    async for entry in entries:
        return entry
    return None


async def leased(broker: AsyncBroker) -> Lease:
    await broker.put("jobs", 1)
    (lease,) = await broker.lease("jobs")
    return lease


async def dead(broker: AsyncBroker) -> str:
    lease = await leased(broker)
    await broker.bury(lease)
    return lease.id


async def operation(broker: AsyncBroker) -> str:
    await dead(broker)
    return (await broker.start_operation("redrive", queue="jobs", paused=True)).id


Use = Callable[[AsyncBroker], Awaitable[object]]


def on_lease(name: str, *arguments: Any) -> Use:
    async def use(broker: AsyncBroker) -> None:
        await getattr(broker, name)(await leased(broker), *arguments)

    return use


def on_dead(name: str, *arguments: Any) -> Use:
    async def use(broker: AsyncBroker) -> None:
        await getattr(broker, name)([await dead(broker)], *arguments)

    return use


def on_operation(name: str, *arguments: Any) -> Use:
    async def use(broker: AsyncBroker) -> None:
        await getattr(broker, name)(await operation(broker), *arguments)

    return use


async def imported(broker: AsyncBroker) -> None:
    await broker.put("jobs", 1)
    await broker.create_queue("other")
    lines = [line async for line in broker.export(status="any", redacted=False)]
    assert (await broker.import_items(lines, queue="other")).imported == 1


async def undo_operation(broker: AsyncBroker) -> None:
    id = await operation(broker)
    await broker.cancel_operation(id)
    await broker.undo_operation(id)


async def opened_and_closed(broker: AsyncBroker) -> None:
    await broker.open_breaker("jobs")
    await broker.close_breaker("jobs")


USES: dict[str, Use] = {
    "archive": on_dead("archive"),
    "on_store": lambda broker: broker.on_store("memory"),
    "audit": lambda broker: broker.audit(),
    "bury": on_lease("bury"),
    "bury_items": on_dead("bury_items"),
    "cancel_operation": on_operation("cancel_operation"),
    "clear_queue": lambda broker: broker.clear_queue("jobs"),
    "close": lambda broker: broker.close(),
    "complete": on_lease("complete"),
    "count": lambda broker: broker.count(),
    "create_queue": lambda broker: broker.create_queue("other", dead_queue="jobs"),
    "delete_queue": lambda broker: broker.delete_queue("jobs"),
    "complete_items": on_dead("complete_items"),
    "run_operation": on_operation("run_operation"),
    "drop": on_dead("drop"),
    "durability": lambda broker: broker.durability(),
    "export": lambda broker: first(broker.export(status="any")),
    "extend": on_lease("extend"),
    "fail": on_lease("fail", "broke"),
    "fail_items": on_dead("fail_items", "broke"),
    "feed": lambda broker: broker.feed(queue="jobs"),
    "find": lambda broker: broker.find(),
    "follow": lambda broker: first(broker.follow(wait=0)),
    "get": lambda broker: _got(broker),
    "get_many": lambda broker: _got_many(broker),
    "get_queue": lambda broker: broker.get_queue("jobs"),
    "groups": lambda broker: broker.groups(),
    "health": lambda broker: broker.health(),
    "hold": on_dead("hold", "ann"),
    "import_items": imported,
    "lease": lambda broker: broker.lease("jobs"),
    "lease_by_id": on_dead("lease_by_id"),
    "list_breakers": lambda broker: broker.list_breakers(),
    "open_breaker": lambda broker: broker.open_breaker("jobs"),
    "close_breaker": opened_and_closed,
    "list_queues": lambda broker: broker.list_queues(),
    "report_lost": on_lease("report_lost", "gone"),
    "move": on_dead("move", "jobs"),
    "moves": lambda broker: broker.moves(),
    "get_operation": on_operation("get_operation"),
    "list_operations": lambda broker: broker.list_operations(),
    "pause_operation": on_operation("pause_operation"),
    "pause_queue": lambda broker: broker.pause_queue("jobs"),
    "plan_operation": lambda broker: broker.plan_operation("redrive"),
    "purge": on_dead("purge"),
    "put": lambda broker: broker.put("jobs", 1),
    "put_failed": lambda broker: broker.put_failed("jobs", 1, "broke"),
    "put_many": lambda broker: broker.put_many("jobs", [1, 2]),
    "redrive": on_dead("redrive"),
    "redrive_edited": lambda broker: broker.redrive_edited([_NOWHERE], edit=str),
    "release": on_lease("release"),
    "reschedule": on_dead("reschedule"),
    "restore": on_dead("restore"),
    "result": lambda broker: broker.result(_NOWHERE),
    "resume_operation": on_operation("resume_operation"),
    "resume_queue": lambda broker: broker.resume_queue("jobs"),
    "retry": on_dead("retry"),
    "set_operation_rate": on_operation("set_operation_rate", 5.0),
    "start_operation": on_operation("get_operation"),
    "stats": lambda broker: broker.stats("jobs"),
    "submit": lambda broker: broker.submit(LeaseItems("jobs", 1)),
    "list_stats": lambda broker: broker.list_stats(),
    "find_by_key": lambda broker: broker.find_by_key("jobs", ["key"]),
    "run_flow": lambda broker: broker.run_flow(run_query(GetQueue("jobs"))),
    "run_flow_in_thread": lambda broker: broker.run_flow_in_thread(run_query(GetQueue("jobs"))),
    "run_flow_to_end": lambda broker: broker.run_flow_to_end(run_query(GetQueue("jobs"))),
    "run_maintenance": lambda broker: broker.run_maintenance(),
    "undo": on_dead("undo"),
    "undo_operation": undo_operation,
    "unhold": lambda broker: broker.unhold("ann"),
    "update_queue": lambda broker: broker.update_queue("jobs", max_attempts=7),
    "workers": lambda broker: broker.workers(),
}


async def _got(broker: AsyncBroker) -> None:
    await broker.get(await dead(broker))


async def _got_many(broker: AsyncBroker) -> None:
    await broker.get_many([await dead(broker)])


def test_every_method_is_tried() -> None:
    methods = {name for name, _ in inspect.getmembers(AsyncBroker, inspect.isfunction) if not name.startswith("_")}
    assert methods - {"queue", "on_breaker_change"} == USES.keys()


@pytest.mark.parametrize("name", sorted(USES))
def test_store_is_called_in_other_threads(name: str) -> None:
    with ThreadPoolExecutor(1) as thread:  # the main thread hands every read to another one, and waits for it
        thread.submit(asyncio.run, _used(name)).result()


async def _used(name: str) -> None:
    watched = Watched(MemoryStore(clock=FakeClock()))
    broker = AsyncBroker(Core(watched, maintenance=False))  # type: ignore[arg-type]  # it has what a store has
    try:
        await broker.create_queue("jobs", feed="all")
        watched.called.clear()
        await USES[name](broker)
        assert watched.called or name == "on_store"  # which opens another store, in a thread
    finally:
        await broker.close()


async def test_follow_begins_at_the_call_whatever_is_put_next() -> None:
    broker = AsyncBroker(Core(MemoryStore(), maintenance=False))
    async with broker:
        await broker.create_queue("jobs", feed="all")
        for n in range(20):
            entries = broker.follow(wait="1m")
            receipt = await broker.put("jobs", n)
            assert (await first(entries)).id == receipt.id


def test_follow_can_be_called_before_a_loop_runs() -> None:
    broker = AsyncBroker(Core(MemoryStore(), maintenance=False))
    assert asyncio.run(first(broker.follow(wait=0))) is None
