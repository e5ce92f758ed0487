# Generated from broker/async_broker.py by tools/blocking_api.py; edit that file.
"""`Broker`: all calls of a program on queues and items.

Its methods are in `redrive.broker.api`, a file for each topic.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from redrive.broker import maintenance
from redrive.broker.api.breakers import BreakerMethods
from redrive.broker.api.deliveries import DeliveryMethods
from redrive.broker.api.handle import QueueHandle
from redrive.broker.api.inspection import InspectionMethods
from redrive.broker.api.manual_changes import ManualChangeMethods
from redrive.broker.api.operations import OperationMethods
from redrive.broker.api.queues import QueueMethods
from redrive.broker.flows import deliveries
from redrive.broker.flows.health import Health, health_of, store_warnings
from redrive.store import Durability
from redrive.telemetry.metrics import Metrics


class Broker(
    QueueMethods,
    DeliveryMethods,
    InspectionMethods,
    ManualChangeMethods,
    OperationMethods,
    BreakerMethods,
):
    """Queues and items of one namespace in one store. Safe to share between threads.

    A call returns once its effect is durable. It raises a `RedriveError` if it was refused, and then it changed
    nothing. Durations are texts such as `30s`, numbers of seconds, or timedeltas. A forked child may keep using it.
    """

    @property
    def metrics(self) -> Metrics:
        """The metrics of this broker, counted from the first access to this property on: docs/reference/metrics.md."""
        return self.core.metrics()

    def queue(self, name: str) -> QueueHandle:
        """Return a handle on one queue, which need not exist yet."""
        return QueueHandle(self, deliveries.queue_name(name))

    def on_store(self, store: str) -> Self:
        """Return the broker on another store of this program, by its name in the `stores` of `connect`.

        It is opened at the first call for it, and closed with this one.
        """
        return type(self)(self._in_thread(self.core.stores.at, store))

    def run_maintenance(self) -> maintenance.MaintenanceResult:
        """Run one step of the maintenance, which otherwise runs automatically: for tests, and brokers without it."""
        return self.run_flow(maintenance.run_maintenance(self.core))

    def durability(self) -> Durability:
        """Return what an acknowledged call survives on this store."""
        return self._in_thread(self.core.store.durability)

    def health(self) -> Health:
        """Return durability and warnings of the store: open breakers, stuck moves, a store that fills up."""
        moves = self.run_flow(store_warnings(self.core))
        return self._in_thread(health_of, self.core.store, moves)

    def close(self) -> None:
        """Finish accepted calls, wake all waiters and release the store. A second call does nothing."""
        self._in_thread(self.core.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
