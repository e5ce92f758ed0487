"""Queues, as methods of `AsyncBroker`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redrive.broker.async_api.base import AsyncBrokerBase
from redrive.broker.flows import queues
from redrive.model.queue import Queue, QueueStats


class AsyncQueueMethods(AsyncBrokerBase):
    """Create, change, list and watch queues."""

    async def create_queue(self, name: str, **settings: Any) -> Queue:
        """Create a queue. Settings: docs/reference/settings.md. The same settings again are no error."""
        return await self.run_flow(queues.create(self.core, name, settings))

    async def update_queue(self, name: str, *, actor: str | None = None, **settings: Any) -> Queue:
        """Change some settings. They hold from the next failure on, without a restart."""
        return await self.run_flow(queues.update(self.core, name, settings, actor))

    async def get_queue(self, name: str) -> Queue:
        """A queue with its settings."""
        return await self.run_flow(queues.get(self.core, name))

    async def list_queues(self) -> tuple[Queue, ...]:
        """All queues of the namespace, by name."""
        return await self.run_flow(queues.list_all())

    async def delete_queue(self, name: str, *, confirm: int | None = None, actor: str | None = None) -> int:
        """Remove a queue and the items in it; `confirm` is how many you mean. Returns how many went."""
        return await self.run_flow(queues.delete(self.core, name, confirm, actor))

    async def pause_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Give no more leases from this queue. Puts, settles and the maintenance go on."""
        return await self.run_flow(queues.set_paused(self.core, name, True, actor))

    async def resume_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Give leases again."""
        return await self.run_flow(queues.set_paused(self.core, name, False, actor))

    async def stats(self, queue: str) -> QueueStats:
        """Counts by status, the oldest ready item, and totals for rates."""
        return await self.run_flow(queues.stats(queue))

    async def list_stats(self, names: Iterable[str] | None = None) -> tuple[QueueStats, ...]:
        """The same for all queues, by name, in one query; or for those of these names that exist, up to 1,000."""
        return await self.run_flow(queues.list_stats(names))
