"""Deliveries in transit to a child: a queue in the kernel, at whose end the child reads, and the worker too.

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
"""What is larger goes through the channel of the child, when it is idle."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Delivery).decode


class ChildQueue:
    """The worker's end. Never waits. For one thread at a time."""

    def __init__(self) -> None:
        self._writes, self.reads = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        """`reads` is for the child, and stays open here."""

    def put(self, delivery: Delivery) -> bool:
        """Whether there was room."""
        data = _encode(delivery)
        if len(data) > MAX_DATAGRAM_BYTES:
            return False
        try:
            self._writes.send(data, socket.MSG_DONTWAIT)
        except OSError:  # it is full; or the system wants datagrams to be shorter than this
            return False
        return True

    def reclaim(self) -> list[Token]:
        """Take what the child has not taken, oldest first."""
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
    """The child's end: what its queue has, and its channel, where large deliveries come and the word to stop."""

    def __init__(self, queue: socket.socket, channel: Channel[ToChild]) -> None:
        self._queue = queue
        self._channel = channel
        self._data = bytearray(MAX_DATAGRAM_BYTES)
        self._view = memoryview(self._data)
        self._poll = select.poll()
        self._poll.register(queue, select.POLLIN)
        self._poll.register(channel, select.POLLIN)

    def take(self) -> Delivery | None:
        """The next delivery; waits for one. None: stop."""
        while True:
            try:
                return _decode(self._view[: self._queue.recv_into(self._data, 0, socket.MSG_DONTWAIT)])
            except BlockingIOError:
                pass
            except OSError:  # the handler before has closed it
                return None
            if self._channel.fileno() in (descriptor for descriptor, _ in self._poll.poll()):
                frame = self._channel.wait()
                return frame if isinstance(frame, Delivery) else None
