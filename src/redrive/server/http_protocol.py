"""One connection, with limits that uvicorn lacks: the size of the head of a request, and the time for it to arrive.

It submits a complete request that is one store call directly to the committer (`direct_path`), without a cycle or a
task of uvicorn.

It also writes usual responses with one call, and keeps one timer for all idle periods. uvicorn processes each header of
each response, which are constant here except the length, and starts a timer after each response.
"""

from __future__ import annotations

import asyncio
import select
from asyncio.events import TimerHandle
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from redrive.server.asgi import ABORT, ANSWER, IS_GONE, Server
from redrive.server.direct_path import DirectRequest
from redrive.server.request_limits import Busy
from redrive.server.request_line import FEW_BYTES, MANY_BYTES, MAX_LINES, LineFlow, RequestLine

MAX_HEAD_BYTES = 64 * 1024
"""Maximum bytes of the first line and the headers of a request."""
HEAD_SECONDS = 15.0
"""Maximum seconds for the first line and the headers to arrive."""
MAX_CONNECTIONS = 20_000
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_PROBLEM = b'{"code":"request_too_large","message":"the headers are over 64 KiB","details":{}}'
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_PROBLEM), _PROBLEM)
)


class Connection(RequestLine):
    """A connection that ends if a head is too large or too slow, or if there are too many connections."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._in_head = True
        self._gets_on = False
        """True if the last data received contained the start of a request or a part of a body."""
        self._is_behind = False
        """True if the last data received contained the end of a request: the rest may belong to the next head."""
        self._slow: TimerHandle | None = None
        self._idle: TimerHandle | None = None
        self._idle_since = 0.0
        self._dated: list[tuple[bytes, bytes]] | None = None
        self._date = b""
        self._unread: TimerHandle | None = None
        """The timer that runs while the client has too much output to read."""
        is_ours = isinstance(self.app, Server)
        if is_ours:
            self._limits, self._bodies, self._turns = self.app.limits, self.app.bodies, self.app.turns
        takes_direct = is_ours and not self.root_path and hasattr(self, "_start_asgi_task")
        self._direct_routes = self.app.direct_routes if takes_direct else {}
        self._direct: DirectRequest | None = None
        """A request that may take the direct path, until it has arrived completely."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first head."""
        super().connection_made(transport)
        self.flow = LineFlow(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._slow = self.loop.call_later(HEAD_SECONDS, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers and notify the running request."""
        self._stop_waiting()
        self._delayed = None
        self._drop_line()
        for timer in (self._idle, self._unread):
            if timer is not None:
                timer.cancel()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received data, in turns if it may have many requests."""
        size = len(data)
        if self._unparsed or (size > FEW_BYTES and (size > MANY_BYTES or data.count(b"\n") > MAX_LINES)):
            self._parse_in_turn(data)
            return
        self._parse(data)
        if self._in_head or self._direct is not None:
            self._end_data()
        if self.pipeline:
            self._line_data = size
            self._hold_line()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Process the end of what the client sends. Return whether a response is due, which ends the connection.

        Leases and long polls end, since a client that is gone sends the same.
        """
        running = self._running
        if running is None or running.more_body:
            return False
        self._is_last = True
        self._hold_reading()
        running.message_event.set()
        return True

    def _parse(self, data: bytes) -> None:
        """Process data of a head or a body, within the limits."""
        self._gets_on = self._is_behind = False
        super().data_received(data)
        if self._in_head or not self._gets_on:  # the trailer of a chunked body counts as a head
            if not self._is_behind:  # the size of a head that starts behind a body is unknown
                self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                if not self._owes_answer:
                    self.transport.write(_TOO_LARGE)
                self.transport.close()

    def _end_data(self) -> None:
        """Process the end of received data: what is incomplete needs a timer."""
        if self._direct is not None:  # the application limits the time for the rest of the body
            self._leave_to_application(self._direct)
        if self._in_head and self._slow is None and not self.transport.is_closing():
            self._slow = self.loop.call_later(HEAD_SECONDS, self._end)

    def _log_dropped(self, problem: Busy) -> None:
        if isinstance(self.app, Server):
            self.app.refused(problem)

    def on_message_begin(self) -> None:
        """Process the start of a head."""
        self._in_head = self._gets_on = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Process a complete head: choose the direct path or uvicorn's cycle."""
        self._in_head = False
        self._stop_waiting()
        route = self._direct_routes.get(self.url)
        headers = {} if route is None else dict(self.headers)
        if route is not None and self._may_be_direct(headers):
            self._direct = DirectRequest(self, route, self.scope, headers)
            self.cycle = self._direct  # type: ignore[assignment]  # it has all that uvicorn uses of a cycle
        else:
            super().on_headers_complete()
        self.headers = []  # trailers are no headers: a request keeps those of its head

    def _may_be_direct(self, headers: dict[bytes, bytes]) -> bool:
        """Return whether a request is a usual one, which differs only in its body from others of its route."""
        parser, cycle = self.parser, self.cycle
        return (
            (cycle is None or cycle.response_complete)
            and not self.flow.write_paused
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.expect_100_continue
            and b"transfer-encoding" not in headers
        )

    def on_body(self, body: bytes) -> None:
        """Process a part of a body."""
        self._gets_on = True
        if self._direct is None:
            super().on_body(body)
        else:
            self._direct.body += body

    def on_message_complete(self) -> None:
        """Process the end of a request: submit it directly, or leave it to the application."""
        self._is_behind = True
        if self._direct is None:
            super().on_message_complete()
        elif self._direct.hand_in():
            self._running, self._direct = self._direct, None
        else:
            self._leave_to_application(self._direct)

    def _leave_to_application(self, request: DirectRequest) -> None:
        self._direct = None
        self.run_application(request)

    def run_application(self, request: DirectRequest, app: Any = None) -> None:
        """Let the application, or `app`, answer a request of the direct path, as uvicorn does."""
        path = request.path
        request.scope.update(method="POST", path=path, raw_path=path.encode(), query_string=b"")
        cycle = RequestResponseCycle(
            scope=request.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=request.keep_alive,
            on_response=self.on_response_complete,
        )
        cycle.body += request.body
        cycle.more_body, cycle.disconnected = request.more_body, request.disconnected
        if request.body or not request.more_body:
            cycle.message_event.set()
        if self.cycle is request:  # type: ignore[comparison-overlap]  # otherwise another request follows it
            self.cycle = cycle
        self._start_asgi_task(cycle, app or self.app)

    def send_400_response(self, msg: str) -> None:
        """Answer invalid data, or close the connection if a response is still due."""
        if self._owes_answer:
            self.transport.close()
        else:
            super().send_400_response(msg)

    @property
    def _owes_answer(self) -> bool:
        """True if a complete request has no response yet. An error would be taken for its response: then the connection
        ends without one, and the outcome is unknown to the client."""
        cycle = self.cycle
        if self.pipeline:
            return True
        return cycle is not None and not cycle.response_complete and (cycle.response_started or not cycle.more_body)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        # A uvicorn that starts requests in another way does not call this, and writes the responses itself.
        if self.flow.write_paused:  # a lease would not reach a client that does not read
            self._delayed = cycle, app
            return
        self._running = cycle
        cycle.scope[ANSWER] = partial(self.answer, cycle)
        cycle.scope[ABORT] = self.transport.abort
        cycle.scope[IS_GONE] = partial(self.is_gone, cycle)
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        """Stop reading, and start the timer after which a connection ends whose client does not read its output."""
        super().pause_writing()
        self._hold_reading()
        self._unread = self.loop.call_later(self._limits.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel that timer and start the delayed request: the client has read most of its output."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if self._delayed is not None:
            delayed, self._delayed = self._delayed, None
            self._start_asgi_task(*delayed)
        self._hold_reading()

    def is_gone(self, cycle: Any) -> bool:
        """Return whether the client may have gone: it sends nothing any more. Query the socket:
        the loop may not have read the end yet, and does not while reading is paused for another request."""
        if cycle.disconnected or self.transport.is_closing():
            return True
        return _has_hung_up(self.transport.get_extra_info("socket"))

    def answer(self, cycle: Any, status: int, head: bytes, body: bytes) -> bool:
        """Write a whole response. Return False, with nothing written, if that is impossible now."""
        if cycle.disconnected or cycle.response_started or self.flow.write_paused:
            return False
        dated = self.server_state.default_headers
        if dated is not self._dated:  # uvicorn replaces them every second
            self._dated = dated
            self._date = b"".join([b"%b: %b\r\n" % header for header in dated])
        closing = b"" if cycle.keep_alive else b"connection: close\r\n"
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        self.transport.write(b"".join((STATUS_LINE[status], self._date, closing, head, body)))
        cycle.message_event.set()
        if closing:
            self.transport.close()
        self.on_response_complete()
        return True

    def on_response_complete(self) -> None:
        """Process the end of a response: the connection is idle, unless the next request is here already.

        uvicorn starts a timer for each idle period; this timer checks from time to time how long it has been idle.
        """
        if self._running is not None:
            self._running.body = b""  # uvicorn keeps what a refused request did not read
            self._running = None
        if self.transport.is_closing():
            super().on_response_complete()
            return
        if self.pipeline:
            self._turns.join(self.take_turn)
            return
        self.server_state.total_requests += 1
        if self._unparsed:
            self._turns.join(self.take_turn)
            return
        if self._is_last:
            self.transport.close()
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle is None:
            self._idle = self.loop.call_later(self.timeout_keep_alive, self._look_whether_idle)

    def shutdown(self) -> None:
        """Execute the requests that have been parsed, and end the connection."""
        if self.cycle is None or not self.cycle.more_body:  # otherwise it is the rest of the last one
            self._unparsed = b""
        super().shutdown()

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
        if self.transport.get_write_buffer_size():  # the client does not read: closing would wait without end
            self.transport.abort()
        else:
            self.transport.close()


def _has_hung_up(connection: Any) -> bool:
    asked = select.poll()
    asked.register(connection, _GONE)
    return bool(asked.poll(0))
