# Generated from broker/async_api/queues.py by tools/blocking_api.py; edit that file.
"""Queues, as methods of `Broker`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redrive.broker.api.base import BrokerBase
from redrive.broker.flows import queues
from redrive.model.queue import Queue, QueueStats


class QueueMethods(BrokerBase):
    """Create, change, list and watch queues."""

    def create_queue(self, name: str, **settings: Any) -> Queue:
        """Create a queue. Settings: docs/reference/settings.md. The same settings again are no error."""
        return self.run_flow(queues.create(self.core, name, settings))

    def update_queue(self, name: str, *, actor: str | None = None, **settings: Any) -> Queue:
        """Change some settings. They hold from the next failure on, without a restart."""
        return self.run_flow(queues.update(self.core, name, settings, actor))

    def get_queue(self, name: str) -> Queue:
        """A queue with its settings."""
        return self.run_flow(queues.get(self.core, name))

    def list_queues(self) -> tuple[Queue, ...]:
        """All queues of the namespace, by name."""
        return self.run_flow(queues.list_all())

    def delete_queue(self, name: str, *, confirm: int | None = None, actor: str | None = None) -> int:
        """Remove a queue and the items in it; `confirm` is how many you mean. Returns how many went."""
        return self.run_flow(queues.delete(self.core, name, confirm, actor))

    def pause_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Give no more leases from this queue. Puts, settles and the maintenance go on."""
        return self.run_flow(queues.set_paused(self.core, name, True, actor))

    def resume_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Give leases again."""
        return self.run_flow(queues.set_paused(self.core, name, False, actor))

    def stats(self, queue: str) -> QueueStats:
        """Counts by status, the oldest ready item, and totals for rates."""
        return self.run_flow(queues.stats(queue))

    def list_stats(self, names: Iterable[str] | None = None) -> tuple[QueueStats, ...]:
        """The same for all queues, by name, in one query; or for those of these names that exist, up to 1,000."""
        return self.run_flow(queues.list_stats(names))
