"""The scheduler: it puts periodic tasks, each tick once, regardless of the number of workers.

The last tick is registered in the store, under the names of queue and task: two programs may each have a task of one
name. A worker that puts the next tick names the version that it read. The store accepts the first one, with its puts in
the same transaction, and answers the others with a version conflict.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from redrive.broker.background_thread import BackgroundThread
from redrive.broker.broker import Broker
from redrive.broker.flow import Flow, commit_call, run, run_query
from redrive.clock import Instant
from redrive.contract.admin_calls import Register, Registration, VersionConflict
from redrive.contract.item_calls import NewItem, Put
from redrive.contract.queries import ListRegistrations
from redrive.errors import Closed, RedriveError
from redrive.model.duration import MINUTE, SECOND
from redrive.task.app import App
from redrive.task.context import TICK_HEADER
from redrive.task.task import Task
from redrive.telemetry import events

_log = events.logger("redrive.schedule")

SCHEDULE_KIND = "schedule"
"""The kind of registration of ticks."""
LONGEST_PAUSE = MINUTE
"""Longest time between two checks: clocks are set, and tasks are declared."""
RETRY_BACKOFF = SECOND
"""Back-off after the store refused a tick, or failed."""
MAX_ROUNDS = 100
"""Attempts for a tick at most: another worker may register first each time."""


class TickState(msgspec.Struct, frozen=True):
    """The registered state of a periodic task."""

    last: Instant
    """The newest tick that was handled: put, or skipped because it was missed."""
    ticks: str
    """The schedule in words, of the program that was started last."""


class TickPlanner:
    """The periodic tasks of an app, those of some queues or all. For one thread."""

    def __init__(self, app: App, broker: Broker, queues: Collection[str] | None = None) -> None:
        self._core = broker.core
        self._tasks = [
            task
            for task in app.tasks.values()
            if task.periodic is not None and (queues is None or task.queue.name in queues)
        ]
        self._announced: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """True if there is no periodic task."""
        return not self._tasks

    def step(self) -> Instant | None:
        """Put what is due. Returns the instant of the next tick, or None if there is none."""
        nexts = [self._step(task) for task in self._tasks]
        return min((each for each in nexts if each is not None), default=None)

    def _step(self, task: Task[..., Any]) -> Instant | None:
        """Put the due ticks of one task. A failure is logged, and does not affect other tasks."""
        try:
            return run(self._core, self._put_tick(task))
        except Closed:
            raise
        except RedriveError as error:
            _log.warning("periodic_put_refused", task=task.name, queue=task.queue.name, error=str(error))
            return Instant(self._core.clock.now() + RETRY_BACKOFF)

    def _put_tick(self, task: Task[..., Any]) -> Flow[Instant | None]:
        """Put the ticks that are due, unless another process did. Returns the instant to check again."""
        periodic = task.periodic
        assert periodic is not None
        name = f"{task.queue.name}/{task.name}"
        found = yield from run_query(ListRegistrations(SCHEDULE_KIND, name))
        present: Registration | None = found[0] if found else None
        for _ in range(MAX_ROUNDS):
            seen = _read(present)
            due: list[Instant] = []
            now = self._core.clock.now()
            if seen is None or (seen.ticks != str(periodic.ticks) and task.name not in self._announced):
                # A new task, or a changed schedule: it starts now, and no tick was missed.
                wanted = TickState(now, str(periodic.ticks))
            elif seen.ticks != str(periodic.ticks):
                # A program that was started later has another schedule.
                return Instant(now + LONGEST_PAUSE)
            else:
                newest, due = periodic.due(seen.last, now)
                wanted = TickState(newest, seen.ticks)
            if wanted == seen:
                self._announced.add(task.name)
                return periodic.ticks.next_tick(max(seen.last, now))
            value = msgspec.json.encode(wanted)
            puts = (Put(task.queue.name, tuple(_item(task, tick) for tick in due)),) if due else ()
            version = 0 if present is None else present.version
            registered = yield from commit_call(Register(SCHEDULE_KIND, name, value, version=version, puts=puts))
            present = registered.present if isinstance(registered, VersionConflict) else registered
            if isinstance(registered, Registration):
                self._announced.add(task.name)
                return periodic.ticks.next_tick(max(wanted.last, now))
        return Instant(self._core.clock.now() + RETRY_BACKOFF)


class Scheduler(BackgroundThread):
    """The thread that puts periodic tasks. An error is logged, and the next check follows after RETRY_BACKOFF."""

    def __init__(self, app: App, broker: Broker, queues: Collection[str] | None = None) -> None:
        super().__init__("schedule")
        self._schedule = TickPlanner(app, broker, queues)
        self._clock = broker.core.clock

    def start(self) -> None:
        """Start, if there is a periodic task."""
        if not self._schedule.is_empty:
            super().start()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                next_at = self._schedule.step()
            except Closed:
                return
            except Exception:
                _log.exception("scheduler_failed")
                next_at = Instant(self._clock.now() + RETRY_BACKOFF)
            latest = Instant(self._clock.now() + LONGEST_PAUSE)
            self._clock.wait(self._end, latest if next_at is None else min(next_at, latest))


def _read(present: Registration | None) -> TickState | None:
    """Return the registered state, or None if there is none, or it is in an unknown format."""
    try:
        return None if present is None else msgspec.json.decode(present.value, type=TickState)
    except ValueError:  # also for texts that are not UTF-8
        return None


def _item(task: Task[..., Any], tick: Instant) -> NewItem:
    item = task.item().item
    return msgspec.structs.replace(item, headers={**(item.headers or {}), TICK_HEADER: str(tick)})
