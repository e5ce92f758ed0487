"""The context of a delivery: what its handler may know, whatever its headers say."""

from typing import Any

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from redrive import App, Context, Task
from redrive.task.task import _first_lease

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def task() -> Task[..., None]:
    @App().queue("jobs").task(keep_result="1m")
    def work() -> None: ...

    return work


def context(task: Task[..., Any], headers: dict[str, str] | None = None, **fields: Any) -> Context:
    lease = _first_lease(task.item())
    return Context(msgspec.structs.replace(lease, headers={**lease.headers, **(headers or {})}, **fields), task)


def test_context_tells_of_the_delivery(task: Task[..., None]) -> None:
    seen = context(task, {"from": "test"}, attempts=2, deliveries=5, failures=1, losses=3)
    assert (seen.queue, seen.headers["from"], seen.task) == ("jobs", "test", task)
    assert (seen.attempts, seen.deliveries, seen.failures, seen.losses) == (2, 5, 1, 3)
    assert seen.id == seen.lease.id
    assert seen.deadline == seen.lease.deadline
    assert (seen.stopping, seen.tick, seen.puts) == (False, None, [])


def test_stopping_is_what_the_worker_says_now(task: Task[..., None]) -> None:
    asked = False
    seen = Context(_first_lease(task.item()), task, lambda: asked)
    assert not seen.stopping
    asked = True
    assert seen.stopping


@pytest.mark.parametrize(
    ("header", "kept"),
    [(None, 60_000_000), ("5", 5), ("9" * 20, 36_525 * 86_400_000_000), ("soon", 60_000_000), ("-1", 60_000_000)],
)
def test_result_is_kept_as_the_put_says_else_the_task(task: Task[..., None], header: str | None, kept: int) -> None:
    assert context(task, {} if header is None else {"keep_result": header}).keep_result == kept


@pytest.mark.parametrize("header", ["", "x", "1e9", "٣", "9" * 5000])
def test_tick_that_is_no_instant_is_none(task: Task[..., None], header: str) -> None:
    assert context(task, {"tick": header}).tick is None


def test_trace_is_that_of_the_header(task: Task[..., None]) -> None:
    assert context(task, {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}).trace_id == TRACE
    assert context(task, {"traceparent": "nonsense"}).trace_id is None


def test_put_carries_the_trace_that_is_going_on(task: Task[..., None]) -> None:
    with TracerProvider().get_tracer("test").start_as_current_span("request") as span:
        headers = task.item().item.headers
    assert headers is not None
    assert headers["task"] == "work"
    assert trace.format_trace_id(span.get_span_context().trace_id) in headers["traceparent"]
    assert "traceparent" not in (task.item().item.headers or {})
