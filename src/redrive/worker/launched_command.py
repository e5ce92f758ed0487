"""One command in the process that is its parent: it waits for its turn, runs, and is ended on timeout or request."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from typing import Any

from redrive.worker.command_sentinel import Sentinel
from redrive.worker.item_lock import POLL_SECONDS, ItemLock
from redrive.worker.process_session import members_of, signal_session

REST_SECONDS = 0.05
"""Seconds between checks whether all processes of a session have ended after a signal."""
GIVE_UP_SECONDS = 10.0
"""Seconds after SIGKILL to wait for the rest of a session: a process blocked in the kernel may not end at all."""
NEVER = float("inf")
_CHUNK = 1 << 16


class Launched:
    """One command, from the order to run it to its end. `due` is the time to call `tend`, if no event comes first."""

    def __init__(self, connection: socket.socket, streams: list[int], sentinel: Sentinel) -> None:
        self.connection = connection
        self._sentinel = sentinel
        self.due = NEVER
        self.exit_descriptor: int | None = None
        """A pidfd, readable once the program has ended; None where the system has none."""
        self._streams = streams
        self._read = bytearray()
        self._order: dict[str, Any] | None = None
        self._lock: ItemLock | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self._has_exited = self._is_unwanted = self._is_late = False
        self._late_at = NEVER
        self._kill_at: float | None = None
        """Time of SIGKILL. None: it is not being ended."""
        connection.setblocking(False)

    def hear(self) -> bool:
        """Read from the worker. False at the end of its stream: the run is unwanted."""
        try:
            data = self.connection.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self._read += data
        self._is_unwanted = not data
        if self._order is None and self._read.endswith(b"\n"):
            self._order = json.loads(self._read)
        return bool(data)

    def tend(self, now: float) -> bool:
        """Do what is due. True if it has ended and that is reported."""
        if self._process is not None:
            return self._follow(self._process.pid, now)
        if self._is_unwanted:
            self._say(ended=None, late=False, stopped=True)
            return True
        return self._order is not None and not self._begin(self._order, now)

    def close(self) -> None:
        """Close all descriptors."""
        self.connection.close()
        for descriptor in (*self._streams, self.exit_descriptor):
            if descriptor is not None:
                os.close(descriptor)

    def _begin(self, order: dict[str, Any], now: float) -> bool:
        """Start it, or wait while another run of its item is alive on this host. False if it cannot be started."""
        if not self._has_turn(order["item"]):
            self.due = now + POLL_SECONDS
            return True
        self._say(begins=True)
        try:
            self._process = subprocess.Popen(
                order["words"],
                stdin=self._streams[0],
                stdout=self._streams[1],
                stderr=self._streams[2],
                cwd=order["folder"],
                env=order["variables"],
                start_new_session=True,  # so that all it starts can be ended with it
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._release()
            self._say(refused=[getattr(error, "errno", None), getattr(error, "strerror", None) or str(error)])
            return False
        self._sentinel.watch(self._process.pid)
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self.exit_descriptor = os.pidfd_open(self._process.pid)
        while self._streams:
            os.close(self._streams.pop())
        if order["timeout"] is not None:
            self._late_at = now + order["timeout"]
        self.due = self._late_at
        self._say(started=self._process.pid)
        return True

    def _has_turn(self, item: str | None) -> bool:
        if item is None:
            return True
        is_first, self._lock = self._lock is None, self._lock or ItemLock(item)
        try:
            is_taken = self._lock.take()
        except OSError as error:  # it is better to run without a lock than not at all
            self._say(unlocked=str(error))
            return True
        if is_first and not is_taken:
            self._say(waits=True)
        return is_taken

    def _follow(self, pid: int, now: float) -> bool:
        self._has_exited = self._has_exited or self._looks_ended(pid)
        if self._kill_at is None:
            if self._has_exited:  # without a signal of ours: processes that it left running may stay
                return self._over()
            if not self._is_unwanted and now < self._late_at:
                return False
            assert self._order is not None
            self._is_late = not self._is_unwanted
            self._kill_at = self.due = now + self._order["kill_grace"]
            signal_session(pid, signal.SIGTERM)
            return False
        if self._has_exited and (now >= self._kill_at + GIVE_UP_SECONDS or not members_of(pid)):
            return self._over()
        if now >= self._kill_at:
            signal_session(pid, signal.SIGKILL)
        self.due = now + REST_SECONDS if self._has_exited or now >= self._kill_at else self._kill_at
        return False

    def _looks_ended(self, pid: int) -> bool:
        if hasattr(os, "waitid"):  # it is reaped when its session is empty: until then its id is not reused
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        ended, status = os.waitpid(pid, os.WNOHANG)
        self._status = status if ended else None
        return bool(ended)

    def _over(self) -> bool:
        assert self._process is not None
        self._sentinel.forget(self._process.pid)
        if self._status is None:
            _, self._status = os.waitpid(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(self._status)
        self._release()
        is_stopped = self._kill_at is not None and not self._is_late
        self._say(ended=self._process.returncode, late=self._is_late, stopped=is_stopped)
        return True

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _say(self, **fields: Any) -> None:
        with contextlib.suppress(OSError):  # the worker is gone
            self.connection.sendall(json.dumps(fields).encode() + b"\n")
