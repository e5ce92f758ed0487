"""A process that runs handlers, one item at a time. Forked from a zygote, which has imported the app."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from typing import Any, NoReturn

from redrive.broker.exchange import End, Failed, Returned
from redrive.model.failure import failure_from_exception
from redrive.model.item import Lease
from redrive.task.app import App
from redrive.telemetry import events
from redrive.worker.exits import leave_copy
from redrive.worker.frames import Channel, Delivery, ToChild
from redrive.worker.job import perform
from redrive.worker.run_lock import LOOK_SECONDS, RunLock

_log = events.logger("redrive.worker")
_PR_SET_PDEATHSIG = 1
# Looked up before any fork, so that a child finds it ready.
_prctl: Any = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def live(app: App, connection: socket.socket, parent: int, memory_limit: int | None) -> NoReturn:
    """Be a child until the other end of the connection is closed, or says stop. Never returns to its caller."""
    code = 1
    try:
        _prepare(parent, memory_limit)
        _work(app, Channel(connection, ToChild))
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


def _work(app: App, channel: Channel[ToChild]) -> None:
    pid = os.getpid()
    while isinstance(frame := channel.wait(), Delivery):
        # While an item runs nothing comes but the word to stop, or the end of the worker.
        lease, lock = frame.lease, RunLock(frame.lease.id)
        has_turn = _has_turn(lock, lease, channel)
        end = perform(app, lease, frame.handling, channel.has_more) if has_turn else Returned()
        if os.getpid() != pid:
            leave_copy()
        lock.release()
        try:
            _answer(channel, end)
        except (BrokenPipeError, ConnectionResetError):
            return


def _has_turn(lock: RunLock, lease: Lease, channel: Channel[ToChild]) -> bool:
    """Wait until no other run of the item lives on this host. False: it is to stop before that."""
    try:
        if lock.take():
            return True
        _log.warning("run_waits", item=lease.id)
        while not lock.take():
            if channel.has_more():
                return False
            time.sleep(LOOK_SECONDS)
    except OSError as error:  # rather without a lock than not at all
        _log.warning("run_not_locked", item=lease.id, error=str(error))
    return True


def _answer(channel: Channel[ToChild], end: End) -> None:
    try:
        channel.send(end, wait=True)
    except OSError:
        raise
    except Exception as error:  # what the handler gave cannot be encoded
        channel.send(Failed(failure_from_exception(error)), wait=True)


def _prepare(parent: int, memory_limit: int | None) -> None:
    # A group of its own: a signal to the worker's does not reach it, and what it starts can be ended with it.
    os.setpgid(0, 0)
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(0)
    # A service manager that stops a service signals all of its processes; whether the item is finished is for the
    # worker to say. Handlers and not SIG_IGN, which programs that an item starts would inherit.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ignore_signal)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if memory_limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))


def ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the worker decides when a process ends."""
