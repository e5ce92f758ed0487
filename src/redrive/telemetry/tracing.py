"""Traces: the context of OpenTelemetry is passed with an item, in the headers `traceparent` and `tracestate` (W3C).

If the program does not use OpenTelemetry, nothing here has an effect, and nothing is imported: a program that has not
imported `opentelemetry` can have no span.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.context import Context

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
HEADERS = (TRACEPARENT, TRACESTATE)

_LIBRARY = "redrive"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_NO_TRACE = "0" * 32
_NOTHING: AbstractContextManager[str | None] = nullcontext()


def inject(headers: Mapping[str, str] | None = None) -> Mapping[str, str] | None:
    """Return the headers with the context of the current span, to be put with an item; without a span, unchanged.

    A `traceparent` that the program has set itself stays.
    """
    if not is_used() or (headers is not None and TRACEPARENT in headers):
        return headers
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {**(headers or {}), **carrier} if carrier else headers


def extract(headers: Mapping[str, str]) -> Context | None:
    """Return the context that came with an item. None without one, or if the program does not use OpenTelemetry."""
    if not is_used() or TRACEPARENT not in headers:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {name: headers[name] for name in HEADERS if name in headers}
    return TraceContextTextMapPropagator().extract(carrier)


def consumer_span(
    task: str,
    queue: str,
    headers: Mapping[str, str],
    *,
    id: str | None = None,
    delivery: int | None = None,
) -> AbstractContextManager[str | None]:
    """Return a consumer span around a handler, as a child of the span in which the item was put. Yields its trace id.

    An exception that passes through is the span's error, by its type only: the text may contain personal data.
    """
    return _span(task, queue, headers, id, delivery) if is_used() else _NOTHING


def trace_id(headers: Mapping[str, str] | None = None) -> str | None:
    """Return the id of the current trace, as 32 hexadecimal digits; else of the one in an item's headers, or None."""
    if is_used():
        from opentelemetry import trace

        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            return trace.format_trace_id(context.trace_id)
    found = _TRACEPARENT.fullmatch((headers or {}).get(TRACEPARENT, ""))
    return found[1] if found is not None and found[1] != _NO_TRACE else None


@contextmanager
def _span(
    task: str, queue: str, headers: Mapping[str, str], id: str | None, delivery: int | None
) -> Iterator[str | None]:
    from opentelemetry import trace

    attributes: dict[str, Any] = {
        "messaging.system": "redrive",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "redrive.task": task,
    }
    if id is not None:
        attributes["messaging.message.id"] = id
    if delivery is not None:
        attributes["redrive.delivery"] = delivery
    tracer = trace.get_tracer(_LIBRARY)
    with tracer.start_as_current_span(
        f"process {task}",
        context=extract(headers),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield trace_id(headers)
        except BaseException as error:
            name = type(error).__qualname__
            span.set_attribute("error.type", name)
            span.set_status(trace.Status(trace.StatusCode.ERROR, name))
            raise


def is_used() -> bool:
    """Return whether the program uses OpenTelemetry."""
    return "opentelemetry.trace" in sys.modules
