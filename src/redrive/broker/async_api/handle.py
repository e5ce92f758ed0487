"""A handle on one queue of an `AsyncBroker`."""

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
    from redrive.broker.async_broker import AsyncBroker


class AsyncQueueHandle:
    """A queue of an `AsyncBroker`. The methods are those of the broker, without the name."""

    def __init__(self, broker: AsyncBroker, name: str) -> None:
        self._broker = broker
        self.name = name

    async def put(self, value: Any, *, transaction: Any = None, **options: Unpack[ItemOptions]) -> Receipt:
        """Put one item. The options are those of `AsyncBroker.put`."""
        return await self._broker.put(self.name, value, transaction=transaction, **options)

    async def put_many(self, values: Iterable[Any], *, transaction: Any = None) -> tuple[Receipt, ...]:
        """Put all values, or none."""
        return await self._broker.put_many(self.name, values, transaction=transaction)

    async def lease(
        self,
        limit: int = 1,
        *,
        wait: DurationInput = 0,
        lease_timeout: DurationInput | None = None,
        worker: str | None = None,
    ) -> list[Lease]:
        """Lease up to `limit` items, in order; wait up to `wait` for the first one."""
        return await self._broker.lease(self.name, limit, wait=wait, lease_timeout=lease_timeout, worker=worker)

    async def get(self) -> Queue:
        """Return the queue with its settings."""
        return await self._broker.get_queue(self.name)

    async def stats(self) -> QueueStats:
        """Return counts by status, the oldest ready item, and totals for rates."""
        return await self._broker.stats(self.name)

    async def find_by_key(self, keys: Iterable[str], *, redacted: bool = True) -> list[Item | None]:
        """Find the items that puts under these idempotency keys would be duplicates of; None if no such item exists."""
        return await self._broker.find_by_key(self.name, keys, redacted=redacted)

    async def find(
        self,
        *,
        order: str = "newest",
        limit: int = 50,
        cursor: str | None = None,
        redacted: bool = True,
        **conditions: Unpack[QueueConditions],
    ) -> Page:
        """Find items of this queue that match, one page at a time."""
        return await self._broker.find(
            order=order, limit=limit, cursor=cursor, redacted=redacted, queue=self.name, **conditions
        )

    async def count(self, **conditions: Unpack[QueueConditions]) -> int:
        """Count the items of this queue that match."""
        return await self._broker.count(queue=self.name, **conditions)

    async def groups(self, *, limit: int = 100) -> tuple[Group, ...]:
        """Return the dead letters of this queue grouped by cause of death, the largest group first."""
        return await self._broker.groups(self.name, limit=limit)

    async def feed(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        kinds: str | Iterable[str] | None = None,
        limit: int = 100,
    ) -> FeedPage:
        """Read the events of this queue, oldest first."""
        return await self._broker.feed(after=after, before=before, queue=self.name, kinds=kinds, limit=limit)

    async def start_operation(self, verb: str, **options: Unpack[QueueOperationOptions]) -> Operation:
        """Change all items of this queue that match. The options are those of `AsyncBroker.start_operation`."""
        return await self._broker.start_operation(verb, queue=self.name, **options)

    async def plan_operation(self, verb: str, **options: Unpack[QueuePlanConditions]) -> OperationPlan:
        """Return what `start_operation` would do, without doing it."""
        return await self._broker.plan_operation(verb, queue=self.name, **options)
