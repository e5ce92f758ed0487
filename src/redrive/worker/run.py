"""One run of a program: fed, drained, and ended in time. Whatever it does with its input and output, this returns.

The input is a file, so that a program which does not read it keeps nobody waiting. What it writes is read as it comes,
and no more than a bounded part of it is kept. The end of the process counts, not the end of its output: something that
it left running may hold that open.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import IO

import msgspec

from redrive.clock import SystemClock
from redrive.model.duration import SECOND
from redrive.model.limits import KIB, MIB
from redrive.model.program import Program
from redrive.model.url import strip_password
from redrive.worker.exits import Exit, exit_of
from redrive.worker.passing import Lines, Passing

MAX_OUTPUT_BYTES = 8 * MIB
"""Of what it prints, where somebody wants that."""
TAIL_BYTES = 4 * KIB
"""Of what it writes to stderr: the end."""
LOOK_SECONDS = 0.5
"""How often it is looked at, whatever happens."""
POLL_SECONDS = 0.02
"""The same, where the system does not tell that a process has ended."""
_CHUNK = 64 * KIB
_LAST_BYTES = 2 * MIB
"""Of what is in the pipes when it has ended. Something that it left behind may go on writing."""
_SECRETS = ("REDRIVE_TOKEN",)


class Ran(msgspec.Struct, frozen=True):
    """How a run ended."""

    exit: Exit
    seconds: float
    output: bytes
    is_whole: bool
    """Whether that is all it printed."""
    errors: bytes
    """The end of what it wrote to stderr."""
    is_late: bool
    """It was ended because its time was over."""
    is_stopped: bool
    """It was ended because somebody said so."""

    @property
    def has_vanished(self) -> bool:
        """Whether it has ended and nobody can tell how: it was waited for elsewhere, or the system does not keep it."""
        return self.exit.exit_code is None and self.exit.signal is None


class NotStarted(OSError):
    """A program could not be started: nothing of it has run."""


class Run:
    """A program that is about to run. `wait` runs it, in one thread; `stop` is for any other.

    What it prints is kept, or else passed on to `output`; what it writes to stderr is passed on to `errors`.
    """

    def __init__(
        self,
        program: Program,
        given: bytes,
        variables: Mapping[str, str],
        *,
        keep_output: bool,
        output: Passing | None = None,
        errors: Passing | None = None,
    ) -> None:
        self._program = program
        self._given = given
        self._variables = environment(program, variables)
        self._kept_bytes = MAX_OUTPUT_BYTES if keep_output else 0
        self._passed_output = None if output is None or keep_output else Lines(output)
        self._passed_errors = None if errors is None else Lines(errors)
        self._output = bytearray()
        self._errors = bytearray()
        self._is_whole = True
        with _starting():
            self._wakes, self._wake = socket.socketpair()
        self._stop_asked = False
        self._is_late = self._is_stopped = False
        self._kill_at: float | None = None

    def stop(self) -> None:
        """End it: politely first, then not. From any thread; twice is no error."""
        self._stop_asked = True
        with contextlib.suppress(OSError):
            self._wake.send(b"\0", socket.MSG_DONTWAIT)

    def wait(self) -> Ran:
        """Run it to its end. Raises `NotStarted` where it cannot be started."""
        with self._wakes, self._wake, contextlib.ExitStack() as opened:
            began = time.monotonic()
            with _starting():
                selector = opened.enter_context(selectors.DefaultSelector())  # before it runs: there may be none left
                with self._input() as given:
                    process = subprocess.Popen(
                        self._program.words,
                        stdin=given,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        cwd=self._program.folder,
                        env=self._variables,
                        process_group=0,  # so that all it starts can be ended with it
                    )
            try:
                exit = self._follow(process, selector, began)
            except BaseException:  # whatever happens here, it does not run on unseen
                _signal(process.pid, signal.SIGKILL)
                process.wait()
                raise
            finally:
                assert process.stdout is not None
                assert process.stderr is not None
                process.stdout.close()
                process.stderr.close()
        return Ran(
            exit=exit,
            seconds=time.monotonic() - began,
            output=bytes(self._output),
            is_whole=self._is_whole,
            errors=bytes(self._errors[-TAIL_BYTES:]),
            is_late=self._is_late,
            is_stopped=self._is_stopped,
        )

    @contextlib.contextmanager
    def _input(self) -> Iterator[int | IO[bytes]]:
        """What it is given, as a file that nobody else sees."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("redrive-item")
            try:
                with open(descriptor, "wb", closefd=False) as file:
                    file.write(self._given)
                os.lseek(descriptor, 0, os.SEEK_SET)
                yield descriptor
            finally:
                os.close(descriptor)
        else:
            with tempfile.TemporaryFile() as file:
                file.write(self._given)
                file.seek(0)
                yield file

    def _follow(self, process: subprocess.Popen[bytes], selector: selectors.BaseSelector, began: float) -> Exit:
        """Read what it writes until it has ended, and end it when its time is over."""
        timeout = self._program.timeout
        late_at = None if timeout is None else began + timeout / SECOND
        with _exit_told(process.pid) as told:
            selector.register(self._wakes, selectors.EVENT_READ)
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, pipe is process.stdout)
            if told is not None:
                selector.register(told, selectors.EVENT_READ)
            while (exit := self._ended(process)) is None:
                self._end_in_time(process.pid, late_at)
                due = late_at if self._kill_at is None else self._kill_at
                longest = LOOK_SECONDS if told is not None else POLL_SECONDS
                wait = longest if due is None else min(longest, due - time.monotonic())
                for key, _ in selector.select(max(0.0, wait)):
                    if key.fileobj is self._wakes:
                        self._wakes.recv(4096)
                    elif isinstance(key.data, bool) and self._read(key.fd, key.data) == 0:
                        selector.unregister(key.fileobj)
            self._read_rest(process)
        return exit

    def _ended(self, process: subprocess.Popen[bytes]) -> Exit | None:
        """How it ended, once it has. What else is in its group goes with it, if it was ended."""
        try:
            return self._reaped(process)
        except ChildProcessError:  # it has ended, and somebody else was told how; its number may be anybody's by now
            process.returncode = 0  # or it is taken for one that runs
            return Exit(exit_code=None, signal=None, peak_memory=0, at=SystemClock().now())

    def _reaped(self, process: subprocess.Popen[bytes]) -> Exit | None:
        can_look = hasattr(os, "waitid")
        if can_look and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        was_ended = self._is_late or self._is_stopped
        if was_ended and can_look:  # until it is reaped, its number cannot be that of anybody else
            _signal(process.pid, signal.SIGKILL)
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if not pid:
            return None
        if was_ended and not can_look:
            _signal(process.pid, signal.SIGKILL)
        process.returncode = os.waitstatus_to_exitcode(status)
        return exit_of(status, usage)

    def _end_in_time(self, pid: int, late_at: float | None) -> None:
        now = time.monotonic()
        if self._kill_at is None:
            self._is_stopped = self._stop_asked
            self._is_late = not self._is_stopped and late_at is not None and now >= late_at
            if self._is_stopped or self._is_late:
                self._kill_at = now + self._program.grace / SECOND
                _signal(pid, signal.SIGTERM)
        elif now >= self._kill_at:
            self._kill_at = now + LOOK_SECONDS
            _signal(pid, signal.SIGKILL)

    def _read_rest(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            read = 0
            while read < _LAST_BYTES and (more := self._read(pipe.fileno(), pipe is process.stdout) or 0):
                read += more
        for passed in (self._passed_output, self._passed_errors):
            if passed is not None:
                passed.end()

    def _read(self, descriptor: int, is_output: bool) -> int | None:
        """How many bytes there were; 0 where there will never be any, None where there are none now."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return None
        passed = self._passed_output if is_output else self._passed_errors
        if passed is not None:
            passed.add(data)
        if is_output:
            room = self._kept_bytes - len(self._output)
            self._is_whole = self._is_whole and len(data) <= room
            self._output += data[: max(0, room)]
        else:
            self._errors += data
            if len(self._errors) > 2 * _CHUNK:
                del self._errors[:-TAIL_BYTES]
        return len(data)


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """What fails here fails before the program has run."""
    try:
        yield
    except OSError as error:
        raise NotStarted(error.errno, error.strerror or str(error), error.filename) from error


def keep_exits() -> None:
    """Let the system keep how children end, where whoever started this process said not to (SIGCHLD ignored).

    Only the main thread can say so; in any other this does nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextlib.contextmanager
def _exit_told(pid: int) -> Iterator[int | None]:
    """A descriptor that can be read once the process has ended, where the system has such a thing."""
    try:
        descriptor = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        descriptor = None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _signal(pid: int, number: int) -> None:
    """To it and all that it started. It is not reaped yet, so its number is its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def environment(program: Program, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a program gets: those of the worker without its secrets, its own, and those given."""
    hidden = {*_SECRETS, *program.hidden}
    ours = {name: value for name, value in os.environ.items() if name not in hidden}
    url = ours.pop("REDRIVE_URL", None)
    if url is not None and (harmless := strip_password(url)) is not None:
        ours["REDRIVE_URL"] = harmless
    return {**ours, **variables, **program.variables}
