"""Events: lines of the log, each with a name and fields. docs/reference/log-events.md lists them.

    _log = logger("redrive.worker")
    _log.warning("lease_lost", item=lease.id, queue=lease.queue)

They go through structlog to the `logging` of Python, under the loggers `redrive.*`, so the configuration of the program
applies to them. Each record has the line as its message, and the attributes `record.event` and `record.fields`.

Events of one transaction are formed without structlog and written together (ADR 25):

    with together():
        for lease in lost:
            _log.warning("lease_lost", item=lease.id, queue=lease.queue)

structlog is imported with the first event that is logged, not before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from redrive.model.duration import SECOND
from redrive.model.failure import failure_from_exception
from redrive.model.limits import KIB
from redrive.model.text import to_rfc3339, visible, visible_json
from redrive.telemetry.event_line import form, form_again

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

JSON_VARIABLE = "REDRIVE_LOG_JSON"
"""Environment variable: unless it is empty or 0, the log is JSON, if `configure` is called without `json`."""
MAX_WRITE_BYTES = getattr(select, "PIPE_BUF", 4 * KIB)
"""Bytes that a pipe takes in one atomic write, so that lines of several processes do not mix in it."""


class Log:
    """A logger of events, under one name. An event below its level costs one check."""

    __slots__ = ("_bound", "_stdlib")

    def __init__(self, name: str) -> None:
        self._stdlib = logging.getLogger(name)
        self._bound: BoundLogger | None = None

    def debug(self, event: str, **fields: Any) -> None:
        """Log an event for the debugging of a program."""
        self._emit(logging.DEBUG, event, fields)

    @property
    def shows_info(self) -> bool:
        """True if `info` writes anything."""
        return self._stdlib.isEnabledFor(logging.INFO)

    @property
    def shows_warning(self) -> bool:
        """True if `warning` writes anything."""
        return self._stdlib.isEnabledFor(logging.WARNING)

    def info(self, event: str, **fields: Any) -> None:
        """Log an event of normal operation."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event that an operator may have to check."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log an event that an operator has to check."""
        self._emit(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an unexpected error, with the exception that is being handled: error_type, error, traceback."""
        if not self._stdlib.isEnabledFor(logging.ERROR):
            return
        error = sys.exception()
        if error is not None:
            failure = failure_from_exception(error)
            fields |= {"error_type": failure.type, "error": failure.text, "traceback": failure.traceback}
        self._emit(logging.ERROR, event, fields)

    def _emit(self, level: int, event: str, fields: Mapping[str, Any]) -> None:
        if not self._stdlib.isEnabledFor(level):
            return
        if (lines := _waiting.lines) is not None:
            lines.append(_Line(self._stdlib, level, *form_again(event, fields)))
        else:
            (self._bound or self._bind()).log(level, event, **fields)

    def _bind(self) -> BoundLogger:
        import structlog

        # With separate processors: the program's own configuration of structlog does not matter here.
        bound: BoundLogger = structlog.wrap_logger(
            self._stdlib,
            wrapper_class=structlog.stdlib.BoundLogger,
            processors=[_to_logging],
            context_class=dict,
        ).bind()
        self._bound = bound
        return bound


def logger(name: str) -> Log:
    """Return a logger of events under that name, which starts with `redrive.`."""
    return Log(name)


def configure(*, json: bool | None = None, level: str | int = "INFO", stream: TextIO | None = None) -> bool:
    """Write the log to a stream, stderr by default: lines for people, or a JSON object for each line.

    json: by default, as the variable REDRIVE_LOG_JSON says.

    For programs without a configuration of `logging`, such as the worker command. If the root logger has handlers
    already, nothing is changed, and the return value is False.
    """
    root = logging.getLogger()
    if root.handlers:
        return False
    import structlog  # noqa: F401  # now, and not with the first event, which may come at a bad time

    as_json = os.environ.get(JSON_VARIABLE, "0") not in ("", "0") if json is None else json
    handler = _Handler(stream)
    handler.own_formatter = _json_formatter() if as_json else _PlainFormatter()
    handler.setFormatter(handler.own_formatter)
    root.addHandler(handler)
    root.setLevel(level)
    return True


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Log nothing of Redrive within this: a command shows what happens in another way."""
    ours = logging.getLogger("redrive")
    level = ours.level
    ours.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        ours.setLevel(level)


@contextlib.contextmanager
def defer_to_app_logging() -> Iterator[None]:
    """Let the `logging` setup of a program within this replace that of `configure`. Without one, the latter stays."""
    root = logging.getLogger()
    ours, level = [handler for handler in root.handlers if isinstance(handler, _Handler)], root.level
    if not ours or len(ours) < len(root.handlers):
        yield
        return
    root.handlers.clear()
    root.setLevel(logging.WARNING)  # the default of Python
    try:
        yield
    finally:
        if not root.handlers:
            root.handlers.extend(ours)
            root.setLevel(level)


class _Line(NamedTuple):
    """An event that is formatted and not written yet."""

    log: logging.Logger
    level: int
    text: str
    extra: Mapping[str, Any]

    def record(self) -> logging.LogRecord:
        """Return the record that the logger would make of it."""
        return self.log.makeRecord(self.log.name, self.level, __file__, 0, self.text, (), None, None, self.extra)


class _PerThread(threading.local):
    lines: list[_Line] | None = None


_waiting = _PerThread()
_reporter = logging.Handler()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Collect the events of this thread, and write them at the end: to our handler together, to others one by one.

    A handler that raises is reported on stderr, as by `logging`, and the next event is still written.
    """
    if _waiting.lines is not None:
        yield
        return
    lines = _waiting.lines = []
    try:
        yield
    finally:
        _waiting.lines = None
        for (log, level), alike in groupby(lines, lambda line: line[:2]):
            _write(log, level, list(alike))


def _write(log: logging.Logger, level: int, lines: Sequence[_Line]) -> None:
    handlers = list(_handlers_of(log))
    ours = handlers[0] if len(handlers) == 1 else None
    if isinstance(ours, _Handler) and not log.filters and not ours.filters and ours.formatter is ours.own_formatter:
        if level >= ours.level:
            ours.write_together(lines)
        return
    for line in lines:
        record = line.record()
        try:
            log.handle(record)
        except Exception:
            _reporter.handleError(record)


def _handlers_of(log: logging.Logger) -> Iterator[logging.Handler]:
    """Yield all handlers that a record of this logger reaches."""
    current: logging.Logger | None = log
    while current is not None:
        yield from current.handlers
        current = current.parent if current.propagate else None


class _Handler(logging.StreamHandler[TextIO]):
    """The handler that `configure` installs."""

    own_formatter: logging.Formatter | None = None
    """The formatter that `configure` sets. With another one, events are handled one by one."""

    def write_together(self, lines: Sequence[_Line]) -> None:
        """Write events of one logger and level, in writes that are atomic for a pipe."""
        record = lines[0].record()  # one for all: neither this handler nor its formatter keeps it
        chunk: list[str] = []
        room = MAX_WRITE_BYTES
        self.acquire()
        try:
            for formatted in self._formatted(record, lines):
                text = formatted + self.terminator
                size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
                if chunk and size > room:
                    self._write(record, chunk)
                    chunk, room = [], MAX_WRITE_BYTES
                chunk.append(text)
                room -= size
            self._write(record, chunk)
        finally:
            self.release()

    def _formatted(self, record: logging.LogRecord, lines: Iterable[_Line]) -> Iterator[str]:
        """Yield each event as its record would be formatted."""
        if isinstance(self.formatter, _PlainFormatter):
            record.msg = ""
            head = self.format(record)
            yield from (head + _indented(line.text) for line in lines)
            return
        for line in lines:
            record.msg = line.text
            record.__dict__.update(line.extra)
            yield self.format(record)

    def _write(self, record: logging.LogRecord, texts: Sequence[str]) -> None:
        try:
            self.stream.write("".join(texts))
            self.flush()
        except Exception as error:
            if len(texts) == 1 or not isinstance(error, UnicodeError):
                record.msg = texts[0]
                self.handleError(record)
                return
            for text in texts:  # one of them cannot be encoded, and none is written yet
                self._write(record, (text,))


class _PlainFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """Return the time in UTC, to the second, in the form of RFC 3339."""
        return f"{to_rfc3339(int(record.created) * SECOND)[:19]}Z"

    def format(self, record: logging.LogRecord) -> str:
        """Return a line. Further lines, as of a traceback, are indented, so that none can be taken for an event."""
        return _indented(super().format(record))


def _indented(text: str) -> str:
    return visible(text, "\n\t").replace("\n", "\n    ")


def _json_formatter() -> logging.Formatter:
    import structlog

    return structlog.stdlib.ProcessorFormatter(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _unfolded,
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(ensure_ascii=False),
            _on_one_line,
        ],
    )


def _on_one_line(_: object, __: str, rendered: Any) -> str:
    """Escape the characters that some readers take for the end of a line."""
    return visible_json(str(rendered))


def _unfolded(_: object, __: str, told: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace the line of our events by their name and fields. Other log messages of a program are unchanged."""
    record = told.get("_record")
    event = getattr(record, "event", None)
    fields = getattr(record, "fields", None)
    if isinstance(event, str) and isinstance(fields, dict):
        told.update(fields, event=event)
    return told


def _to_logging(_: object, __: str, told: MutableMapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments for the logger of Python: the line, and event and fields as `extra`."""
    text, extra = form(told.pop("event"), told)
    return (text,), {"extra": extra}
