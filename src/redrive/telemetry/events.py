"""Events: what happened, one line of the log for each, with a name and fields. docs/reference/log-events.md lists them.

    _log = logger("redrive.worker")
    _log.warning("lease_lost", item=lease.id, queue=lease.queue)

They go through structlog to the `logging` of Python, under the loggers `redrive.*`: whatever a program has configured
there holds for them. Each record has the line as its message, and `record.event` and `record.fields` beside it.
Secrets are taken out, long texts cut, and whatever is no text, number or truth value is named by its type only.

structlog is imported with the first event that anybody wants to see.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TextIO

from redrive.model.failure import failure_from_exception
from redrive.model.limits import KIB
from redrive.model.redact import redact_text
from redrive.model.text import clean_text, visible, visible_json

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

JSON_VARIABLE = "REDRIVE_LOG_JSON"
"""Set to anything but 0, the log is JSON where nobody says otherwise."""
MAX_VALUE_BYTES = KIB
MAX_TRACEBACK_BYTES = 8 * KIB
MAX_LOOKED_AT_BYTES = 32 * KIB
MAX_LISTED = 20
"""Of a field that is a list, so many members are shown."""


class Log:
    """Tells events under the name of one logger. What nobody listens to costs a look at the level."""

    __slots__ = ("_bound", "_stdlib")

    def __init__(self, name: str) -> None:
        self._stdlib = logging.getLogger(name)
        self._bound: BoundLogger | None = None

    def debug(self, event: str, **fields: Any) -> None:
        """For whoever looks for a mistake in the program."""
        self._emit(logging.DEBUG, event, fields)

    @property
    def shows_info(self) -> bool:
        """Whether `info` writes anything."""
        return self._stdlib.isEnabledFor(logging.INFO)

    def info(self, event: str, **fields: Any) -> None:
        """What is as it should be."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """What somebody may have to look at."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """What somebody has to look at."""
        self._emit(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error that nobody foresaw, with the exception that is being handled: error_type, error, traceback."""
        if not self._stdlib.isEnabledFor(logging.ERROR):
            return
        error = sys.exception()
        if error is not None:
            failure = failure_from_exception(error)
            fields |= {"error_type": failure.type, "error": failure.text, "traceback": failure.traceback}
        self._emit(logging.ERROR, event, fields)

    def _emit(self, level: int, event: str, fields: Mapping[str, Any]) -> None:
        if self._stdlib.isEnabledFor(level):
            (self._bound or self._bind()).log(level, event, **fields)

    def _bind(self) -> BoundLogger:
        import structlog

        # With processors of its own: how a program has configured structlog for itself does not matter here.
        bound: BoundLogger = structlog.wrap_logger(
            self._stdlib,
            wrapper_class=structlog.stdlib.BoundLogger,
            processors=[_cleaned, _to_logging],
            context_class=dict,
        ).bind()
        self._bound = bound
        return bound


def logger(name: str) -> Log:
    """What tells events under that name, which begins with `redrive.`."""
    return Log(name)


def configure(*, json: bool | None = None, level: str | int = "INFO", stream: TextIO | None = None) -> bool:
    """Write the log to a stream, stderr by default: lines for people, or a JSON object for each line.

    json: unset, as the variable REDRIVE_LOG_JSON says.

    For programs that have no other opinion, such as the worker command. Where the program has set up handlers itself,
    nothing is changed, and the answer is False.
    """
    root = logging.getLogger()
    if root.handlers:
        return False
    import structlog  # noqa: F401  # now, and not with the first event, which may come at a bad time

    as_json = os.environ.get(JSON_VARIABLE, "0") not in ("", "0") if json is None else json
    handler = _Handler(stream)
    handler.setFormatter(_json_formatter() if as_json else _PlainFormatter())
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
    """What a program sets up of `logging` meanwhile takes the place of what `configure` did; if nothing, that stays."""
    root = logging.getLogger()
    ours, level = [handler for handler in root.handlers if isinstance(handler, _Handler)], root.level
    if not ours or len(ours) < len(root.handlers):
        yield
        return
    root.handlers.clear()
    root.setLevel(logging.WARNING)  # as Python has it
    try:
        yield
    finally:
        if not root.handlers:
            root.handlers.extend(ours)
            root.setLevel(level)


class _Handler(logging.StreamHandler[TextIO]):
    """The one that `configure` makes."""


class _PlainFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def format(self, record: logging.LogRecord) -> str:
        """A line; of what has several, such as a traceback, the others are indented: none looks like one of ours."""
        return visible(super().format(record), "\n\t").replace("\n", "\n    ")


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
    """What some readers take for the end of a line is written as an escape."""
    return visible_json(str(rendered))


def _unfolded(_: object, __: str, told: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """An event of ours by its name and fields instead of its line; what a program logs itself stays as it is."""
    record = told.get("_record")
    event = getattr(record, "event", None)
    fields = getattr(record, "fields", None)
    if isinstance(event, str) and isinstance(fields, dict):
        told.update(fields, event=event)
    return told


def _cleaned(_: object, __: str, told: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {
        name: _value(value, MAX_TRACEBACK_BYTES if name == "traceback" else MAX_VALUE_BYTES)
        for name, value in told.items()
        if value is not None
    }


def _value(value: Any, limit: int) -> str | int | float | bool:
    if isinstance(value, str):
        # Enumerations of texts too, which are to be shown as what they stand for.
        # Secrets are looked for before the text is cut, which could cut one in half.
        return clean_text(redact_text(clean_text(str.__str__(value), MAX_LOOKED_AT_BYTES)), limit)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple | set | frozenset) and all(isinstance(member, str) for member in value):
        return _value(_listed(value), limit)
    # A payload, a lease, an item: nothing of what is in it.
    return f"<{type(value).__name__}>"


def _listed(members: Iterable[str]) -> str:
    shown = list(members)
    rest = f" and {len(shown) - MAX_LISTED:,} more" if len(shown) > MAX_LISTED else ""
    return ", ".join(shown[:MAX_LISTED]) + rest


def _to_logging(_: object, __: str, told: MutableMapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """What the logger of Python is called with: one line, without arguments, and the fields beside it."""
    event = told.pop("event")
    fields = dict(told)
    line = " ".join([event, *(f"{name}={_written(value)}" for name, value in fields.items())])
    return (line,), {"extra": {"event": event, "fields": fields}}


def _written(value: str | int | float | bool) -> str:
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    plain = value.isprintable() and value and not any(character in ' ="\\' for character in value)
    return value if plain else _quoted(value)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{visible(escaped)}"'
