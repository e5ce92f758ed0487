"""The worker's side of the process that is the parent of commands."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import redrive

ENDING_SECONDS = 1.0
"""Seconds to wait for the end of the parent. It ends automatically after the last command."""
_ROOT = str(Path(redrive.__file__).parents[1])
# Not `-m`, which imports from the working directory first: the modules of a project are there.
_SOURCE = "import sys; sys.path.append(sys.argv[2]); from redrive.worker.command_parent import main; main()"


class Launcher:
    """The parent of commands, started with the first command, and again if it has died. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        """Id of the process that started it: a fork of that process needs another parent."""

    def hand_over(self, descriptors: Sequence[int]) -> None:
        """Pass it the socket of a run, and stdin, stdout and stderr. Raises OSError if it cannot be started."""
        with self._lock:
            if self._socket is not None and self._owner == os.getpid():
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is gone
                    socket.send_fds(self._socket, [b"\0"], descriptors)
                    return
            self._start()
            assert self._socket is not None
            socket.send_fds(self._socket, [b"\0"], descriptors)

    def close(self) -> None:
        """Close the connection to the parent, which ends after the last command."""
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None and self._owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_SECONDS)
        self._process = None

    def _start(self) -> None:
        self._leave()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _SOURCE, str(theirs.fileno()), _ROOT],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,  # Ctrl-C and Ctrl-Z are for the worker
                )
            except BaseException:
                ours.close()
                raise
        self._socket, self._owner = ours, os.getpid()


LAUNCHER = Launcher()
"""The launcher of this process: all its commands have the same parent."""
atexit.register(LAUNCHER.close)
