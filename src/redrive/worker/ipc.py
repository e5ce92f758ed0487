"""What passes between a worker and the processes that run its handlers: values as msgpack, each after its length.

    worker ──ZygoteSetup, Fork (with a socket), Kill──► zygote
    zygote ──ZygoteReady | StartupFailed, Forked, ChildExited──► worker
    worker ──Delivery (see child_queue.py), Stop──► child ──JobReport──► worker
    supervisor ──WorkerLaunch, Stop──► worker

A child has no lease and no broker of the worker's: it is given bytes, and says how it went.
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
"""No frame is longer: what claims to be has come from something that writes where it should not."""
_READ_BYTES = 1 << 16
_LENGTH = struct.Struct("<I")
_T = TypeVar("_T")
_encode = msgspec.msgpack.Encoder().encode


class ZygoteSetup(msgspec.Struct, frozen=True, tag=True):
    """To a zygote, first: what to import, and how its children live."""

    app: str
    """`module:attribute`."""
    path: tuple[str, ...]
    """Where modules are looked for, as in the worker."""
    url: str | None = None
    """The store, instead of the one that the app names."""
    memory_limit: int | None = None
    """Bytes of memory that a child can have."""
    in_flight_log: str = ""
    """The path of the log in which a child writes what it starts."""

    def __repr__(self) -> str:
        return f"ZygoteSetup(app={self.app!r}, url={self.url and redact_url(self.url)!r})"


class Fork(msgspec.Struct, frozen=True, tag=True):
    """To a zygote: make a child for a slot of the in-flight log. Its channel and its queue come with this.

    It is answered by Forked with the same number.
    """

    number: int
    slot: int


class Kill(msgspec.Struct, frozen=True, tag=True):
    """To a zygote: end this child, and all that it started, now. Nothing happens where it has ended already."""

    pid: int


class ZygoteReady(msgspec.Struct, frozen=True, tag=True):
    """From a zygote: the app is imported."""


class StartupFailed(msgspec.Struct, frozen=True, tag=True):
    """From a zygote, last: the app cannot be imported."""

    problem: str


class Forked(msgspec.Struct, frozen=True, tag=True):
    """From a zygote: the child of that number runs; or it could not be made."""

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
    """From a child: how an item ended, and for how long its handler ran."""

    token: Token
    outcome: Outcome
    seconds: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """To a child or a worker: finish what runs, begin nothing more. At once: do not finish it."""

    at_once: bool = False


class WorkerLaunch(msgspec.Struct, frozen=True, tag=True):
    """To a worker, first: what it is to do, as the command line said it."""

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
    """Options that the command line has and that not every program takes, as in `--queue`."""
    in_flight_log: str = ""
    """The path of its in-flight log."""
    orphans_of: tuple[str, ...] = ()
    """Paths of in-flight logs of dead workers, whose leases are to be settled."""

    def __repr__(self) -> str:
        return f"WorkerLaunch(app={self.app!r}, queues={self.queues!r}, url={self.url and redact_url(self.url)!r})"


# What each end hears.
ToZygote = ZygoteSetup | Fork | Kill
FromZygote = ZygoteReady | StartupFailed | Forked | ChildExited
ToChild = Delivery | Stop
FromChild = JobReport
ToWorker = WorkerLaunch | Stop


class FrameInvalid(Exception):
    """What came through a channel is no frame. `before` has the frames that came before it."""

    def __init__(self, problem: str, before: list[Any]) -> None:
        super().__init__(problem)
        self.before = before


class Channel(Generic[_T]):
    """One end of a socket, and the frames that go through it. Not for several threads at once.

    Only `wait` and `send(…, wait=True)` block. What cannot be sent at once is kept until `flush`.
    """

    def __init__(self, connection: socket.socket, hears: Any) -> None:
        self._socket = connection
        self._decode = msgspec.msgpack.Decoder(hears).decode
        self._in = bytearray()
        self._out = bytearray()
        self.is_garbled = False
        """What came was no frame, and no more is read."""
        self.has_ended = False
        """The other end is closed, or gone. What it said before may still have to be received."""

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    @property
    def is_full(self) -> bool:
        """Whether there is something left to flush."""
        return bool(self._out)

    def send(self, frame: msgspec.Struct, *, wait: bool = False) -> None:
        """Send a frame. Raises OSError where the other end is gone."""
        data = _encode(frame)
        self._out += _LENGTH.pack(len(data))
        self._out += data
        if wait:
            self._socket.sendall(self._out)
            self._out.clear()
        else:
            self.flush()

    def send_with(self, frame: msgspec.Struct, *connections: socket.socket) -> None:
        """Send a frame and sockets, and wait until that is done. Raises OSError where the other end is gone."""
        data = _encode(frame)
        data = _LENGTH.pack(len(data)) + data
        sent = socket.send_fds(self._socket, [data], [connection.fileno() for connection in connections])
        self._socket.sendall(data[sent:])

    def flush(self) -> None:
        """Send what is left, as far as that goes now."""
        while self._out:
            try:
                sent = self._socket.send(self._out, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            del self._out[:sent]

    def receive(self) -> list[_T]:
        """The frames that have come. After the last one, `has_ended`. Raises FrameInvalid, once: then none comes."""
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
        """The frames that have come, and the descriptors that came with them, in order; waits for some."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, _READ_BYTES, 64)
        if not data:
            self.has_ended = True
        self._in += data
        return self._frames(), descriptors

    def wait(self) -> _T | None:
        """The next frame; None where the other end is gone. For whoever is only ever sent one at a time."""
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
        """Whether something is there to be received, the end included. Costs one system call."""
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
        """Bytes until the frame that is coming is whole."""
        if len(self._in) < _LENGTH.size:
            return 0
        length: int = _LENGTH.unpack_from(self._in)[0]
        return min(length, MAX_FRAME_BYTES) + _LENGTH.size - len(self._in)
