"""The process that children are forked from, and the child: it runs handlers, one item after the other.

    python -m redrive.worker.zygote module:app DESCRIPTOR

A zygote imports the app once and has one thread, so a fork is safe. It forks on request, reports how each child exited,
and exits when the other end of its socket is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

from redrive.broker.worker_session import Failed, Returned
from redrive.errors import RedriveError
from redrive.model.failure import failure_from_exception
from redrive.model.ids import Token
from redrive.model.item import Lease
from redrive.model.payload import expect_little_memory
from redrive.model.worker_info import TASK_HEADER
from redrive.task.app import App
from redrive.telemetry import events
from redrive.worker.app_loader import load_app
from redrive.worker.child_queue import Inbox
from redrive.worker.execution import execute_job
from redrive.worker.in_flight import InFlightLog
from redrive.worker.ipc import (
    Channel,
    ChildExited,
    Fork,
    Forked,
    JobReport,
    Kill,
    StartupFailed,
    ToChild,
    ToZygote,
    ZygoteReady,
    ZygoteSetup,
)
from redrive.worker.item_lock import POLL_SECONDS, ItemLock
from redrive.worker.process_exit import exit_of, leave_copy

_log = events.logger("redrive.worker")
_PR_SET_PDEATHSIG = 1
# Looked up before any fork, so that a child finds it ready.
_prctl: Any = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


class Begin(Protocol):
    """The function that records in the in-flight log what the child of one slot starts."""

    def __call__(self, token: Token, label: str, *, waits: bool = False) -> None:
        """Record that an item starts, or waits."""
        ...


def run_child(
    app: App,
    connection: socket.socket,
    queue: socket.socket,
    begin: Begin,
    parent: int,
    memory_limit: int | None,
) -> NoReturn:
    """Work as a child until the other end of the connection is closed, or sends a stop. Never returns.

    begin: records which item is started, or waits, where that survives this process.
    """
    code = 1
    try:
        _prepare(parent, memory_limit)
        channel: Channel[ToChild] = Channel(connection, ToChild)
        _work(app, Inbox(queue, channel), channel, begin)
        with contextlib.suppress(Exception):
            app.close()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _work(app: App, inbox: Inbox, channel: Channel[ToChild], begin: Begin) -> None:
    pid = os.getpid()
    while (delivery := inbox.take()) is not None:
        # While an item runs, only a request to stop or the end of the worker comes through the channel.
        lease, lock = delivery.lease, ItemLock(delivery.lease.id)
        report = JobReport(lease.token, Returned(), 0.0)
        if _has_turn(lock, lease, channel, begin):
            begin(lease.token, lease.headers.get(TASK_HEADER, ""))
            began = time.monotonic()
            end = execute_job(app, lease, delivery.handling, channel.has_more)
            report = JobReport(lease.token, end, time.monotonic() - began)
        if os.getpid() != pid:
            leave_copy()
        lock.release()
        # The report is sent before the next item starts, which may end this process.
        try:
            _send(channel, report)
        except OSError:
            return


def _has_turn(lock: ItemLock, lease: Lease, channel: Channel[ToChild], begin: Begin) -> bool:
    """Wait until no other run of the item is alive on this host. False if this is to stop before that."""
    try:
        if lock.take():
            return True
        begin(lease.token, lease.headers.get(TASK_HEADER, ""), waits=True)
        _log.warning("run_waits", item=lease.id)
        while not lock.take():
            if channel.has_more():
                return False
            time.sleep(POLL_SECONDS)
    except OSError as error:  # it is better to run without a lock than not at all
        _log.warning("run_not_locked", item=lease.id, error=str(error))
    return True


def _send(channel: Channel[ToChild], report: JobReport) -> None:
    try:
        channel.send(report, wait=True)
    except OSError:
        raise
    except Exception as error:  # what the handler returned cannot be encoded
        failed = Failed(failure_from_exception(error))
        channel.send(JobReport(report.token, failed, report.seconds), wait=True)


def _prepare(parent: int, memory_limit: int | None) -> None:
    # A separate group: a signal to that of the worker does not reach it, and what it starts can be ended with it.
    os.setpgid(0, 0)
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(0)
    # A service manager that stops a service signals all of its processes; the worker decides whether the item is
    # finished. Handlers and not SIG_IGN, which programs that an item starts would inherit.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ignore_signal)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if memory_limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
        expect_little_memory()


def ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the worker decides when a process ends."""


class Zygote:
    """The process that forks children of an app, and reports their exits."""

    def __init__(self, connection: socket.socket) -> None:
        self._channel: Channel[ToZygote] = Channel(connection, ToZygote)
        self._connection = connection
        self._children: set[int] = set()
        self._wakes, self._wake = socket.socketpair()
        self._setup: ZygoteSetup
        self._in_flight_log: InFlightLog

    def run(self) -> None:
        """Serve until the worker is gone."""
        setup = self._channel.wait()
        if not isinstance(setup, ZygoteSetup):
            return
        self._setup = setup
        self._in_flight_log = InFlightLog(Path(setup.in_flight_log))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, ignore_signal)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        events.configure()  # tasks log in their processes as they do in threads
        app = self._imported(setup)
        if app is None:
            return
        try:
            self._serve(app)
        finally:
            signal.set_wakeup_fd(-1)  # from here on its socket is not read
            for pid in self._children:
                _kill_group(pid)

    def _imported(self, setup: ZygoteSetup) -> App | None:
        try:
            sys.path[:] = setup.path
            app = load_app(setup.app, setup.url)
        except RedriveError as error:
            self._channel.send(StartupFailed(str(error)), wait=True)
            return None
        except BaseException:
            self._channel.send(StartupFailed(f"{setup.app} cannot be imported:\n{traceback.format_exc()}"), wait=True)
            return None
        if threading.active_count() > 1:
            names = ", ".join(thread.name for thread in threading.enumerate()[1:4])
            print(f"redrive: {setup.app} starts threads when it is imported ({names}): children do not have them, and "
                  f"may hang where those held a lock", file=sys.stderr)  # fmt: skip
        with contextlib.suppress(Exception):  # an item of the invalid task will report it
            app.check()  # makes the decoders of all tasks, so that no child has to make them
        # All objects stay from here on: the collector must not touch them, which would copy them in each child.
        gc.collect()
        gc.freeze()
        self._channel.send(ZygoteReady(), wait=True)
        return app

    def _serve(self, app: App) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(self._wakes, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if self._wakes.fileno() in ready:
                self._wakes.recv(4096)
                self._reap()
            if self._connection.fileno() in ready:
                frames, descriptors = self._channel.receive_with()
                if self._channel.has_ended:
                    return
                for frame in frames:
                    match frame:
                        case Fork():
                            sockets = [socket.socket(fileno=descriptors.pop(0)) for _ in range(2)]
                            self._fork(app, frame, *sockets)
                        case Kill(pid):
                            if pid in self._children:
                                _kill_group(pid)

    def _fork(self, app: App, fork: Fork, connection: socket.socket, queue: socket.socket) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            connection.close()
            queue.close()
            self._channel.send(Forked(fork.number, problem=str(error)), wait=True)
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for other in (self._connection, self._wakes, self._wake):
                other.close()
            begin = partial(self._in_flight_log.begin, fork.slot)
            run_child(app, connection, queue, begin, parent, self._setup.memory_limit)
        connection.close()
        queue.close()
        with contextlib.suppress(OSError):  # the child does it too, and may be first
            os.setpgid(pid, pid)
        self._children.add(pid)
        self._channel.send(Forked(fork.number, pid), wait=True)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                if pid not in self._children:  # something that the app started when it was imported
                    continue
                self._children.discard(pid)
                exit = exit_of(status, usage)
                if not exit.is_clean:
                    _kill_group(pid)  # what it had started
                self._channel.send(ChildExited(pid, exit), wait=True)


def _kill_group(pid: int) -> None:
    """Kill a child and what it started: its group has its id."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def main() -> None:
    """Run `python -m redrive.worker.zygote`."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the worker is gone
        Zygote(socket.socket(fileno=int(sys.argv[2]))).run()


if __name__ == "__main__":
    main()
