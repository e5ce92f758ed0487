"""A queue in the kernel for deliveries to a child: the child takes them from its end, and the worker can reclaim them.

Each datagram is one delivery. The kernel hands it to the child or back to the worker, never to both, and keeps it when
the child dies. So a child has at most one item that it took and has not reported, and the worker can reclaim everything
behind that at any time, also while the child runs something.
"""

from __future__ import annotations

import contextlib
import select
import socket

import msgspec

from redrive.model.ids import Token
from redrive.worker.ipc import Channel, Delivery, ToChild

MAX_DATAGRAM_BYTES = 1 << 16
"""Largest delivery that is queued. A larger one goes through the channel of the child, when it is idle."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Delivery).decode


class ChildQueue:
    """The worker's end. Never waits. For one thread at a time."""

    def __init__(self) -> None:
        self._writes, self.reads = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        """`reads` is for the child, and stays open here."""

    def put(self, delivery: Delivery) -> bool:
        """Queue a delivery, and return whether there was room for it."""
        data = _encode(delivery)
        if len(data) > MAX_DATAGRAM_BYTES:
            return False
        try:
            self._writes.send(data, socket.MSG_DONTWAIT)
        except OSError:  # it is full, or this is longer than the datagrams of the system
            return False
        return True

    def reclaim(self) -> list[Token]:
        """Remove the deliveries that the child has not taken, and return their tokens, oldest first."""
        taken: list[Token] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self.reads.recv(MAX_DATAGRAM_BYTES, socket.MSG_DONTWAIT)
                taken.append(_decode(data).lease.token)
        return taken

    def close(self) -> None:
        """Close both ends here."""
        self._writes.close()
        self.reads.close()


class Inbox:
    """The child's end: its queue, and its channel for large deliveries and the request to stop."""

    def __init__(self, queue: socket.socket, channel: Channel[ToChild]) -> None:
        self._queue = queue
        self._channel = channel
        self._data = bytearray(MAX_DATAGRAM_BYTES)
        self._view = memoryview(self._data)
        self._poll = select.poll()
        self._poll.register(queue, select.POLLIN)
        self._poll.register(channel, select.POLLIN)

    def take(self) -> Delivery | None:
        """Wait for the next delivery and return it, or None if the child is to stop."""
        while True:
            try:
                return _decode(self._view[: self._queue.recv_into(self._data, 0, socket.MSG_DONTWAIT)])
            except BlockingIOError:
                pass
            except OSError:  # a handler has closed it
                return None
            if self._channel.fileno() in (descriptor for descriptor, _ in self._poll.poll()):
                frame = self._channel.wait()
                return frame if isinstance(frame, Delivery) else None
