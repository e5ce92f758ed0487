"""Messages between a worker and the processes that run its handlers: values as msgpack, each after its length.

    worker ──ZygoteSetup, Fork (with a socket), Kill──► zygote
    zygote ──ZygoteReady | StartupFailed, Forked, ChildExited──► worker
    worker ──Delivery (see child_queue.py), Stop──► child ──JobReport──► worker
    supervisor ──WorkerLaunch, Stop──► worker

A child does not use the broker of the worker: it receives deliveries and reports outcomes, which the worker settles.
"""

from __future__ import annotations

import select
import socket
import struct
from typing import Any, Generic, TypeVar

import msgspec

from redrive.broker.worker_session import Outcome
from redrive.model.ids import Token
from redrive.model.item import Lease
from redrive.model.url import redact_url
from redrive.worker.execution import HandlerSettings
from redrive.worker.process_exit import Exit

MAX_FRAME_BYTES = 1 << 30
"""Longest frame. A longer length comes from code that writes to the wrong descriptor."""
_READ_BYTES = 1 << 16
_LENGTH = struct.Struct("<I")
_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()


class ZygoteSetup(msgspec.Struct, frozen=True, tag=True):
    """To a zygote, as the first message: the app to import, and the settings of its children."""

    app: str
    """`module:attribute`."""
    path: tuple[str, ...]
    """The `sys.path` of the worker."""
    url: str | None = None
    """The store, instead of the one that the app names."""
    memory_limit: int | None = None
    """Bytes of memory that a child can have."""
    in_flight_log: str = ""
    """The path of the log in which a child records what it starts."""

    def __repr__(self) -> str:
        return f"ZygoteSetup(app={self.app!r}, url={self.url and redact_url(self.url)!r})"


class Fork(msgspec.Struct, frozen=True, tag=True):
    """To a zygote: fork a child for a slot of the in-flight log. Sockets for its channel and its queue come with this.

    It is answered by Forked with the same number.
    """

    number: int
    slot: int


class Kill(msgspec.Struct, frozen=True, tag=True):
    """To a zygote: kill this child, and all that it started. Without effect if it has ended already."""

    pid: int


class ZygoteReady(msgspec.Struct, frozen=True, tag=True):
    """From a zygote: the app is imported."""


class StartupFailed(msgspec.Struct, frozen=True, tag=True):
    """From a zygote, last: the app cannot be imported."""

    problem: str


class Forked(msgspec.Struct, frozen=True, tag=True):
    """From a zygote: the child of that number runs, or could not be forked."""

    number: int
    pid: int = 0
    problem: str | None = None


class ChildExited(msgspec.Struct, frozen=True, tag=True):
    """From a zygote: a child has ended."""

    pid: int
    exit: Exit


class Delivery(msgspec.Struct, frozen=True, tag=True, gc=False):
    """To a child: run this."""

    lease: Lease
    handling: HandlerSettings


class JobReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From a child: the outcome of an item, and the seconds that its handler ran."""

    token: Token
    outcome: Outcome
    seconds: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """To a child or a worker: start nothing more, and finish what runs. With `at_once`: do not finish it."""

    at_once: bool = False


class WorkerLaunch(msgspec.Struct, frozen=True, tag=True):
    """To a worker, as the first message: its options from the command line."""

    app: str
    """`module:attribute`: an App, or another program."""
    queues: tuple[str, ...] = ()
    concurrency: int = 8
    processes: int = 0
    url: str | None = None
    until_idle: bool = False
    shutdown_timeout: float = 30.0
    """Seconds."""
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    memory_limit: int | None = None
    max_items_per_child: int | None = None
    options: tuple[str, ...] = ()
    """Options given on the command line that not every program takes, as in `--queue`."""
    in_flight_log: str = ""
    """The path of its in-flight log."""
    orphans_of: tuple[str, ...] = ()
    """Paths of in-flight logs of dead workers, whose leases are to be settled."""

    def __repr__(self) -> str:
        return f"WorkerLaunch(app={self.app!r}, queues={self.queues!r}, url={self.url and redact_url(self.url)!r})"


# What each end receives.
ToZygote = ZygoteSetup | Fork | Kill
FromZygote = ZygoteReady | StartupFailed | Forked | ChildExited
ToChild = Delivery | Stop
FromChild = JobReport
ToWorker = WorkerLaunch | Stop


class FrameInvalid(Exception):
    """An error for received data that is no frame. `before` has the frames that came before it."""

    def __init__(self, problem: str, before: list[Any]) -> None:
        super().__init__(problem)
        self.before = before


class Channel(Generic[_T]):
    """One end of a socket, and the frames that go through it. Not thread-safe.

    Only `wait`, `send(…, wait=True)`, `send_with` and `receive_with` block. `send` keeps unsent data until `flush`.
    """

    def __init__(self, connection: socket.socket, hears: Any) -> None:
        self._socket = connection
        self._decode = msgspec.msgpack.Decoder(hears).decode
        self._in = bytearray()
        self._out = bytearray()
        self.is_garbled = False
        """True if received data was no frame: no more is read."""
        self.has_ended = False
        """True if the other end is closed, or gone. What it sent before may still have to be received."""

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def is_full(self) -> bool:
        """True if there is unsent data to flush."""
        return bool(self._out)

    def send(self, frame: msgspec.Struct, *, wait: bool = False) -> None:
        """Send a frame. Raises OSError if the other end is gone."""
        before = len(self._out)
        try:
            self._out += bytes(_LENGTH.size)
            _encoder.encode_into(frame, self._out, -1)  # `encode` crashes if there is not enough memory
            _LENGTH.pack_into(self._out, before, len(self._out) - before - _LENGTH.size)
        except BaseException:  # a length without its data would take in the next frame
            del self._out[before:]
            raise
        if wait:
            self._socket.sendall(self._out)
            self._out.clear()
        else:
            self.flush()

    def send_with(self, frame: msgspec.Struct, *connections: socket.socket) -> None:
        """Send a frame with sockets, and wait until that is done. Raises OSError if the other end is gone."""
        data = _encoder.encode(frame)
        data = _LENGTH.pack(len(data)) + data
        sent = socket.send_fds(self._socket, [data], [connection.fileno() for connection in connections])
        self._socket.sendall(data[sent:])

    def flush(self) -> None:
        """Send unsent data, as much as is possible without blocking."""
        while self._out:
            try:
                sent = self._socket.send(self._out, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            del self._out[:sent]

    def receive(self) -> list[_T]:
        """Return the frames that have come. Sets `has_ended` after the last one. Raises FrameInvalid, once."""
        try:
            while True:
                data = self._socket.recv(max(_READ_BYTES, self._missing()), socket.MSG_DONTWAIT)
                if not data:
                    self.has_ended = True
                    break
                self._in += data
                if len(data) < _READ_BYTES:
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.has_ended = True
        return self._frames()

    def receive_with(self) -> tuple[list[_T], list[int]]:
        """Wait for data, and return the frames that have come and the descriptors that came with them, in order."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, _READ_BYTES, 64)
        if not data:
            self.has_ended = True
        self._in += data
        return self._frames(), descriptors

    def wait(self) -> _T | None:
        """Wait for the next frame; None if the other end is gone. For receivers that are sent one at a time."""
        while True:
            if frames := self._frames(limit=1):
                return frames[0]
            try:
                data = self._socket.recv(max(_READ_BYTES, self._missing()))
            except OSError:
                return None
            if not data:
                return None
            self._in += data

    def has_more(self) -> bool:
        """Return whether there is data to receive, or the end of the stream. Costs one system call."""
        if self._in:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close this end. What was sent can still be received at the other one."""
        self._socket.close()

    def _frames(self, limit: int | None = None) -> list[_T]:
        found: list[_T] = []
        start = 0
        if self.is_garbled:
            self._in.clear()
        with memoryview(self._in) as view:
            while len(view) - start >= _LENGTH.size and (limit is None or len(found) < limit):
                (length,) = _LENGTH.unpack_from(view, start)
                if length > MAX_FRAME_BYTES:
                    self.is_garbled = True
                    raise FrameInvalid(f"a frame of {length:,} bytes", found)
                end = start + _LENGTH.size + length
                if len(view) < end:
                    break
                try:
                    found.append(self._decode(view[start + _LENGTH.size : end]))
                except msgspec.DecodeError as error:
                    self.is_garbled = True
                    raise FrameInvalid(str(error), found) from error
                start = end
        if start:
            del self._in[:start]
        return found

    def _missing(self) -> int:
        """Return the bytes until the current frame is complete."""
        if len(self._in) < _LENGTH.size:
            return 0
        length: int = _LENGTH.unpack_from(self._in)[0]
        return min(length, MAX_FRAME_BYTES) + _LENGTH.size - len(self._in)
