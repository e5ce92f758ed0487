"""Traces: a handler's span hangs below the one in which the item was put, and a failure names the trace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from redrive import connect
from redrive.telemetry import tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
SECRET = "hunter2hunter2"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


def test_context_of_the_put_travels_in_the_headers(exporter: InMemorySpanExporter) -> None:
    tracer = trace.get_tracer("test")
    with tracer.start_as_current_span("request") as request:
        headers = tracing.inject({"tenant": "a"})
    assert headers is not None
    assert headers["tenant"] == "a"
    with tracing.consumer_span("send", "emails", headers, id="01ab", delivery=2) as trace_id:
        assert tracing.trace_id() == trace_id
    consumer = exporter.get_finished_spans()[-1]
    context = request.get_span_context()
    assert consumer.parent is not None
    assert (consumer.parent.trace_id, consumer.parent.span_id) == (context.trace_id, context.span_id)
    assert trace_id == trace.format_trace_id(context.trace_id)
    assert (consumer.name, consumer.kind) == ("process send", SpanKind.CONSUMER)
    assert dict(consumer.attributes or {}) == {
        "messaging.system": "redrive",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "emails",
        "messaging.message.id": "01ab",
        "redrive.task": "send",
        "redrive.delivery": 2,
    }


def test_context_from_elsewhere_is_the_parent(exporter: InMemorySpanExporter) -> None:
    with tracing.consumer_span("send", "emails", {"traceparent": PARENT, "tracestate": "vendor=1"}):
        pass
    span = only(exporter)
    assert span.parent is not None
    assert trace.format_trace_id(span.parent.trace_id) == TRACE
    assert span.parent.trace_state.get("vendor") == "1"


def test_item_without_a_context_begins_a_trace(exporter: InMemorySpanExporter) -> None:
    with tracing.consumer_span("send", "emails", {}) as trace_id:
        assert trace_id is not None
    assert only(exporter).parent is None


@pytest.mark.parametrize("header", ["", "nonsense", "00-xyz", f"00-{'0' * 32}-b7ad6b7169203331-01", "\0" * 100])
def test_header_that_is_no_context_is_passed_over(exporter: InMemorySpanExporter, header: str) -> None:
    with tracing.consumer_span("send", "emails", {"traceparent": header}):
        pass
    assert only(exporter).parent is None
    assert tracing.trace_id({"traceparent": header}) is None


def test_error_of_a_handler_is_that_of_the_span_by_its_type_alone(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match=SECRET), tracing.consumer_span("send", "emails", {}):
        raise ValueError(SECRET)
    span = only(exporter)
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "ValueError"
    assert SECRET not in span.to_json()


def test_spans_of_the_handler_hang_below(exporter: InMemorySpanExporter) -> None:
    tracer = trace.get_tracer("test")
    with tracing.consumer_span("send", "emails", {}), tracer.start_as_current_span("query"):
        follow_up = tracing.inject()
    inner, outer = exporter.get_finished_spans()
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id
    assert follow_up is not None
    assert follow_up["traceparent"].split("-")[2] == trace.format_span_id(inner.context.span_id)


def test_what_the_program_has_set_itself_stays(exporter: InMemorySpanExporter) -> None:
    with trace.get_tracer("test").start_as_current_span("request"):
        assert tracing.inject({"traceparent": PARENT}) == {"traceparent": PARENT}


def test_without_a_span_nothing_is_added() -> None:
    headers = {"tenant": "a"}
    assert tracing.inject(headers) is headers
    assert tracing.inject() is None
    assert tracing.trace_id() is None


def test_trace_of_the_item_is_known_without_a_span() -> None:
    assert tracing.trace_id({"traceparent": PARENT}) == TRACE


def test_without_opentelemetry_nothing_happens() -> None:
    program = f"""
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
from redrive import connect
from redrive.telemetry import tracing
headers = {{"traceparent": "{PARENT}"}}
assert tracing.inject(headers) is headers
assert tracing.inject() is None
assert tracing.extract(headers) is None
assert tracing.trace_id(headers) == "{TRACE}"
with tracing.consumer_span("send", "emails", headers) as trace_id:
    assert trace_id is None
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_failure_names_the_trace_that_it_happened_in(exporter: InMemorySpanExporter) -> None:
    with connect("memory://", maintenance=False) as broker, trace.get_tracer("test").start_as_current_span("request"):
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        settled = broker.fail(broker.lease("jobs")[0], ValueError("x"))
        failure = broker.get(settled.id).last_failure
        assert failure is not None
        assert failure.trace_id == tracing.trace_id()
        assert failure.trace_id is not None
        assert failure.host
