# Generated from broker/async_broker.py by tools/blocking_api.py; edit that file.
"""`Broker`: what a program can do with queues and items.

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

    A call returns once its effect is on disk. It raises a `RedriveError` when it was refused, and then it changed
    nothing. Durations are texts such as `30s`, numbers of seconds, or timedeltas. A forked child may go on using it.
    """

    @property
    def metrics(self) -> Metrics:
        """What this broker counts of its own work, from the first look at it on: docs/reference/metrics.md."""
        return self.core.metrics()

    def queue(self, name: str) -> QueueHandle:
        """A handle on one queue, which need not exist yet."""
        return QueueHandle(self, deliveries.queue_name(name))

    def on_store(self, store: str) -> Self:
        """The broker on another store of this program, by the name that `connect` was given for it in `stores`.

        It is opened when it is first asked for, and closed with this one.
        """
        return type(self)(self._in_thread(self.core.stores.at, store))

    def run_maintenance(self) -> maintenance.MaintenanceResult:
        """One step of the maintenance, which otherwise runs by itself: for tests, and brokers opened without it."""
        return self.run_flow(maintenance.run_maintenance(self.core))

    def durability(self) -> Durability:
        """What an acknowledged call survives on this store."""
        return self._in_thread(self.core.store.durability)

    def health(self) -> Health:
        """What somebody should look at: a store that fills up, items that do not arrive in another store."""
        moves = self.run_flow(store_warnings(self.core))
        return self._in_thread(health_of, self.core.store, moves)

    def close(self) -> None:
        """Finish what was accepted, wake whoever waits, release the store. Twice is no error."""
        self._in_thread(self.core.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
