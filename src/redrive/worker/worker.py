"""A worker: it leases items from queues, runs their tasks, and settles their outcomes."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Sequence
from types import TracebackType

from redrive.broker.broker import Broker
from redrive.broker.worker_session import Completed, Outcome, Returned, outcome_name
from redrive.clock import Instant
from redrive.errors import InvalidInput, LeaseLost, RedriveError, short_repr
from redrive.model.duration import SECOND, DurationInput, parse_duration
from redrive.model.item import Settled
from redrive.model.text import suggest
from redrive.task.app import App
from redrive.telemetry import events
from redrive.telemetry.metrics import BUFFERED, HANDLER_SECONDS, RUNNING, SLOTS, Metrics, Sample
from redrive.worker.dispatcher import Dispatcher, Ended
from redrive.worker.heartbeat import Heartbeat, WorkerRegistration
from redrive.worker.in_flight import InFlightLog
from redrive.worker.lease_extender import LeaseExtender
from redrive.worker.outcome_report import HookCaller, report
from redrive.worker.process_runner import ProcessRunner
from redrive.worker.runner import Job, Runner
from redrive.worker.scheduler import Scheduler
from redrive.worker.thread_runner import ThreadRunner

DEFAULT_CONCURRENCY = 8
DEFAULT_SHUTDOWN_TIMEOUT = 30 * SECOND
_log = events.logger("redrive.worker")


class Worker:
    """A worker that runs the tasks of an app.

    queues: their names; every queue that the app declares by default.
    concurrency: number of functions that run concurrently in threads, and of coroutines on the event loop.
    processes: number of child processes to use instead, each of which runs one item at a time. A handler that ends its
    process then affects no other item. Needs `spec`, by which a process imports the app: "module:attribute".
    memory_limit: bytes that each of them can have; max_items_per_child: number of items after which one is replaced.
    metrics: whether the broker's metrics include this worker.
    runner: a runner of items of any kind, instead of the tasks of the app, `concurrency` of them concurrently.
    shutdown_timeout: time that `stop` waits for what runs. What still runs then is returned, and not counted.
    """

    def __init__(
        self,
        app: App,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        processes: int = 0,
        spec: str | None = None,
        memory_limit: int | None = None,
        max_items_per_child: int | None = None,
        shutdown_timeout: DurationInput | None = None,
        broker: Broker | None = None,
        name: str | None = None,
        in_flight_log: InFlightLog | None = None,
        metrics: bool = False,
        runner: Runner | None = None,
    ) -> None:
        if not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidInput(f"concurrency is a whole number of 1 or more, not {short_repr(concurrency, 40)}")
        if not isinstance(processes, int) or processes < 0:
            raise InvalidInput(f"processes is a whole number of 0 or more, not {short_repr(processes, 40)}")
        if processes and spec is None:
            raise InvalidInput("a process finds the app by its name: give spec='module:attribute' beside processes=")
        self.app = app
        self.broker = broker or app.broker
        self._store = app.store_url if broker is None else broker.core.store.name
        self.name = name or worker_name()
        self.queues = tuple(queues) if queues is not None else tuple(app.queues)
        if not self.queues:
            raise InvalidInput("there is no queue to work on; declare one with app.queue(…), or name some")
        self._timeout = (
            DEFAULT_SHUTDOWN_TIMEOUT if shutdown_timeout is None else parse_duration(shutdown_timeout, "timeout")
        )
        self._in_flight_log = in_flight_log
        self._is_stopping = threading.Event()
        self._at_once = self._is_patient = False
        self.is_finishing = False
        """True if it leases nothing more, and waits for what runs."""
        self._runs_tasks = runner is None
        self._runner: Runner
        self._slots = processes or concurrency
        if runner is not None:
            self._runner = runner
        elif processes:
            self._runner = ProcessRunner(
                spec or "",
                processes,
                self._is_stopping.is_set,
                in_flight_log,
                url=app._url,
                memory_limit=memory_limit,
                max_items_per_child=max_items_per_child,
            )
        else:
            clock = self.broker.core.clock
            self._runner = ThreadRunner(app, concurrency, self._is_stopping.is_set, in_flight_log, clock)
        self.has_settled_all = False
        """True if it has ended and holds no leases. The store may not have accepted what it returned."""
        self._hooks = HookCaller()
        self._metrics: Metrics | None = self.broker.metrics if metrics else None
        self._thread: threading.Thread | None = None
        self._completed = self._not_completed = 0

    def run(self, *, until_idle: bool = False) -> None:
        """Work in this thread until `stop`, or with `until_idle`, until there is nothing to do.

        Raises the refusal of a queue at the end, if it is idle because of that.
        """
        app, broker = self.app, self.broker
        app.check()
        app.create_queues(broker)
        self._check_work()
        dispatcher = self._dispatcher = Dispatcher(app, broker, self.queues, self._runner, self.name, self._on_settled)
        watched = lambda: self._watched(dispatcher)  # noqa: E731
        if self._metrics is not None:
            self._metrics.watch(watched)
        beat = (lambda: None) if self._in_flight_log is None else self._in_flight_log.beat
        heartbeat = Heartbeat(beat)
        keeper = LeaseExtender(
            dispatcher.session, self._runner, dispatcher.jobs, lambda: dispatcher.settings.shortest_lease
        )
        presence = WorkerRegistration(
            broker,
            self.name,
            self.queues,
            tuple(app.tasks) if self._runs_tasks else None,
            self._slots,
            running=lambda: len(self._runner.running()),
        )
        schedule = Scheduler(app, broker, self.queues)
        _log.info(
            "worker_started",
            worker=self.name,
            store=self._store,
            queues=self.queues,
            tasks=tuple(app.tasks) or None,
            slots=self._slots,
        )
        try:
            for part in (heartbeat, keeper, presence, schedule, self._hooks):
                part.start()
            if not self._is_stopping.is_set():
                dispatcher.run(until_idle=until_idle)
            self._finish(dispatcher)
        except BaseException:
            self._runner.close(jobs_too=True)
            raise
        finally:
            if self._metrics is not None:
                self._metrics.unwatch(watched)
            for part in (schedule, presence, keeper, self._hooks, heartbeat):
                part.close()
            _log.info("worker_stopped", worker=self.name, completed=self._completed, not_completed=self._not_completed)
        if until_idle and not self._is_stopping.is_set():
            for refusal in dispatcher.refused.values():
                raise refusal

    def stop(self, *, at_once: bool = False) -> None:
        """Lease nothing more, finish what runs, and end. From any thread. A second call, or `at_once`: do not wait."""
        self._at_once = at_once or (self._is_stopping.is_set() and not self._is_patient)
        self._is_patient = False
        self._begin_to_stop()

    def drain(self) -> None:
        """Lease nothing more, finish what runs without a timeout, and end. A later `stop` starts the timeout."""
        self._is_patient = not self._is_stopping.is_set()
        self._begin_to_stop()

    def _begin_to_stop(self) -> None:
        self._is_stopping.set()
        if (dispatcher := getattr(self, "_dispatcher", None)) is not None:
            dispatcher.stop()

    def _check_work(self) -> None:
        """Raise InvalidInput if the app has no task, or a queue is neither declared nor in the store."""
        if not self._runs_tasks:
            return
        if not self.app.tasks:
            raise InvalidInput(
                "the app has no task, and every item would die of that; declare some with @queue.task, and see that "
                "their modules are imported where the app is"
            )
        if set(self.queues) <= self.app.queues.keys():
            return
        known = {queue.name for queue in self.broker.list_queues()}
        for name in self.queues:
            if name not in known:
                declared = ", ".join(self.app.queues) or "none"
                raise InvalidInput(
                    f"there is no queue '{name}'{suggest(name, known, {})}; the app declares {declared}, and the store "
                    f"has none of that name either"
                )

    def _finish(self, dispatcher: Dispatcher) -> None:
        dispatcher.stop()
        self.is_finishing = True
        session = dispatcher.session
        until: Instant | None = None
        # In short waits, so that a second `stop` counts.
        while not self._at_once and (until is None or session.now < until):
            if until is None and not self._is_patient:
                until = Instant(session.now + self._timeout)
            soon = Instant(session.now + SECOND)
            if dispatcher.finish(soon if until is None else min(until, soon)):
                break
        finished = dispatcher.finish(session.now)
        self._runner.close(jobs_too=not finished)
        self.has_settled_all = finished or dispatcher.return_running("its worker was stopped while it ran")

    def _on_settled(self, ended: Sequence[Ended]) -> None:
        """Record settled outcomes in metrics and log, and call the hooks."""
        with events.together():
            for job, end, settled in ended:
                self._record(job, end, settled)
        for job, end, settled in ended:
            if isinstance(settled, RedriveError) or isinstance(end, Returned):
                continue
            if isinstance(end, Completed):
                self._hooks.completed(job, settled)
            else:
                self._hooks.call(job, getattr(end, "failure", None), settled)

    def _record(self, job: Job, end: Outcome, settled: Settled | RedriveError) -> None:
        """Count an outcome, and log it unless the item completed or was returned."""
        if self._metrics is not None and job.began_at is not None:
            labels = (job.lease.queue, "" if job.task is None else job.task.name, outcome_name(end))
            self._metrics.observe(HANDLER_SECONDS, labels, job.duration)
        if isinstance(settled, RedriveError):
            if not (job.lease_lost and isinstance(end, Returned)):  # it was ended for that
                self._refused(job, settled)
        elif isinstance(end, Completed):
            self._completed += 1
        elif not isinstance(end, Returned):
            self._not_completed += 1
            report(job.lease, end, settled, job.handling.redact)

    def _refused(self, job: Job, refusal: RedriveError) -> None:
        if not job.outcome_unknown:
            _log.warning(
                "outcome_refused",
                item=job.lease.id,
                queue=job.lease.queue,
                task=job.task and job.task.name,
                error=str(refusal),
                lease_lost=isinstance(refusal, LeaseLost),
            )

    def _watched(self, dispatcher: Dispatcher) -> list[Sample]:
        """Return the current values of the gauges of this worker."""
        running, in_hand = len(self._runner.running()), len(dispatcher.jobs())
        samples = [(RUNNING, running), (BUFFERED, max(0, in_hand - running)), (SLOTS, self._runner.slots)]
        return [Sample(metric, (), value) for metric, value in samples]

    def __enter__(self) -> Worker:
        self._thread = threading.Thread(target=self.run, name="redrive-worker", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_stopping.is_set():  # a second call would not wait
            self.stop()
        assert self._thread is not None
        self._thread.join()


def worker_name() -> str:
    """Return a name that no other worker has: host, process id, and a random part."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
