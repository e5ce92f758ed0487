# Generated from broker/async_api/handle.py by tools/blocking_api.py; edit that file.
"""A handle on one queue of a `Broker`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from redrive.contract.queries import FeedPage, Page
from redrive.model.duration import DurationInput
from redrive.model.group import Group
from redrive.model.item import Item, Lease, Receipt
from redrive.model.operation import Operation
from redrive.model.operation_plan import OperationPlan
from redrive.model.options import ItemOptions, QueueConditions, QueueOperationOptions, QueuePlanConditions
from redrive.model.queue import Queue, QueueStats

if TYPE_CHECKING:
    from redrive.broker.broker import Broker


class QueueHandle:
    """A queue of a `Broker`. The methods are those of the broker, without the name."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self.name = name

    def put(self, value: Any, *, transaction: Any = None, **options: Unpack[ItemOptions]) -> Receipt:
        """Put one item. The options are those of `Broker.put`."""
        return self._broker.put(self.name, value, transaction=transaction, **options)

    def put_many(self, values: Iterable[Any], *, transaction: Any = None) -> tuple[Receipt, ...]:
        """Put all values, or none."""
        return self._broker.put_many(self.name, values, transaction=transaction)

    def lease(
        self,
        limit: int = 1,
        *,
        wait: DurationInput = 0,
        lease_timeout: DurationInput | None = None,
        worker: str | None = None,
    ) -> list[Lease]:
        """Lease up to `limit` items, in order; wait up to `wait` for the first one."""
        return self._broker.lease(self.name, limit, wait=wait, lease_timeout=lease_timeout, worker=worker)

    def get(self) -> Queue:
        """Return the queue with its settings."""
        return self._broker.get_queue(self.name)

    def stats(self) -> QueueStats:
        """Return counts by status, the oldest ready item, and totals for rates."""
        return self._broker.stats(self.name)

    def find_by_key(self, keys: Iterable[str], *, redacted: bool = True) -> list[Item | None]:
        """Find the items that puts under these idempotency keys would be duplicates of; None if no such item exists."""
        return self._broker.find_by_key(self.name, keys, redacted=redacted)

    def find(
        self,
        *,
        order: str = "newest",
        limit: int = 50,
        cursor: str | None = None,
        redacted: bool = True,
        **conditions: Unpack[QueueConditions],
    ) -> Page:
        """Find items of this queue that match, one page at a time."""
        return self._broker.find(
            order=order, limit=limit, cursor=cursor, redacted=redacted, queue=self.name, **conditions
        )

    def count(self, **conditions: Unpack[QueueConditions]) -> int:
        """Count the items of this queue that match."""
        return self._broker.count(queue=self.name, **conditions)

    def groups(self, *, limit: int = 100) -> tuple[Group, ...]:
        """Return the dead letters of this queue grouped by cause of death, the largest group first."""
        return self._broker.groups(self.name, limit=limit)

    def feed(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        kinds: str | Iterable[str] | None = None,
        limit: int = 100,
    ) -> FeedPage:
        """Read the events of this queue, oldest first."""
        return self._broker.feed(after=after, before=before, queue=self.name, kinds=kinds, limit=limit)

    def start_operation(self, verb: str, **options: Unpack[QueueOperationOptions]) -> Operation:
        """Change all items of this queue that match. The options are those of `Broker.start_operation`."""
        return self._broker.start_operation(verb, queue=self.name, **options)

    def plan_operation(self, verb: str, **options: Unpack[QueuePlanConditions]) -> OperationPlan:
        """Return what `start_operation` would do, without doing it."""
        return self._broker.plan_operation(verb, queue=self.name, **options)
