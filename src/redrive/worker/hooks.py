"""Calls the hooks of the program, in a thread of its own: a slow one keeps no work waiting."""

from __future__ import annotations

import queue
import threading

from redrive.model.failure import Failure
from redrive.model.item import Settled
from redrive.task.context import Context
from redrive.telemetry import events
from redrive.worker.runner import Job

_log = events.logger("redrive.worker")
MOST_WAITING = 10_000
"""Calls that may wait for the hooks before them. Beyond that, ends of deliveries wait too."""


class HookCaller:
    """Tells hooks what became of deliveries that did not complete, one after the other."""

    def __init__(self) -> None:
        self._calls: queue.Queue[tuple[Job, Failure | None, Settled] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="redrive-hooks", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def call(self, job: Job, failure: Failure | None, settled: Settled) -> None:
        """A delivery ended otherwise than by completion, and that is committed."""
        if job.task is not None and job.task.hooks:
            self._calls.put((job, failure, settled))

    def close(self) -> None:
        """Stop, after those that wait."""
        if self._thread.is_alive():
            self._calls.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            job, failure, settled = call
            assert job.task is not None
            try:
                job.task.hooks.call(Context(job.lease, job.task), failure, settled)
            except BaseException:  # KeyboardInterrupt, say: without this thread, ends of deliveries would wait for ever
                _log.exception("hook_failed", item=job.lease.id, queue=job.lease.queue, task=job.task.name)
