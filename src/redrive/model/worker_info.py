"""The registration of workers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.clock import Instant
from redrive.model.text import format_instant

TASK_HEADER = "task"
"""The header with the name of an item's task."""


class WorkerInfo(msgspec.Struct, frozen=True):
    """A live worker, as of its last report."""

    name: str
    """The name under which it leases."""
    host: str
    pid: int
    queues: tuple[str, ...]
    handlers: tuple[str, ...] | None
    """The tasks that it has handlers for. None: any, or too many to list."""
    versions: Mapping[str, str]
    """The versions of `redrive`, `python`, and the `app` if it has one."""
    started_at: Instant
    concurrency: int
    """The maximum number of items that it works on concurrently."""
    running: int = 0
    """The number of items that it worked on at the time of the report."""
    seen_at: Instant | None = None
    """The instant of the report."""

    def __str__(self) -> str:
        queues = ", ".join(self.queues) or "no queue"
        return (
            f"{self.name}: pid {self.pid} on {self.host} since {format_instant(self.started_at)}, "
            f"{self.running} of {self.concurrency} running; {queues}"
        )


def handlers_by_queue(workers: tuple[WorkerInfo, ...]) -> dict[str, frozenset[str] | None]:
    """Return the tasks that the workers of each queue handle together; None if one of them may handle any."""
    known: dict[str, frozenset[str] | None] = {}
    for worker in workers:
        for queue in worker.queues:
            before = known.get(queue, frozenset())
            known[queue] = None if before is None or worker.handlers is None else before.union(worker.handlers)
    return known
