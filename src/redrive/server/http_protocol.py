"""One connection, with what uvicorn leaves open: how large the head of a request may be, and how long it may take.

It also writes answers of the usual kind in one go, and has one timer for all the times that it is idle. uvicorn looks
at every header of every answer, which are known here but for the length, and begins a timer after each.
"""

from __future__ import annotations

import asyncio
from asyncio.events import TimerHandle
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from redrive.server.asgi import ABORT, ANSWER

MAX_HEAD_BYTES = 64 * 1024
"""Of the first line and the headers of a request."""
HEAD_SECONDS = 15.0
"""For the first line and the headers to arrive."""
MAX_CONNECTIONS = 20_000
_PROBLEM = b'{"code":"request_too_large","message":"the headers are over 64 KiB","details":{}}'
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_PROBLEM), _PROBLEM)
)


class Connection(HttpToolsProtocol):
    """Ends where a head is too large or too slow, or where there are too many."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._in_head = True
        self._gets_on = False
        """Whether what was received last had a request in it, or some of its body."""
        self._is_behind = False
        """Whether what was received last had the end of a request in it: what comes behind may be of the next head."""
        self._slow: TimerHandle | None = None
        self._idle: TimerHandle | None = None
        self._idle_since = 0.0
        self._dated: list[tuple[bytes, bytes]] | None = None
        self._date = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._slow = self.loop.call_later(HEAD_SECONDS, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._stop_waiting()
        if self._idle is not None:
            self._idle.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes, of a head or a body."""
        self._gets_on = self._is_behind = False
        super().data_received(data)
        if self._in_head or not self._gets_on:  # what comes behind a body in chunks is as a head
            if not self._is_behind:  # how much of it is of a head that begins behind a body is not known
                self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                if not self._owes_answer:
                    self.transport.write(_TOO_LARGE)
                self.transport.close()
            elif self._in_head and self._slow is None:
                self._slow = self.loop.call_later(HEAD_SECONDS, self._end)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = self._gets_on = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._gets_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request is there."""
        self._is_behind = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What came is no request."""
        if self._owes_answer:
            self.transport.close()
        else:
            super().send_400_response(msg)

    @property
    def _owes_answer(self) -> bool:
        """Whether a whole request came that is not answered yet. An error would be read as its answer: then the
        connection ends without one, which says that nobody knows."""
        cycle = self.cycle
        if self.pipeline:
            return True
        return cycle is not None and not cycle.response_complete and (cycle.response_started or not cycle.more_body)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        # A uvicorn that begins requests in another way does not come here, and answers are written by itself.
        cycle.scope[ANSWER] = partial(self._answer, cycle)
        cycle.scope[ABORT] = self.transport.abort
        super()._start_asgi_task(cycle, app)

    def _answer(self, cycle: Any, status: int, head: bytes, body: bytes) -> bool:
        """Write a whole answer. False where it cannot be done now: then nothing was written."""
        if cycle.disconnected or cycle.response_started or cycle.flow.write_paused:
            return False
        dated = cycle.default_headers
        if dated is not self._dated:  # they are made anew every second
            self._dated = dated
            self._date = b"".join([b"%b: %b\r\n" % header for header in dated])
        closing = b"" if cycle.keep_alive else b"connection: close\r\n"
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"".join((STATUS_LINE[status], self._date, closing, head, body)))
        cycle.message_event.set()
        if closing:
            cycle.transport.close()
        cycle.on_response()
        return True

    def on_response_complete(self) -> None:
        """An answer was written. Now the connection is idle, unless the next request is here already.

        uvicorn has a timer for each time that it is; this one looks now and then how long it has been.
        """
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle is None:
            self._idle = self.loop.call_later(self.timeout_keep_alive, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        left = self.timeout_keep_alive - (self.loop.time() - self._idle_since)
        is_busy = self._in_head or not self.cycle.response_complete
        if left <= 0 and not is_busy:
            self._end()
        else:
            self._idle = self.loop.call_later(max(left, 1.0), self._look_whether_idle)

    def _stop_waiting(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _end(self) -> None:
        if self.transport.get_write_buffer_size():  # nobody reads it: it would be waited for without end
            self.transport.abort()
        else:
            self.transport.close()
