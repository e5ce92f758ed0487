"""`CommandSpec`, and one run of a command: fed, drained, and ended in time, whatever it does with its streams.

The input is a file, so a program that does not read it blocks nothing. Output is read as it comes, and a bounded part
is kept. The end of the process counts, not the end of its output: something it left running may hold that open. Its
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
    """What is run. Nothing is looked up in it: the words are given to the program as they are."""

    argv: tuple[str, ...]
    """The program itself, then its arguments."""
    cwd: str
    """Where it runs, and where a program that is written with a slash is looked for."""
    variables: Mapping[str, str] = {}
    """Variables of the environment that it gets beside those of the worker."""
    hidden: tuple[str, ...] = ()
    """Variables of the worker that it does not get, unless `variables` has them."""
    timeout: int | None = None
    """How long it may run; None: as long as it wants."""
    kill_grace: int = 5 * SECOND
    """How long it may take to end after SIGTERM, before it is killed."""


MAX_OUTPUT_BYTES = 8 * MIB
"""Of what it prints, where somebody wants that."""
TAIL_BYTES = 4 * KIB
"""Of what it writes to stderr: the end."""
_CHUNK = 64 * KIB
_LAST_BYTES = 2 * MIB
"""Of what is in the pipes when it has ended. Something that it left behind may go on writing."""
_SECRETS = ("REDRIVE_TOKEN",)
_log = events.logger("redrive.worker")


class CommandResult(msgspec.Struct, frozen=True):
    """How a run ended."""

    exit: Exit
    seconds: float
    output: bytes
    is_complete: bool
    """Whether that is all it printed."""
    errors: bytes
    """The end of what it wrote to stderr."""
    timed_out: bool
    """It was ended because its time was over."""
    is_stopped: bool
    """It was ended because somebody said so."""

    @property
    def exit_unknown(self) -> bool:
        """Whether it is not known how it ended: its parent is gone."""
        return self.exit.exit_code is None and self.exit.signal is None


class NotStarted(OSError):
    """A program could not be started: nothing of it has run."""


class CommandProcess:
    """A program that is about to run. `wait` runs it, in one thread; `stop` is for any other.

    What it prints is kept, or else passed on to `output`; what it writes to stderr is passed on to `errors`. With
    `item` it begins when no other run of that item lives on this host.
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
        """Something of it may have run."""
        self._pid: int | None = None

    def stop(self) -> None:
        """End it: politely first, then not. From any thread; twice is no error."""
        with self._stopping:
            self._stop_asked = True
            if self._connection is not None:
                _end_output(self._connection)

    def wait(self) -> CommandResult:
        """Run it to its end. Raises `NotStarted` where it cannot be started."""
        began = time.monotonic()
        with contextlib.ExitStack() as opened:  # whatever happens: with its socket closed, it is ended
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
        """Have it started. Gives the socket on which its parent reports, and what it prints and writes to stderr."""
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
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its parent is gone: `_follow` sees that
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
        """What it is given, as a file that nobody else sees."""
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
        """Read what it writes, until its parent says that it has ended."""
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
        """What its parent said last of it: how it ended. None: it has not."""
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
        """Its parent is gone."""
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


def _pipe(reading: contextlib.ExitStack, writing: contextlib.ExitStack) -> tuple[int, int]:
    reads, writes = os.pipe()
    reading.callback(os.close, reads)
    writing.callback(os.close, writes)
    return reads, writes


def _end_output(connection: socket.socket) -> None:
    """Say that the run is to end."""
    with contextlib.suppress(OSError):  # it has
        connection.shutdown(socket.SHUT_WR)


def environment(program: CommandSpec, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a program gets: those of the worker without its secrets, its own, and those given."""
    hidden = {*_SECRETS, *program.hidden}
    ours = {name: value for name, value in os.environ.items() if name not in hidden}
    url = ours.pop("REDRIVE_URL", None)
    if url is not None and (harmless := strip_password(url)) is not None:
        ours["REDRIVE_URL"] = harmless
    return {**ours, **variables, **program.variables}
