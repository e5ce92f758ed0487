"""Hooks: told of failures and deaths once they are written down."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from redrive import App, Broker, Context, Dead, Failure, Release, Settled
from redrive.errors import InvalidInput
from redrive.testing import Drained, memory_broker, run_tasks


@pytest.fixture
def broker() -> Iterator[Broker]:
    with memory_broker() as opened:
        yield opened


def test_hooks_of_the_queue_come_before_those_of_the_task(broker: Broker) -> None:
    app = App()
    jobs = app.queue("jobs", retry={"attempts": 2})
    seen: list[tuple[str, Any, Any]] = []

    @jobs.task
    def work() -> None:
        raise ValueError("boom")

    @work.on_dead
    def dead(context: Context, failure: Failure | None, settled: Settled) -> None:
        seen.append(("task dead", failure and failure.text, broker.get(context.id).status))

    @work.on_failure
    def failed(context: Context, failure: Failure | None, settled: Settled) -> None:
        seen.append(("task failed", context.attempts, settled.status))

    @jobs.on_dead
    def queue_dead(context: Context, failure: Failure | None, settled: Settled) -> None:
        seen.append(("queue dead", context.task.name, settled.dead_reason))

    @jobs.on_failure
    def queue_failed(context: Context, failure: Failure | None, settled: Settled) -> None:
        seen.append(("queue failed", failure and failure.type, settled.counters.failures))

    with app.override_broker(broker):
        work.put()
        run_tasks(app)
    assert seen == [
        ("queue failed", "ValueError", 1),
        ("task failed", 1, "failed"),
        ("queue failed", "ValueError", 2),
        ("queue dead", "work", "retries_exhausted"),
        ("task failed", 2, "dead"),
        ("task dead", "boom", "dead"),
    ]


def test_completion_and_release_call_no_hook_and_a_death_without_failure_one(broker: Broker) -> None:
    app = App()
    jobs = app.queue("jobs", dead_queue="morgue")
    seen: list[str] = []
    jobs.on_failure(lambda *_: seen.append("failed"))
    jobs.on_dead(lambda context, failure, settled: seen.append(f"dead {failure} to {settled.queue}"))

    @jobs.task
    def work(context: Context, kind: str) -> Any:
        return {"release": Release() if context.attempts == 1 else None, "dead": Dead(), "done": None}[kind]

    with app.override_broker(broker):
        for kind in ("release", "dead", "done"):
            work.put(kind)
        assert run_tasks(app) == Drained(completed=2, released=1, dead=1)
    assert seen == ["dead None to morgue"]


def test_error_in_a_hook_is_logged_and_changes_nothing(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    jobs = app.queue("jobs")
    seen: list[str] = []

    @jobs.on_dead
    def breaks(context: Context, failure: Failure | None, settled: Settled) -> None:
        raise ZeroDivisionError("in a hook")

    jobs.on_dead(lambda *_: seen.append("next"))

    @jobs.task
    def work() -> None:
        raise ValueError

    with app.override_broker(broker), caplog.at_level(logging.ERROR, "redrive"):
        work.put()
        assert run_tasks(app) == Drained(dead=1)
    assert seen == ["next"]
    assert "hook_failed" in caplog.text
    assert "breaks" in caplog.text


def test_hooks_are_plain_functions() -> None:
    jobs = App().queue("jobs")

    async def awaited(context: Context, failure: Failure | None, settled: Settled) -> None: ...

    for wrong in (awaited, 3):
        with pytest.raises(InvalidInput):
            jobs.on_failure(wrong)  # type: ignore[arg-type]
    assert not jobs.hooks
