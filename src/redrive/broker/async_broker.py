"""`AsyncBroker`: what a program can do with queues and items, on an event loop.

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

    A call returns once its effect is on disk. It raises a `RedriveError` when it was refused, and then it changed
    nothing. Durations are texts such as `30s`, numbers of seconds, or timedeltas. A forked child may go on using it.
    """

    @property
    def metrics(self) -> Metrics:
        """What this broker counts of its own work, from the first look at it on: docs/reference/metrics.md."""
        return self.core.metrics()

    def queue(self, name: str) -> AsyncQueueHandle:
        """A handle on one queue, which need not exist yet."""
        return AsyncQueueHandle(self, deliveries.queue_name(name))

    async def on_store(self, store: str) -> Self:
        """The broker on another store of this program, by the name that `connect` was given for it in `stores`.

        It is opened when it is first asked for, and closed with this one.
        """
        return type(self)(await self._in_thread(self.core.stores.at, store))

    async def run_maintenance(self) -> maintenance.MaintenanceResult:
        """One step of the maintenance, which otherwise runs by itself: for tests, and brokers opened without it."""
        return await self.run_flow(maintenance.run_maintenance(self.core))

    async def durability(self) -> Durability:
        """What an acknowledged call survives on this store."""
        return await self._in_thread(self.core.store.durability)

    async def health(self) -> Health:
        """What somebody should look at: a store that fills up, items that do not arrive in another store."""
        moves = await self.run_flow(store_warnings(self.core))
        return await self._in_thread(health_of, self.core.store, moves)

    async def close(self) -> None:
        """Finish what was accepted, wake whoever waits, release the store. Twice is no error."""
        await self._in_thread(self.core.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
