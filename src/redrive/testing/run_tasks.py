"""Run the tasks of an app in a test, without a worker: in this thread, one after the other, with a moving clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from redrive.broker.worker_session import Completed, Failed, Outcome, Released, WorkerSession, open_worker_session
from redrive.clock import Instant
from redrive.errors import InvalidInput, LeaseLost, RedriveError
from redrive.model.failure import failure_from_exception
from redrive.model.item import Lease, Settled
from redrive.model.worker_info import TASK_HEADER
from redrive.task.app import App
from redrive.task.context import Context
from redrive.task.task import loop_runs
from redrive.testing.drain import MAX_DELIVERIES, Drained
from redrive.testing.fake_clock import FakeClock
from redrive.worker.execution import HandlerSettings, execute_job
from redrive.worker.scheduler import TickPlanner

WORKER = "test"
"""The name of the worker in histories."""


def run_tasks(app: App, *, advance: bool = True, limit: int = MAX_DELIVERIES) -> Drained:
    """Run every task that was put, retries and delays included, until none is left. Hooks are called too.

    A `FakeClock` is moved to the instant at which the next item is due. With another clock, or without `advance`, items
    that wait for a later instant stay.
    """
    if loop_runs():
        raise InvalidInput("an event loop runs in this thread: await asyncio.to_thread(run_tasks, app) instead")
    broker = app.open()
    clock = broker.core.clock
    exchange = open_worker_session(broker, WORKER)
    became: Counter[str] = Counter()
    for _ in range(limit):
        lease, next_at = _take(exchange, app.queues)
        if lease is not None:
            became[_run(app, exchange, lease)] += 1
        elif advance and next_at is not None and next_at > clock.now() and isinstance(clock, FakeClock):
            clock.advance(timedelta(microseconds=next_at - clock.now()))
        else:
            return Drained(**became)
    raise AssertionError(f"the tasks still have something to do after {limit:,} deliveries; does their retry ever end?")


def put_due_ticks(app: App) -> None:
    """Put the periodic tasks that are due, as workers do automatically. The first call starts the schedule."""
    TickPlanner(app, app.open()).step()


def _take(exchange: WorkerSession, queues: Iterable[str]) -> tuple[Lease | None, Instant | None]:
    """Return the lease of the next item, or None and the instant at which one will be due."""
    later: list[Instant] = []
    for queue in queues:
        exchanged = exchange.step([], {queue: 1})
        if exchanged.leases:
            return exchanged.leases[0], None
        if (next_at := exchanged.later.get(queue)) is not None:
            later.append(next_at)
    return None, min(later, default=None)


def _run(app: App, exchange: WorkerSession, lease: Lease) -> str:
    """Run one delivery, and return its outcome: the name of a field of `Drained`."""
    broker = app.open()
    settings = broker.get_queue(lease.queue).settings
    handling = HandlerSettings(settings.error_rules, bool(settings.keep_completed))
    end = execute_job(app, lease, handling, lambda: False, broker.core.clock)
    settled = _settle(exchange, lease, end)
    if isinstance(settled, RedriveError) and not isinstance(settled, LeaseLost):
        # The store refused the outcome of the task, for example one of its follow-ups: the task has failed.
        end = Failed(failure_from_exception(settled, worker=WORKER))
        settled = _settle(exchange, lease, end)
    if isinstance(settled, RedriveError):
        raise settled
    if isinstance(end, Completed):
        return "completed"
    task = app.tasks.get(lease.headers.get(TASK_HEADER, ""))
    if task is not None:
        task.hooks.call(Context(lease, task), getattr(end, "failure", None), settled)
    if settled.dead_reason is not None:
        return "dead"
    return "released" if isinstance(end, Released) else "retried"


def _settle(exchange: WorkerSession, lease: Lease, end: Outcome) -> Settled | RedriveError:
    settled: Any = exchange.step([(lease, end)], {}).settled[0]
    assert isinstance(settled, Settled | RedriveError)
    return settled
