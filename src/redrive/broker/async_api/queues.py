"""Queues, as methods of `AsyncBroker`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Unpack

from redrive.broker.async_api.base import AsyncBrokerBase
from redrive.broker.flows import clearance, queues
from redrive.broker.flows.clearance import ClearResult
from redrive.model.declaration import lists_options
from redrive.model.duration import DurationInput
from redrive.model.queue import Queue, QueueStats
from redrive.model.queue_options import QueueOptions


class AsyncQueueMethods(AsyncBrokerBase):
    """Create, change, list and watch queues."""

    @lists_options(QueueOptions)
    async def create_queue(self, name: str, **settings: Unpack[QueueOptions]) -> Queue:
        """Create a queue. The same settings again are no error."""
        return await self.run_flow(queues.create(self.core, name, settings))

    @lists_options(QueueOptions)
    async def update_queue(self, name: str, *, actor: str | None = None, **settings: Unpack[QueueOptions]) -> Queue:
        """Change settings of a queue. They hold from the next failure on, without a restart."""
        return await self.run_flow(queues.update(self.core, name, settings, actor))

    async def get_queue(self, name: str) -> Queue:
        """A queue with its settings."""
        return await self.run_flow(queues.get(self.core, name))

    async def list_queues(self) -> tuple[Queue, ...]:
        """All queues of the namespace, by name."""
        return await self.run_flow(queues.list_all())

    async def delete_queue(self, name: str, *, confirm: int | None = None, actor: str | None = None) -> int:
        """Remove a queue and what is in it. `confirm` is how many you mean. Returns how many went."""
        return await self.run_flow(queues.delete(self.core, name, confirm, actor))

    async def clear_queue(
        self,
        queue: str | None,
        statuses: str | Iterable[str] = ("pending",),
        *,
        final: bool = False,
        older_than: DurationInput = 0,
        confirm: int | None = None,
        dry_run: bool = False,
        actor: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> ClearResult:
        """Drop the items of a queue, or of all with None, that have one of these statuses. Leased ones stay.

        final: remove them permanently, and not into the archive for keep_dropped. older_than: only items that were put
        so long ago, or that died, were completed or archived then. confirm: how many items you mean; another number is
        refused. dry_run: only count them. progress: called with how many are done.
        """
        flow = clearance.clear_queue(
            self.core,
            queue,
            statuses,
            final=final,
            older_than=older_than,
            confirm=confirm,
            dry_run=dry_run,
            actor=actor,
            progress=progress,
        )
        return await self.run_flow(flow)

    async def pause_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Give no more leases from a queue. Puts, settles and the maintenance go on."""
        return await self.run_flow(queues.set_paused(self.core, name, True, actor))

    async def resume_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Give leases from a queue again."""
        return await self.run_flow(queues.set_paused(self.core, name, False, actor))

    async def stats(self, queue: str) -> QueueStats:
        """How many items of a queue are in each status; the oldest ready item, and totals for rates."""
        return await self.run_flow(queues.stats(queue))

    async def list_stats(self, names: Iterable[str] | None = None) -> tuple[QueueStats, ...]:
        """The same for all queues, by name, in one query; or for those of these names that exist, up to 1,000."""
        return await self.run_flow(queues.list_stats(names))
