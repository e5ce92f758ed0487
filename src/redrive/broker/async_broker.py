"""`AsyncBroker`: all calls of a program on queues and items, on an event loop.

Its methods are in `redrive.broker.async_api`, a file for each topic.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from redrive.broker import maintenance
from redrive.broker.async_api.breakers import AsyncBreakerMethods
from redrive.broker.async_api.deliveries import AsyncDeliveryMethods
from redrive.broker.async_api.handle import AsyncQueueHandle
from redrive.broker.async_api.inspection import AsyncInspectionMethods
from redrive.broker.async_api.manual_changes import AsyncManualChangeMethods
from redrive.broker.async_api.operations import AsyncOperationMethods
from redrive.broker.async_api.queues import AsyncQueueMethods
from redrive.broker.flows import deliveries
from redrive.broker.flows.health import Health, health_of, store_warnings
from redrive.store import Durability
from redrive.telemetry.metrics import Metrics


class AsyncBroker(
    AsyncQueueMethods,
    AsyncDeliveryMethods,
    AsyncInspectionMethods,
    AsyncManualChangeMethods,
    AsyncOperationMethods,
    AsyncBreakerMethods,
):
    """Queues and items of one namespace in one store. Safe to share between threads, and between event loops.

    A call returns once its effect is durable. It raises a `RedriveError` if it was refused, and then it changed
    nothing. Durations are texts such as `30s`, numbers of seconds, or timedeltas. A forked child may keep using it.
    """

    @property
    def metrics(self) -> Metrics:
        """The metrics of this broker, counted from the first access to this property on: docs/reference/metrics.md."""
        return self.core.metrics()

    def queue(self, name: str) -> AsyncQueueHandle:
        """Return a handle on one queue, which need not exist yet."""
        return AsyncQueueHandle(self, deliveries.queue_name(name))

    async def on_store(self, store: str) -> Self:
        """Return the broker on another store of this program, by its name in the `stores` of `connect`.

        It is opened at the first call for it, and closed with this one.
        """
        return type(self)(await self._in_thread(self.core.stores.at, store))

    async def run_maintenance(self) -> maintenance.MaintenanceResult:
        """Run one step of the maintenance, which otherwise runs automatically: for tests, and brokers without it."""
        return await self.run_flow(maintenance.run_maintenance(self.core))

    async def durability(self) -> Durability:
        """Return what an acknowledged call survives on this store."""
        return await self._in_thread(self.core.store.durability)

    async def health(self) -> Health:
        """Return durability and warnings of the store: open breakers, stuck moves, a store that fills up."""
        moves = await self.run_flow(store_warnings(self.core))
        return await self._in_thread(health_of, self.core.store, moves)

    async def close(self) -> None:
        """Finish accepted calls, wake all waiters and release the store. A second call does nothing."""
        await self._in_thread(self.core.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
