"""`GroupWorker`: a `LoopGroup` as the worker of `redrive work`: heartbeat, registration, metrics, in-flight log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from redrive.clock import SystemClock
from redrive.errors import RedriveError
from redrive.mailbox.message_loop import WAIT_SLICE_SECONDS, MessageLoop
from redrive.telemetry import events
from redrive.telemetry.metrics import RUNNING, SLOTS, Sample
from redrive.worker.crash_recovery import return_leases
from redrive.worker.heartbeat import Heartbeat, WorkerRegistration
from redrive.worker.in_flight import InFlightLog, WorkerExit
from redrive.worker.ipc import WorkerLaunch
from redrive.worker.process_exit import Exit
from redrive.worker.worker import worker_name

if TYPE_CHECKING:
    from redrive.mailbox.loop_group import LoopGroup

STOP_SLICE_SECONDS = 0.1
"""The longest time until a second stop is noticed while loops finish."""
RECEIVE_GRACE_SECONDS = 2 * WAIT_SLICE_SECONDS
"""Seconds to wait for loops that receive, after the wait for handlers has ended."""
_Loops = Sequence[MessageLoop[Any, Any]]
_log = events.logger("redrive.worker")


class GroupWorker:
    """One run of a group. Each loop has a slot of the in-flight log, and receives under the worker name of the log."""

    def __init__(self, group: LoopGroup, launch: WorkerLaunch, in_flight_log: InFlightLog | None) -> None:
        self._group = group
        self._timeout = launch.shutdown_timeout
        self._with_metrics = launch.metrics_port is not None
        self._in_flight_log = in_flight_log
        self.name = worker_name() if in_flight_log is None else in_flight_log.worker
        self.has_settled_all = False
        self._is_stopping = self._at_once = False
        for slot, loop in enumerate(group.loops):
            loop._join_worker(self.name, in_flight_log, slot)
        group._before_terminate = self._record_hung

    def run(self, *, until_idle: bool = False) -> None:
        """Run the loops until `stop`. Raises RuntimeError after the first error of a loop, once all have stopped: it is
        no mistake of the program, as errors of `prepare` are, and the supervisor starts another worker."""
        group, loops = self._group, self._group.loops
        group.prepare()
        _log.info(
            "worker_started",
            worker=self.name,
            store=", ".join(dict.fromkeys(broker.core.store.name for broker in group.brokers)),
            queues=_mailboxes(loops),
            slots=len(loops),
        )
        try:
            with self._reported():
                try:
                    group._run(self._finish)
                except RedriveError as error:
                    if error in group._errors:  # of a loop that has worked: the next process may work too
                        raise RuntimeError(f"a loop of the group failed: {error}") from error
                    raise
                finally:
                    self.has_settled_all = self._return_held()
        finally:
            _log.info(
                "worker_stopped",
                worker=self.name,
                completed=sum(loop._completed for loop in loops),
                not_completed=sum(loop._not_completed for loop in loops),
            )

    def stop(self, *, at_once: bool = False) -> None:
        """Stop receiving, finish the messages being handled, and end. A second call, or `at_once`, ends the wait."""
        self._at_once = at_once or self._is_stopping
        self._is_stopping = True
        self._group._end.set()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Report the worker to its supervisor, to the stores, and in the metrics."""
        with ExitStack() as stack:
            if self._in_flight_log is not None:
                heartbeat = Heartbeat(self._in_flight_log.beat)
                stack.callback(heartbeat.close)
                heartbeat.start()
            for broker in self._group.brokers:
                loops = [loop for loop in self._group.loops if loop.mailbox._core.place == broker.core.place]
                registration = WorkerRegistration(
                    broker, self.name, _mailboxes(loops), None, len(loops), running=partial(_handling, loops)
                )
                stack.callback(registration.close)
                registration.start()
            if self._with_metrics:
                metrics, gauges = self._group.brokers[0].metrics, _gauges(self._group.loops)
                stack.callback(metrics.unwatch, gauges)
                metrics.watch(gauges)
            yield

    def _finish(self) -> None:
        """Wait until loops have finished their messages, until the timeout or a second stop; then for receives."""
        until = time.monotonic() + self._timeout
        while not self._group.shutdown(timeout=STOP_SLICE_SECONDS):
            if self._at_once or time.monotonic() >= until:
                break
        until = time.monotonic() + RECEIVE_GRACE_SECONDS
        while self._is_receiving() and time.monotonic() < until:
            self._group.shutdown(timeout=STOP_SLICE_SECONDS)

    def _is_receiving(self) -> bool:
        return any(loop.running and not loop._is_handling for loop in self._group.loops)

    def _return_held(self) -> bool:
        """Release the messages that loops still hold, uncounted. Returns whether none is left."""
        if not any(loop.running or loop._may_hold_more for loop in self._group.loops):
            return True
        returned = [return_leases(broker, self.name) for broker in self._group.brokers]
        return all(returned) and not self._is_receiving()

    def _record_hung(self, hung: Sequence[Any]) -> None:
        """Record why the watchdog ends the process. Only messages of the hung loops are charged with a loss."""
        log = self._in_flight_log
        if log is None:
            return
        for slot, loop in enumerate(self._group.loops):
            if loop not in hung and loop._is_handling:
                log.end(slot)
        because = f"its loop made no progress for {hung[0].heartbeat.elapsed():.0f} s"
        log.write_exit(WorkerExit(Exit(None, None, 0, SystemClock().now()), because))


def _mailboxes(loops: _Loops) -> tuple[str, ...]:
    return tuple(dict.fromkeys(loop.mailbox.name for loop in loops))


def _handling(loops: _Loops) -> int:
    return sum(loop._is_handling for loop in loops)


def _gauges(loops: _Loops) -> Callable[[], list[Sample]]:
    return lambda: [Sample(RUNNING, (), _handling(loops)), Sample(SLOTS, (), len(loops))]
