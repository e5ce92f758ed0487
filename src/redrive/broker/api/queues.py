# Generated from broker/async_api/queues.py by tools/blocking_api.py; edit that file.
"""Queues, as methods of `Broker`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Unpack

from redrive.broker.api.base import BrokerBase
from redrive.broker.flows import clearance, queues
from redrive.broker.flows.clearance import ClearResult
from redrive.model.declaration import lists_options
from redrive.model.duration import DurationInput
from redrive.model.queue import Queue, QueueStats
from redrive.model.queue_options import QueueOptions


class QueueMethods(BrokerBase):
    """Methods to create, change, list and monitor queues."""

    @lists_options(QueueOptions)
    def create_queue(self, name: str, **settings: Unpack[QueueOptions]) -> Queue:
        """Create a queue. Idempotent with the same settings."""
        return self.run_flow(queues.create(self.core, name, settings))

    @lists_options(QueueOptions)
    def update_queue(self, name: str, *, actor: str | None = None, **settings: Unpack[QueueOptions]) -> Queue:
        """Change settings of a queue. They apply from the next failure on, without a restart."""
        return self.run_flow(queues.update(self.core, name, settings, actor))

    def get_queue(self, name: str) -> Queue:
        """Return a queue with its settings."""
        return self.run_flow(queues.get(self.core, name))

    def list_queues(self) -> tuple[Queue, ...]:
        """List all queues of the namespace, by name."""
        return self.run_flow(queues.list_all())

    def delete_queue(self, name: str, *, confirm: int | None = None, actor: str | None = None) -> int:
        """Delete a queue and its items. `confirm` is the expected number of items. Returns how many were deleted."""
        return self.run_flow(queues.delete(self.core, name, confirm, actor))

    def clear_queue(
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
        """Drop the items of a queue, or of all queues with None, that have one of these statuses. Leased ones stay.

        final: delete them permanently, instead of into the archive for keep_dropped. older_than: only items that were
        put, died, were completed or were archived at least that long ago. confirm: the expected number of items;
        another number is refused. dry_run: only count them. progress: called with the number of items done.
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
        return self.run_flow(flow)

    def pause_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Pause a queue: it gives no more leases. Puts, settles and the maintenance continue."""
        return self.run_flow(queues.set_paused(self.core, name, True, actor))

    def resume_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Resume a paused queue: it gives leases again."""
        return self.run_flow(queues.set_paused(self.core, name, False, actor))

    def stats(self, queue: str) -> QueueStats:
        """Count the items of a queue by status; also return the oldest ready item, and totals for rates."""
        return self.run_flow(queues.stats(queue))

    def list_stats(self, names: Iterable[str] | None = None) -> tuple[QueueStats, ...]:
        """Return the `stats` of all queues, by name, in one query; or of up to 1,000 named ones, if they exist."""
        return self.run_flow(queues.list_stats(names))
