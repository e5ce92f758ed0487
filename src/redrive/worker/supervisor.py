"""The parent process of a worker: forwards signals, watches it, restarts it, and has its orphans settled.

The worker is in a separate process group, so everything it started ends with it, and Ctrl-C in a terminal reaches
only the supervisor. The supervisor does no work and imports no app, so it survives the app. What a dead worker left is
settled by the next one, which has the app, or by a process started for that.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

import msgspec

from redrive.telemetry import events
from redrive.worker.app_loader import SourceWatcher
from redrive.worker.in_flight import InFlightLog, WorkerExit
from redrive.worker.ipc import Channel, Stop, ToWorker, WorkerLaunch
from redrive.worker.process_exit import Exit, exit_of
from redrive.worker.program import RunnableWorker
from redrive.worker.signal_queue import SignalQueue
from redrive.worker.worker import worker_name
from redrive.worker.worker_process import (
    EXIT_BAD_APP,
    EXIT_NO_QUEUE,
    EXIT_UNAUTHORIZED,
    UNAVAILABLE,
    opened_program,
    serving_metrics,
)

POLL_SECONDS = 0.25
"""Seconds between two checks of the worker, at most."""
WATCHDOG_SECONDS = 30.0
"""Seconds without a heartbeat after which a worker is killed."""
KILL_GRACE_SECONDS = 5.0
"""Seconds to wait for a worker that stops, beyond its own deadline."""
SECOND_SIGNAL_WINDOW_SECONDS = 0.5
"""Seconds within which a second signal is the same one: some programs signal the process and its group."""
RELOAD_SECONDS = 3.0
"""Seconds, plus the grace period, for a reloaded worker to finish what it runs; the rest is returned, not charged."""
SETTLING_SECONDS = 10.0
"""Seconds for the last process to settle what a worker left."""
RESTART_PAUSES = (0.0, 0.2, 1.0, 5.0, 15.0, 30.0)
"""Seconds before a dead worker is replaced, by the number of deaths in a row without any work done."""
MIN_SLOTS = 1_000
"""Slots of an in-flight log at least: a program may have more parts than the launch says, as a group has loops."""
STABLE_AFTER_SECONDS = 60.0
"""Seconds after which the death of a worker is not blamed on its start."""
REFUSED = {EXIT_BAD_APP: 2, EXIT_UNAUTHORIZED: 7, EXIT_NO_QUEUE: 4}
"""The exit code of the command, by the exit code of a worker that cannot do its task. Another worker would fail too."""
_log = events.logger("redrive.supervisor")


class View(Protocol):
    """A view of a worker for a person."""

    def show(self, in_flight_log: InFlightLog | None, note: str) -> None:
        """Show the current state."""
        ...

    def lines(self, stream: IO[bytes]) -> None:
        """Show what the worker writes, in a thread."""
        ...


class _Process:
    """One worker, from its start to its end."""

    def __init__(self, launch: WorkerLaunch, view: View | None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "redrive.worker.worker_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=None if view is None else subprocess.PIPE,
                stderr=None if view is None else subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        self.started_at = time.monotonic()
        self._channel: Channel[ToWorker] = Channel(ours, ToWorker)
        self._tell(launch)
        if view is not None and self._process.stdout is not None:
            view.lines(self._process.stdout)
        self.exit: Exit | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self, *, at_once: bool) -> None:
        self._tell(Stop(at_once))

    def kill(self) -> None:
        """Kill it, and all that it started in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Return whether it has ended. Then `exit` is set."""
        if self.exit is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.exit = exit_of(status, usage)
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self._channel.close()
        return self.exit is not None

    def _tell(self, frame: WorkerLaunch | Stop) -> None:
        with contextlib.suppress(OSError):  # it is gone, and that will be noticed
            self._channel.send(frame, wait=True)


class Supervisor:
    """The supervisor of one worker, which it restarts until it is asked to stop, or there is nothing more to do."""

    def __init__(
        self,
        launch: WorkerLaunch,
        *,
        watchdog_seconds: float = WATCHDOG_SECONDS,
        grace_seconds: float = KILL_GRACE_SECONDS,
        sources: SourceWatcher | None = None,
        view: View | None = None,
    ) -> None:
        self._launch = launch
        self._watchdog_seconds = watchdog_seconds
        self._grace_seconds = grace_seconds
        self._sources = sources
        self._view = view
        self._folder: Path
        self._worker: _Process | None = None
        self._in_flight_log: InFlightLog | None = None
        self._left: list[str] = []
        self._signals: list[int] = []
        self._times_told = 0
        self._told_at = 0.0
        self._restarting = False
        self._kill_at: float | None = None
        self._because = ""
        self._by_order = False
        self._start_at: float | None = 0.0
        """Time to start the next worker. None: not before a source changes."""
        self._idle_deaths = 0
        self._generation = 0
        self._beats = 0
        self._silent = 0.0
        self._looked_at = time.monotonic()
        self._note = "starting"

    def run(self) -> int:
        """Supervise until the end, and return the exit code. In the main thread, because that one receives signals."""
        with tempfile.TemporaryDirectory(prefix="redrive-") as folder, self._listening() as wait:
            self._folder = Path(folder)
            code: int | None = None
            while code is None:
                code = self._look(time.monotonic())
                if code is None:
                    wait(POLL_SECONDS)
            self._settle_left()
            return code

    def _look(self, now: float) -> int | None:
        """Check everything once. Returns the exit code at the end, else None."""
        while self._signals:
            self._signalled(self._signals.pop(0))
        if self._sources is not None and (changed := self._sources.changed()) is not None:
            self._reload(changed)
        if self._worker is None:
            if self._times_told:
                return 0
            if self._start_at is not None and now >= self._start_at:
                self._start()
        elif self._worker.has_ended():
            return self._after(self._worker)
        else:
            self._watch(now)
        if self._view is not None:
            self._view.show(self._in_flight_log, self._note)
        return None

    # Signals.

    @contextlib.contextmanager
    def _listening(self) -> Iterator[Callable[[float], None]]:
        """Record signals as they arrive. Yields a function that waits for some seconds, or until a signal arrives."""
        wakes, wake = socket.socketpair()
        with wakes, wake:
            wakes.setblocking(False)
            wake.setblocking(False)
            numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
            before = {number: signal.signal(number, self._heard) for number in numbers}
            descriptor = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

            def wait(seconds: float) -> None:
                if select.select([wakes], [], [], seconds)[0]:
                    wakes.recv(4096)

            try:
                yield wait
            finally:
                signal.set_wakeup_fd(descriptor)
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _heard(self, number: int, frame: object) -> None:
        if number != signal.SIGCHLD:  # for that, being woken is enough
            self._signals.append(number)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGHUP:
            if not self._times_told:
                self._restart("restarting", self._launch.shutdown_timeout)
            return
        now = time.monotonic()
        if self._times_told and now - self._told_at < SECOND_SIGNAL_WINDOW_SECONDS:
            return  # one request that came twice: to the process, and to its group
        self._told_at = now
        self._times_told += 1
        if self._worker is None:
            return
        if self._times_told == 1:
            self._note = "stopping: finishing what runs; once more to stop immediately"
            running = 0 if self._in_flight_log is None else len(self._in_flight_log.running())
            _log.info(
                "stopping", running=running, timeout=self._launch.shutdown_timeout, hint="again to stop immediately"
            )
            self._worker.stop(at_once=False)
            self._kill_at = time.monotonic() + self._launch.shutdown_timeout + self._grace_seconds
        elif self._times_told == 2:
            self._note = "stopping immediately"
            _log.info("stopping_now")
            self._worker.stop(at_once=True)
            self._kill_at = time.monotonic() + self._grace_seconds
        else:
            self._kill_at = time.monotonic()

    def _restart(self, note: str, seconds: float) -> None:
        """Stop the worker, if there is one, and start another one afterwards."""
        self._start_at = time.monotonic()
        if self._worker is None or self._restarting:
            return
        self._note = note
        self._restarting = True
        self._worker.stop(at_once=False)
        self._kill_at = time.monotonic() + seconds + self._grace_seconds

    def _reload(self, changed: Path) -> None:
        if self._times_told:
            return
        _log.info("reloading", changed=str(changed))
        self._idle_deaths = 0
        self._restart(f"reloading: {changed.name} changed", RELOAD_SECONDS)

    # The worker.

    def _start(self) -> None:
        self._generation += 1
        path = self._folder / f"{self._generation}.in_flight"
        # Coroutines have slots in addition to those of threads.
        slots = max(2 * self._launch.concurrency, 2 * self._launch.processes, MIN_SLOTS)
        self._in_flight_log = InFlightLog.create(path, worker_name(), slots)
        self._left = [left for left in self._left if Path(left).exists()]
        launch = msgspec.structs.replace(self._launch, in_flight_log=str(path), orphans_of=tuple(self._left))
        self._kill_at, self._because, self._by_order, self._restarting = None, "", False, False
        self._beats, self._silent = 0, 0.0
        self._worker = _Process(launch, self._view)
        self._note = "running"

    def _watch(self, now: float) -> None:
        """Kill the worker if it does not stop in time, or sends no heartbeat."""
        worker, in_flight_log = self._worker, self._in_flight_log
        assert worker is not None
        assert in_flight_log is not None
        # At most the time of a few checks: if this process was suspended too, the worker could not send heartbeats.
        passed, self._looked_at = min(now - self._looked_at, 4 * POLL_SECONDS), now
        beats = in_flight_log.beats
        self._silent = 0.0 if beats != self._beats or not beats else self._silent + passed
        self._beats = beats
        if self._kill_at is not None and now >= self._kill_at:
            self._by_order = True
            self._kill(worker, in_flight_log)
        elif self._silent >= self._watchdog_seconds:
            self._because = f"its worker had sent no heartbeat for {self._watchdog_seconds:.0f} s"
            _log.error("worker_unresponsive", worker=in_flight_log.worker, seconds=self._watchdog_seconds)
            self._kill(worker, in_flight_log)

    def _kill(self, worker: _Process, in_flight_log: InFlightLog) -> None:
        for pid in in_flight_log.pids():  # each in a separate group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        worker.kill()

    def _after(self, worker: _Process) -> int | None:
        """Handle the end of the worker. Returns the exit code if that was the last one, else None."""
        in_flight_log, exit = self._in_flight_log, worker.exit
        assert in_flight_log is not None
        assert exit is not None
        self._kill(worker, in_flight_log)
        self._worker = self._in_flight_log = None
        finished = in_flight_log.is_finished
        # A handler may end its process with any code.
        code = exit.exit_code or 0
        never_began = code in (*REFUSED, UNAVAILABLE) and not (in_flight_log.running() or in_flight_log.ended)
        # With progress, items are charged for its death, and finally dead. Without, the restarts back off.
        lasted = time.monotonic() - worker.started_at >= STABLE_AFTER_SECONDS
        progress = lasted or in_flight_log.ended > 0 or bool(in_flight_log.running())
        if finished or never_began:  # then it never held anything
            in_flight_log.remove()
        else:
            own = in_flight_log.worker_exit  # one that ends itself may record why
            self._because = self._because or ("" if own is None else own.because)
            in_flight_log.write_exit(WorkerExit(exit, self._because, self._by_order or in_flight_log.is_stopped))
            in_flight_log.close()
            self._left.append(str(in_flight_log.path))
        if self._times_told:
            return 0 if finished else 1
        if self._restarting:
            self._start_at = time.monotonic()
            return None
        if finished:
            return REFUSED.get(code, 0)
        return self._again(exit, progress, REFUSED.get(code) if never_began else None)

    def _again(self, exit: Exit, progress: bool, refused: int | None) -> int | None:
        """Schedule the restart of a dead worker. Returns the exit code if a restart makes no sense, else None."""
        if refused is not None and self._sources is not None:
            self._note = "the worker cannot start; waiting for a change"
            self._start_at = None
            return None
        if refused is not None and self._generation == 1:
            return refused
        self._idle_deaths = 0 if progress else self._idle_deaths + 1
        pause = RESTART_PAUSES[min(self._idle_deaths, len(RESTART_PAUSES) - 1)]
        _log.error("worker_died", exit=str(exit), cause=self._because or None, retry_in_seconds=pause)
        self._note = f"the worker died ({exit}); again in {pause:.0f} s"
        self._start_at = time.monotonic() + pause
        return None

    def _settle_left(self) -> None:
        """Settle what was left in a separate process, because no other worker follows."""
        self._left = [left for left in self._left if Path(left).exists()]
        if not self._left:
            return
        launch = msgspec.structs.replace(self._launch, in_flight_log="", orphans_of=tuple(self._left))
        process = _Process(launch, None)
        until = time.monotonic() + SETTLING_SECONDS
        while not process.has_ended() and time.monotonic() < until:
            time.sleep(0.01)
        if not process.has_ended():
            process.kill()
            _log.warning("orphans_not_settled", error="it took too long; the leases will expire")


def can_supervise() -> bool:
    """Return whether a worker can have a supervisor: the system must be able to fork."""
    return hasattr(os, "fork")


def supervise(launch: WorkerLaunch, *, watchdog_seconds: float, reload: bool, view: bool) -> int:
    """Run a worker with a supervisor, and return the exit code."""
    sources = SourceWatcher(Path.cwd()) if reload else None
    if not view:
        return Supervisor(launch, watchdog_seconds=watchdog_seconds, sources=sources).run()
    from redrive.worker.live_view import LiveView

    with LiveView(f"redrive work {launch.app}") as live:
        return Supervisor(launch, watchdog_seconds=watchdog_seconds, sources=sources, view=live).run()


def work_here(launch: WorkerLaunch) -> None:
    """Run a worker in this process, without a supervisor."""
    with opened_program(launch) as program:
        worker = program.make_worker(launch, None)
        with SignalQueue(signal.SIGINT, signal.SIGTERM) as signals, serving_metrics(program.brokers, launch):
            threading.Thread(target=_stop_on_signals, args=(signals, worker), daemon=True).start()
            worker.run(until_idle=launch.until_idle)


def _stop_on_signals(signals: SignalQueue, worker: RunnableWorker) -> None:
    while True:
        if signals.next(1.0) is not None:
            worker.stop()
