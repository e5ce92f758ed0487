"""The line of a connection: requests behind one that is not answered yet (pipelining).

Until all of them have started, and while the client does not read its responses, nothing more is read. Connections with
a line start their next requests, and parse what they have received, in turn (`LineTurns`): others are served between.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from redrive.server.request_limits import DEFAULT_LIMITS, IN_LINE, BodyBudget, Busy, LineTurns

MAX_LINES = 32
"""Maximum lines that are parsed in one piece. A request has two at least, so that a piece has at most 16 requests."""
MAX_PIECES = 64
"""Maximum pieces that are parsed in one turn."""
REQUEST_BYTES = 4 * 1024
"""The memory of a request in line besides its bytes."""
FEW_BYTES = MAX_LINES // 2 * len(b"GET / HTTP/1.1\r\n\r\n")
"""Bytes that have no more requests than a piece."""
MANY_BYTES = 8 * 1024
"""Bytes whose lines are not counted before they are parsed in pieces."""


class LineFlow(FlowControl):
    """The flow control of a connection. While reading is held, a request that is being executed cannot resume it."""

    is_held = False

    def resume_reading(self) -> None:
        """Resume reading unless it is held."""
        if not self.is_held:
            super().resume_reading()


class RequestLine(HttpToolsProtocol):
    """The part of a connection that has the requests in line."""

    flow: LineFlow

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits, self._bodies, self._turns = DEFAULT_LIMITS, BodyBudget(), LineTurns()
        self._running: Any = None
        """The request that is being executed, until it is answered: a cycle that the application runs, or a direct
        request. uvicorn knows only the latest one, which may be queued behind it."""
        self._delayed: tuple[Any, Any] | None = None
        """The next cycle and its application, while the client has too much output to read."""
        self._unparsed = b""
        """Received data that may have many requests, until all of it has been parsed."""
        self._parsed = 0
        """The number of its bytes that have been parsed."""
        self._line_data = self._line_bytes = 0
        """The bytes that were received with the requests in line, and those that are counted for the line."""
        self._is_last = False
        """True if nothing is read any more: the connection ends with the response to the last request in line."""

    def _parse(self, data: bytes) -> None:
        """Process data of a head or a body."""
        raise NotImplementedError

    def _end_data(self) -> None:
        """Process the end of received data."""
        raise NotImplementedError

    def _log_dropped(self, problem: Busy) -> None:
        """Log that a line was dropped."""

    def _parse_in_turn(self, data: bytes) -> None:
        """Parse data that may have many requests; now if there is no memory for more: then a line is dropped, and one
        request with many lines is executed."""
        self._unparsed, self._parsed = self._unparsed[self._parsed :] + data, 0
        self._line_data = len(self._unparsed)
        if self._count_line() is None:
            self._hold_reading()
            self._turns.join(self.take_turn)
        else:
            self.take_turn()

    def take_turn(self) -> None:
        """Start the next request in line, or parse until one is in line."""
        if self.transport.is_closing():
            return
        if self.pipeline:
            super().on_response_complete()
        else:
            self._parse_pieces()
        if self._unparsed and not self.pipeline:  # which may be the rest of a request that is being executed
            self._turns.join(self.take_turn)
        self._hold_line()

    def _parse_pieces(self) -> None:
        """Parse received data in pieces until a request is in line."""
        data = self._unparsed
        for _ in range(MAX_PIECES):
            start = self._parsed
            if start == len(data) or self.pipeline or self.transport.is_closing():
                break
            self._parsed = _end_of_piece(data, start)
            self._parse(data[start : self._parsed])
        if self._parsed == len(data):
            self._unparsed = b""
            self._end_data()

    def _hold_line(self) -> None:
        """Stop reading while requests are in line. A line for which there is no memory is dropped: the connection ends
        with the response to the request that is being executed."""
        problem = self._count_line()
        if problem is not None and self.pipeline:
            running = self._running or (None if self._delayed is None else self._delayed[0])
            self._drop_line()
            self._is_last = True
            if running is None:
                self.transport.close()
            else:
                running.keep_alive = False
            self._log_dropped(problem)
        self._hold_reading()

    def _hold_reading(self) -> None:
        if self.transport.is_closing():
            return
        self.flow.is_held = bool(self.pipeline or self._unparsed or self._is_last or self.flow.write_paused)
        if self.flow.is_held:
            self.flow.pause_reading()
        else:
            self.flow.resume_reading()

    def _count_line(self) -> Busy | None:
        """Count the line in the memory for bodies. Return the refusal if that is exceeded."""
        problem = None
        is_there = self._unparsed or self.pipeline
        more = (self._line_data + REQUEST_BYTES * len(self.pipeline) if is_there else 0) - self._line_bytes
        if more > 0:
            try:
                self._bodies.check(IN_LINE, self._line_bytes, more, self._limits.max_total_body_bytes)
            except Busy as error:
                problem = error
        self._bodies.add_line(more)
        self._line_bytes += more
        return problem

    def _drop_line(self) -> None:
        self._unparsed = b""
        self.pipeline.clear()
        self._count_line()


def _end_of_piece(data: bytes, start: int) -> int:
    """Return the end of the next lines."""
    for _ in range(MAX_LINES):
        start = data.find(b"\n", start) + 1
        if not start:
            return len(data)
    return start
