"""Queues, as methods of `AsyncBroker`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from redrive.broker.async_api.base import AsyncBrokerBase
from redrive.broker.flows import clearance, queues
from redrive.broker.flows.clearance import ClearResult
from redrive.model.duration import DurationInput
from redrive.model.queue import Queue, QueueStats


class AsyncQueueMethods(AsyncBrokerBase):
    """Create, change, list and watch queues."""

    async def create_queue(self, name: str, **settings: Any) -> Queue:
        """Create a queue. Settings: docs/reference/settings.md. The same settings again are no error."""
        return await self._run(queues.create(self._core, name, settings))

    async def update_queue(self, name: str, *, actor: str | None = None, **settings: Any) -> Queue:
        """Change some settings. They hold from the next failure on, without a restart."""
        return await self._run(queues.update(self._core, name, settings, actor))

    async def get_queue(self, name: str) -> Queue:
        """A queue with its settings."""
        return await self._run(queues.get(self._core, name))

    async def list_queues(self) -> tuple[Queue, ...]:
        """All queues of the namespace, by name."""
        return await self._run(queues.list_all())

    async def delete_queue(self, name: str, *, confirm: int | None = None, actor: str | None = None) -> int:
        """Remove a queue and the items in it; `confirm` is how many you mean. Returns how many went."""
        return await self._run(queues.delete(self._core, name, confirm, actor))

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
            self._core,
            queue,
            statuses,
            final=final,
            older_than=older_than,
            confirm=confirm,
            dry_run=dry_run,
            actor=actor,
            progress=progress,
        )
        return await self._run(flow)

    async def pause_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Give no more leases from this queue. Puts, settles and the maintenance go on."""
        return await self._run(queues.set_paused(self._core, name, True, actor))

    async def resume_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Give leases again."""
        return await self._run(queues.set_paused(self._core, name, False, actor))

    async def stats(self, queue: str) -> QueueStats:
        """Counts by status, the oldest ready item, and totals for rates."""
        return await self._run(queues.stats(queue))

    async def list_stats(self, names: Iterable[str] | None = None) -> tuple[QueueStats, ...]:
        """The same for all queues, by name, in one query; or for those of these names that exist, up to 1,000."""
        return await self._run(queues.list_stats(names))
