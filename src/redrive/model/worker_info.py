"""Workers as they announce themselves."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.clock import Instant
from redrive.model.text import format_instant

TASK_HEADER = "task"
"""The header that names the task which an item is for."""


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker that is alive, as it said itself when it was last heard of."""

    name: str
    """The one under which it leases."""
    host: str
    pid: int
    queues: tuple[str, ...]
    handlers: tuple[str, ...] | None
    """The tasks it knows. None: more than it could name, or whatever comes."""
    versions: Mapping[str, str]
    """Of `redrive`, `python`, and the `app` where it has one."""
    started_at: Instant
    concurrency: int
    """How many items it works on at a time."""
    running: int = 0
    """How many it worked on when it said so."""
    seen_at: Instant | None = None
    """When it said so."""

    def __str__(self) -> str:
        queues = ", ".join(self.queues) or "no queue"
        return (
            f"{self.name}: pid {self.pid} on {self.host} since {format_instant(self.started_at)}, "
            f"{self.running} of {self.concurrency} running; {queues}"
        )


def handlers_by_queue(workers: tuple[WorkerInfo, ...]) -> dict[str, frozenset[str] | None]:
    """The tasks that the workers of each queue know between them; None where some may know any."""
    known: dict[str, frozenset[str] | None] = {}
    for worker in workers:
        for queue in worker.queues:
            before = known.get(queue, frozenset())
            known[queue] = None if before is None or worker.handlers is None else before.union(worker.handlers)
    return known
