"""The parent process of a worker: forwards signals, watches it, restarts it, and has its orphans settled.

The worker is in a process group of its own, so everything it started ends with it, and Ctrl-C in a terminal reaches
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
"""How often it looks at the worker, whatever happens."""
WATCHDOG_SECONDS = 30.0
"""A worker without a heartbeat for so long is killed."""
KILL_GRACE_SECONDS = 5.0
"""How long beyond its own deadline a worker that stops is waited for."""
SECOND_SIGNAL_WINDOW_SECONDS = 0.5
"""A second signal that comes sooner is the same one: some send it to the process and to its group."""
RELOAD_SECONDS = 3.0
"""How long a worker that is to be reloaded may finish what it runs; the rest is given back."""
SETTLING_SECONDS = 10.0
"""How long the last process may take to settle what a worker left."""
RESTART_PAUSES = (0.0, 0.2, 1.0, 5.0, 15.0, 30.0)
"""How long before a worker is started again that died without having done anything, by how often in a row."""
MIN_SLOTS = 1_000
"""Slots of an in-flight log at least: a program may have more parts than the launch says, as a group has loops."""
STABLE_AFTER_SECONDS = 60.0
"""A worker that lived for so long did not die of its start."""
REFUSED = {EXIT_BAD_APP: 2, EXIT_UNAUTHORIZED: 7, EXIT_NO_QUEUE: 4}
"""By the exit code of a worker that cannot do what it was told to do: what the command exits with. Another one would
fare no better."""
_log = events.logger("redrive.supervisor")


class View(Protocol):
    """What shows a worker to a person."""

    def show(self, in_flight_log: InFlightLog | None, note: str) -> None:
        """This is how it is now."""
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
        """It, and all that it started in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Whether it has; then `exit` says how."""
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
    """Keeps one worker alive until it is told to stop, or the worker has nothing more to do."""

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
        """When the next worker is started. None: not before a source changes."""
        self._idle_deaths = 0
        self._generation = 0
        self._beats = 0
        self._silent = 0.0
        self._looked_at = time.monotonic()
        self._note = "starting"

    def run(self) -> int:
        """Until it is over. Gives the exit code. In the main thread, because it is sent signals."""
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
        """One look at everything. An exit code when it is over."""
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
        """Signals are written down as they come, and end the wait that this gives."""
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
            return  # one word that came twice: to the process, and to its group
        self._told_at = now
        self._times_told += 1
        if self._worker is None:
            return
        if self._times_told == 1:
            self._note = "stopping: finishing what runs; once more to stop at once"
            running = 0 if self._in_flight_log is None else len(self._in_flight_log.running())
            _log.info("stopping", running=running, timeout=self._launch.shutdown_timeout, hint="again to stop at once")
            self._worker.stop(at_once=False)
            self._kill_at = time.monotonic() + self._launch.shutdown_timeout + self._grace_seconds
        elif self._times_told == 2:
            self._note = "stopping at once"
            _log.info("stopping_now")
            self._worker.stop(at_once=True)
            self._kill_at = time.monotonic() + self._grace_seconds
        else:
            self._kill_at = time.monotonic()

    def _restart(self, note: str, seconds: float) -> None:
        """Stop the worker, and start another one in its place."""
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
        # A coroutine has a slot of its own beside those of threads.
        slots = max(2 * self._launch.concurrency, 2 * self._launch.processes, MIN_SLOTS)
        self._in_flight_log = InFlightLog.create(path, worker_name(), slots)
        self._left = [left for left in self._left if Path(left).exists()]
        launch = msgspec.structs.replace(self._launch, in_flight_log=str(path), orphans_of=tuple(self._left))
        self._kill_at, self._because, self._by_order, self._restarting = None, "", False, False
        self._beats, self._silent = 0, 0.0
        self._worker = _Process(launch, self._view)
        self._note = "running"

    def _watch(self, now: float) -> None:
        """Kill it where it does not stop in time, or gives no sign of life."""
        worker, in_flight_log = self._worker, self._in_flight_log
        assert worker is not None
        assert in_flight_log is not None
        # Never more than a few looks at once: if this process was stopped too, the worker had no chance to beat.
        passed, self._looked_at = min(now - self._looked_at, 4 * POLL_SECONDS), now
        beats = in_flight_log.beats
        self._silent = 0.0 if beats != self._beats or not beats else self._silent + passed
        self._beats = beats
        if self._kill_at is not None and now >= self._kill_at:
            self._by_order = True
            self._kill(worker, in_flight_log)
        elif self._silent >= self._watchdog_seconds:
            self._because = f"its worker had given no sign of life for {self._watchdog_seconds:.0f} s"
            _log.error("worker_unresponsive", worker=in_flight_log.worker, seconds=self._watchdog_seconds)
            self._kill(worker, in_flight_log)

    def _kill(self, worker: _Process, in_flight_log: InFlightLog) -> None:
        for pid in in_flight_log.pids():  # each in a group of its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        worker.kill()

    def _after(self, worker: _Process) -> int | None:
        """The worker has ended. An exit code when that was all."""
        in_flight_log, exit = self._in_flight_log, worker.exit
        assert in_flight_log is not None
        assert exit is not None
        self._kill(worker, in_flight_log)
        self._worker = self._in_flight_log = None
        finished = in_flight_log.is_finished
        # A handler may end its process with any code.
        code = exit.exit_code or 0
        never_began = code in (*REFUSED, UNAVAILABLE) and not (in_flight_log.running() or in_flight_log.ended)
        # What it ran is charged for its death, and dies of it in the end. One that never got that far has to wait.
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
        """The worker died. When to start another one; or an exit code, where that makes no sense."""
        if refused is not None and self._sources is not None:
            self._note = "the worker cannot begin; waiting for a change"
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
        """No other worker follows: a process for this alone settles what was left."""
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
            _log.warning("orphans_not_settled", error="it took too long; leases run out by themselves")


def can_supervise() -> bool:
    """Whether this system lets a worker have a supervisor: one that can fork."""
    return hasattr(os, "fork")


def supervise(launch: WorkerLaunch, *, watchdog_seconds: float, reload: bool, view: bool) -> int:
    """Run a worker with a supervisor, until it is told to stop. Gives the exit code."""
    sources = SourceWatcher(Path.cwd()) if reload else None
    if not view:
        return Supervisor(launch, watchdog_seconds=watchdog_seconds, sources=sources).run()
    from redrive.worker.live_view import LiveView

    with LiveView(f"redrive work {launch.app}") as live:
        return Supervisor(launch, watchdog_seconds=watchdog_seconds, sources=sources, view=live).run()


def work_here(launch: WorkerLaunch) -> None:
    """Without a supervisor, in this process."""
    with opened_program(launch) as program:
        worker = program.make_worker(launch, None)
        with SignalQueue(signal.SIGINT, signal.SIGTERM) as signals, serving_metrics(program.brokers, launch):
            threading.Thread(target=_stop_on_signals, args=(signals, worker), daemon=True).start()
            worker.run(until_idle=launch.until_idle)


def _stop_on_signals(signals: SignalQueue, worker: RunnableWorker) -> None:
    while True:
        if signals.next(1.0) is not None:
            worker.stop()
