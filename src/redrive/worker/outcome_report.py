"""Report of a settled delivery: the log line if it did not complete, and the hooks of the program.

Hooks run in a separate thread, so a slow hook delays no work.
"""

from __future__ import annotations

import queue
import threading

from redrive.broker.worker_session import Failed, Lost, Outcome, Returned
from redrive.clock import Instant
from redrive.errors import ItemNotFound, LeaseLost, PayloadTooLarge, RedriveError
from redrive.model.failure import Failure, failure_from_exception
from redrive.model.item import Lease, Settled, Status
from redrive.model.redact import redact_title
from redrive.model.redact_rules import NO_RULES, RedactRules
from redrive.model.text import to_rfc3339
from redrive.model.worker_info import TASK_HEADER
from redrive.task.context import Context
from redrive.telemetry import events
from redrive.worker.runner import Job

_log = events.logger("redrive.worker")


def report(lease: Lease, end: Outcome, settled: Settled, rules: RedactRules = NO_RULES) -> None:
    """Log that an item failed, was returned, released or lost, or is dead, with the error and the time of its retry."""
    if not _log.shows_warning:
        return
    failure: Failure | None = getattr(end, "failure", None)
    # A probe of a breaker, or refused with Retry-After: its retry depends on more than a time.
    is_uncounted = isinstance(end, Failed) and settled.counters.failures == lease.failures
    event = (
        "item_dead" if settled.dead_reason is not None
        else "item_returned" if is_uncounted or isinstance(end, Returned)
        else "item_failed" if isinstance(end, Failed)
        else "item_lost" if isinstance(end, Lost)
        else "item_released"
    )  # fmt: skip
    is_due_by_time = settled.status in (Status.FAILED, Status.PENDING) and not is_uncounted
    _log.warning(
        event,
        item=lease.id,
        queue=lease.queue,
        task=lease.headers.get(TASK_HEADER),
        error=None if failure is None else redact_title(failure.title, rules),
        attempts=settled.counters.attempts,
        reason=settled.dead_reason,
        retry_at=_written(settled.ready_at) if is_due_by_time else None,
    )


def _written(at: Instant | None) -> str | None:
    """Return an instant in the format of the log, or None."""
    return None if at is None else f"{to_rfc3339(at)[:19]}Z"


MOST_WAITING = 10_000
"""Hook calls that are queued at most. When the queue is full, the dispatcher waits too."""


class HookCaller:
    """The thread that calls hooks after deliveries, one after the other."""

    def __init__(self) -> None:
        self._calls: queue.Queue[tuple[Job, Failure | None, Settled, bool] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="redrive-hooks", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, job: Job, failure: Failure | None, settled: Settled) -> None:
        """Queue the hooks of a delivery that ended without completion. Call it after the commit."""
        if job.task is not None and job.task.hooks:
            self._calls.put((job, failure, settled, False))

    def completed(self, job: Job, settled: Settled) -> None:
        """Queue the hooks of a completed delivery. Call it after the commit."""
        if job.task is not None and job.task.hooks.has_completed:
            self._calls.put((job, None, settled, True))

    def close(self) -> None:
        """Stop after the queued calls."""
        if self._thread.is_alive():
            self._calls.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            job, failure, settled, is_completed = call
            assert job.task is not None
            try:
                job.task.hooks.call(Context(job.lease, job.task), failure, settled, is_completed=is_completed)
            except BaseException:  # also KeyboardInterrupt: without this thread, a full queue blocks the dispatcher
                _log.exception("hook_failed", item=job.lease.id, queue=job.lease.queue, task=job.task.name)


def instead_of_refused(end: Outcome, settled: Settled | RedriveError) -> Outcome | None:
    """Return the outcome for a delivery whose own outcome was refused: a result is too large, or a queue is full."""
    if not isinstance(settled, RedriveError) or isinstance(settled, LeaseLost | ItemNotFound):
        return None
    if isinstance(end, Failed):
        return Returned(f"its failure was refused: {settled}"[:500])
    # Final if it is too large: a retry would repeat the work, and be refused again.
    return Failed(failure_from_exception(settled, final_types=(PayloadTooLarge,)))
