"""`CommandSpec`, and one run of a command: its input, its output and its end, however it uses its streams.

The input is a file, so a program that does not read it blocks nothing. Output is read as it comes, and a bounded part
is kept. The end of the process counts, not the end of its output: a process it left running may hold that open. Its
parent is another process (`command_parent`), which ends it on timeout, when `stop` is called, and when this process is
gone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from redrive.clock import SystemClock
from redrive.model.duration import SECOND
from redrive.model.ids import ItemId
from redrive.model.limits import KIB, MIB
from redrive.model.url import strip_password
from redrive.telemetry import events
from redrive.worker.command_launcher import LAUNCHER
from redrive.worker.output_forwarder import UNKNOWN, LineBuffer, Origin, OutputForwarder
from redrive.worker.process_exit import Exit
from redrive.worker.process_session import signal_session


class CommandSpec(msgspec.Struct, frozen=True):
    """A command to run, without a shell: the arguments are passed to the program unchanged."""

    argv: tuple[str, ...]
    """The program, then its arguments."""
    cwd: str
    """The working directory. A program path with a slash is relative to it."""
    variables: Mapping[str, str] = {}
    """Environment variables that it gets in addition to those of the worker."""
    hidden: tuple[str, ...] = ()
    """Environment variables of the worker that it does not get, unless `variables` has them."""
    timeout: int | None = None
    """Time for which it may run; None: without a limit."""
    kill_grace: int = 5 * SECOND
    """Time from SIGTERM to SIGKILL when it is ended."""


MAX_OUTPUT_BYTES = 8 * MIB
"""Bytes of stdout that are kept at most, if the output is kept."""
TAIL_BYTES = 4 * KIB
"""Bytes at the end of stderr that are kept."""
_CHUNK = 64 * KIB
_LAST_BYTES = 2 * MIB
"""Bytes that are read from a pipe after its end at most: a process that it left running may continue to write."""
_SECRETS = ("REDRIVE_TOKEN",)
_log = events.logger("redrive.worker")


class CommandResult(msgspec.Struct, frozen=True):
    """The exit and the output of a run."""

    exit: Exit
    seconds: float
    output: bytes
    is_complete: bool
    """True if `output` is all of its stdout."""
    errors: bytes
    """The end of its stderr."""
    timed_out: bool
    """True if it was ended because its timeout had expired."""
    is_stopped: bool
    """True if it was ended by `stop`."""

    @property
    def exit_unknown(self) -> bool:
        """True if its exit is unknown, because its parent is gone."""
        return self.exit.exit_code is None and self.exit.signal is None


class NotStarted(OSError):
    """An error for a program that could not be started: nothing of it has run."""


class CommandProcess:
    """One run of a program. `wait` runs it, in one thread; `stop` is for any other.

    Its stdout is kept, or else passed on to `output`; its stderr is passed on to `errors`, and the end of it is kept.
    With `item` it starts once no other run of that item is alive on this host.
    """

    def __init__(
        self,
        program: CommandSpec,
        given: bytes,
        variables: Mapping[str, str],
        *,
        keep_output: bool,
        output: OutputForwarder | None = None,
        errors: OutputForwarder | None = None,
        item: ItemId | None = None,
        origin: Origin = UNKNOWN,
    ) -> None:
        self._program = program
        self._given = given
        self._variables = environment(program, variables)
        self._item = item
        self._kept_bytes = MAX_OUTPUT_BYTES if keep_output else 0
        self._passed_output = None if output is None or keep_output else LineBuffer(output, origin)
        self._passed_errors = None if errors is None else LineBuffer(errors, origin)
        self._output = bytearray()
        self._errors = bytearray()
        self._is_whole = True
        self._stopping = threading.Lock()
        self._stop_asked = False
        self._connection: socket.socket | None = None
        self._said = bytearray()
        self._has_begun = False
        """True if some of it may have run."""
        self._pid: int | None = None

    def stop(self) -> None:
        """End it: SIGTERM, then SIGKILL after its grace period. From any thread; a second call is no error."""
        with self._stopping:
            self._stop_asked = True
            if self._connection is not None:
                _end_output(self._connection)

    def wait(self) -> CommandResult:
        """Run it to its end and return the result. Raises `NotStarted` if it cannot be started."""
        began = time.monotonic()
        with contextlib.ExitStack() as opened:  # an error closes its socket, and that ends it
            with _starting():
                selector = opened.enter_context(selectors.DefaultSelector())
                pipes = self._launch(opened)
            report = self._follow(selector, *pipes)
        code = report["ended"]
        return CommandResult(
            exit=Exit(
                exit_code=code if code is not None and code >= 0 else None,
                signal=-code if code is not None and code < 0 else None,
                peak_memory=0,
                at=SystemClock().now(),
            ),
            seconds=time.monotonic() - began,
            output=bytes(self._output),
            is_complete=self._is_whole,
            errors=bytes(self._errors[-TAIL_BYTES:]),
            timed_out=report["late"],
            is_stopped=report["stopped"],
        )

    def _launch(self, opened: contextlib.ExitStack) -> tuple[socket.socket, int, int]:
        """Request its start. Returns the socket on which its parent reports, and the pipes of its stdout and stderr."""
        ours, theirs = socket.socketpair()
        opened.callback(self._disconnect, ours)
        with theirs, contextlib.ExitStack() as passed:
            printed, writes_output = _pipe(opened, passed)
            said, writes_errors = _pipe(opened, passed)
            with self._input() as given:
                LAUNCHER.hand_over((theirs.fileno(), given, writes_output, writes_errors))
        with self._stopping:
            self._connection = ours
            if self._stop_asked:
                _end_output(ours)
        if not self._stop_asked:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its parent is gone: `_follow` notices
                ours.sendall(self._order())
        return ours, printed, said

    def _order(self) -> bytes:
        program = self._program
        order = {
            "words": program.argv,
            "folder": program.cwd,
            "variables": self._variables,
            "timeout": None if program.timeout is None else program.timeout / SECOND,
            "kill_grace": program.kill_grace / SECOND,
            "item": self._item,
        }
        return json.dumps(order).encode() + b"\n"

    def _disconnect(self, connection: socket.socket) -> None:
        with self._stopping:
            self._connection = None
            connection.close()

    @contextlib.contextmanager
    def _input(self) -> Iterator[int]:
        """Yield the descriptor of an anonymous file with its input."""
        with contextlib.ExitStack() as opened:
            if hasattr(os, "memfd_create"):
                descriptor = os.memfd_create("redrive-item")
                opened.callback(os.close, descriptor)
            else:
                descriptor = opened.enter_context(tempfile.TemporaryFile()).fileno()
            with open(descriptor, "wb", closefd=False) as file:
                file.write(self._given)
            os.lseek(descriptor, 0, os.SEEK_SET)
            yield descriptor

    def _follow(
        self, selector: selectors.BaseSelector, connection: socket.socket, printed: int, said: int
    ) -> dict[str, Any]:
        """Read its output until its parent reports its end, and return that report."""
        selector.register(connection, selectors.EVENT_READ)
        for descriptor in (printed, said):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        report: dict[str, Any] | None = None
        while report is None:
            for key, _ in selector.select():
                if key.fileobj is connection:
                    report = self._heard(connection)
                elif self._read(key.fd, key.fd == printed) == 0:
                    selector.unregister(key.fd)
        self._read_rest(printed, said)
        return report

    def _heard(self, connection: socket.socket) -> dict[str, Any] | None:
        """Read what its parent reports. Returns the report of its end, or None while it runs."""
        try:
            data = connection.recv(_CHUNK)
        except ConnectionResetError:
            data = b""
        if not data:
            return self._vanished()
        self._said += data
        while b"\n" in self._said:
            line, _, self._said = self._said.partition(b"\n")
            match json.loads(line):
                case {"begins": _}:
                    self._has_begun = True
                case {"started": pid}:
                    self._pid = pid
                case {"refused": [number, problem]}:
                    where = self._program.argv[0] if os.path.isdir(self._program.cwd) else self._program.cwd
                    raise NotStarted(number or errno.EINVAL, problem, where)
                case {"waits": _}:
                    _log.warning("run_waits", item=self._item)
                case {"unlocked": problem}:
                    _log.warning("run_not_locked", item=self._item, error=problem)
                case report:
                    ended: dict[str, Any] = report
                    return ended
        return None

    def _vanished(self) -> dict[str, Any]:
        """Handle the death of its parent: kill its session, and return a report without an exit code."""
        if not self._has_begun:
            raise NotStarted(errno.ECHILD, "the process that starts commands is gone")
        if self._pid is not None:
            signal_session(self._pid, signal.SIGKILL)
        return {"ended": None, "late": False, "stopped": self._stop_asked}

    def _read_rest(self, printed: int, said: int) -> None:
        for descriptor in (printed, said):
            read = 0
            while read < _LAST_BYTES and (more := self._read(descriptor, descriptor == printed) or 0):
                read += more
        for passed in (self._passed_output, self._passed_errors):
            if passed is not None:
                passed.end()

    def _read(self, descriptor: int, is_output: bool) -> int | None:
        """Read and process a chunk. Returns its length: 0 at the end of the stream, None if nothing is there now."""
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
    """Raise OSError as `NotStarted` within this: the program has not run."""
    try:
        yield
    except OSError as error:
        raise NotStarted(error.errno, error.strerror or str(error), error.filename) from error


def _pipe(reading: contextlib.ExitStack, writing: contextlib.ExitStack) -> tuple[int, int]:
    reads, writes = os.pipe()
    reading.callback(os.close, reads)
    writing.callback(os.close, writes)
    return reads, writes


def _end_output(connection: socket.socket) -> None:
    """Ask the parent to end the run."""
    with contextlib.suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_WR)


def environment(program: CommandSpec, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program: those of the worker without its secrets, those given, and its own."""
    hidden = {*_SECRETS, *program.hidden}
    ours = {name: value for name, value in os.environ.items() if name not in hidden}
    url = ours.pop("REDRIVE_URL", None)
    if url is not None and (harmless := strip_password(url)) is not None:
        ours["REDRIVE_URL"] = harmless
    return {**ours, **variables, **program.variables}
