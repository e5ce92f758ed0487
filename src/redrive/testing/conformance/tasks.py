"""Tasks and the worker that runs them, from the put to the end of the delivery, on the store under test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from redrive import App, Broker, Context, Dead, DeadReason, Release, Retry, RetryVerdict, Status, new_item
from redrive.errors import ResultNotKept, TaskFailed
from redrive.model.classify import ErrorClass
from redrive.model.failure import Failure
from redrive.model.item import Settled
from redrive.testing.conformance.actions import places
from redrive.testing.conformance.workers import WorkerSuite, only, work
from redrive.testing.fake_clock import FakeClock

_NO_TEXT: Any = 3


class MealOrder(msgspec.Struct):
    """An argument of a separate type."""

    number: int
    due: datetime


class _NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _recursion() -> None:
    _recursion()


def _raise(error: BaseException) -> None:
    raise error


UNRECORDABLE: dict[str, Callable[[], Any]] = {
    "its text cannot be had": lambda: _raise(_NoText()),
    "50 MB": lambda: _raise(ValueError("x" * 50_000_000)),
    "NUL": lambda: _raise(ValueError("a\0b")),
    "surrogates": lambda: _raise(ValueError("\ud800")),
    "recursion": _recursion,
    "a group": lambda: _raise(ExceptionGroup("several", [ValueError("a"), KeyError("b")])),
    "SystemExit": lambda: _raise(SystemExit(3)),
    "KeyboardInterrupt": lambda: _raise(KeyboardInterrupt()),
    "GeneratorExit": lambda: _raise(GeneratorExit()),
    "CancelledError": lambda: _raise(asyncio.CancelledError()),
}


class WorkingConformance(WorkerSuite):
    """Tasks that a worker runs, and their outcomes."""

    def test_tasks_run_with_their_arguments_converted(self, app: App, broker: Broker) -> None:
        jobs = app.queue("jobs")
        seen: list[Any] = []

        @jobs.task
        def plain(order: MealOrder, *, times: int = 2) -> None:
            seen.append((order, times))

        @jobs.task
        async def coroutine(day: datetime) -> None:
            seen.append(day)

        due = datetime(2026, 1, 2, tzinfo=UTC)
        plain.put(MealOrder(1, due))
        plain.put(MealOrder(2, due), times=7)
        coroutine.put(due)
        work(app, broker)
        assert (MealOrder(1, due), 2) in seen
        assert (MealOrder(2, due), 7) in seen
        assert due in seen
        assert len(seen) == 3
        assert places(broker.stats("jobs")) == {}

    def test_put_many_and_options(self, app: App, broker: Broker, clock: FakeClock) -> None:
        jobs = app.queue("jobs")
        seen: list[int] = []

        @jobs.task
        def count(n: int) -> None:
            seen.append(n)

        count.put_many(count.item(n) for n in range(3))
        count.options(delay="1m").put(10)
        first = count.options(idempotency_key="k").put(11)
        again = count.options(idempotency_key="k").put(11)
        count.options(priority=9).put(12)
        assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)
        work(app, broker, concurrency=1)
        assert seen == [12, 0, 1, 2, 11]
        clock.advance("1m")
        work(app, broker)
        assert seen[-1] == 10

    def test_arguments_that_do_not_fit_are_final(self, app: App, broker: Broker) -> None:
        jobs = app.queue("jobs", retry={"attempts": 5, "cooldown": "1s"})

        @jobs.task
        def count(n: int) -> None:
            raise AssertionError("it must not run")

        app.create_queues(broker)
        broker.put("jobs", {"n": "three"}, headers={"task": "count"})
        work(app, broker)
        item = only(broker)
        assert (item.status, item.dead_reason) == (Status.DEAD, DeadReason.FINAL_ERROR)
        assert item.last_failure is not None
        assert item.last_failure.error_class is ErrorClass.VALIDATION
        assert "n" in item.last_failure.text

    def test_unknown_handler_is_dead_with_its_payload(self, app: App, broker: Broker) -> None:
        jobs = app.queue("jobs", retry={"attempts": 5, "cooldown": "1s"})

        @jobs.task
        def known() -> None: ...

        app.create_queues(broker)
        broker.put("jobs", {"n": 1}, headers={"task": "gone"})
        broker.put("jobs", {"n": 1})
        work(app, broker)
        found = broker.find(queue="jobs", status="dead").items
        assert {(item.dead_reason, item.payload) for item in found} == {(DeadReason.UNKNOWN_HANDLER, b'{"n":1}')}
        assert len(found) == 2

    def test_payload_that_is_no_json_is_dead_with_its_bytes(self, app: App, broker: Broker) -> None:
        jobs = app.queue("jobs", retry={"attempts": 5, "cooldown": "1s"})

        @jobs.task
        def known() -> None: ...

        app.create_queues(broker)
        broker.put("jobs", b"\xff\0{", headers={"task": "known"}, content_type="application/json")
        work(app, broker)
        item = only(broker)
        assert (item.dead_reason, item.payload) == (DeadReason.UNDECODABLE, b"\xff\0{")
        assert item.last_failure is not None
        assert item.last_failure.error_class is ErrorClass.POISON

    def test_failure_is_tried_again_and_then_dead(self, app: App, broker: Broker, clock: FakeClock) -> None:
        jobs = app.queue("jobs", retry={"attempts": 2, "cooldown": "30s"})
        told: list[tuple[str, str]] = []

        @jobs.task
        def fail() -> None:
            raise ConnectionError("no route")

        @jobs.on_failure
        def on_failure(context: Context, failure: Failure, settled: Settled) -> None:
            told.append(("failure", failure.title))

        @fail.on_dead
        def on_dead(context: Context, failure: Failure | None, settled: Settled) -> None:
            told.append(("dead", context.id))

        handle = fail.put()
        worker = work(app, broker)
        item = only(broker)
        assert (item.status, item.counters.failures) == (Status.FAILED, 1)
        failure = item.last_failure
        assert failure is not None
        assert (failure.type, failure.text, failure.worker) == ("ConnectionError", "no route", worker.name)
        assert failure.host
        assert failure.duration is not None
        assert failure.traceback is not None
        assert "in fail" in failure.traceback.replace(".<locals>", "") or "fail" in failure.traceback
        clock.advance("30s")
        work(app, broker)
        item = only(broker)
        assert (item.status, item.dead_reason) == (Status.DEAD, DeadReason.RETRIES_EXHAUSTED)
        assert told == [("failure", "ConnectionError: no route")] * 2 + [("dead", handle.id)]

    @pytest.mark.parametrize("how", UNRECORDABLE)
    def test_failure_that_cannot_be_recorded_is(self, app: App, broker: Broker, how: str) -> None:
        jobs = app.queue("jobs")
        after: list[int] = []

        @jobs.task
        def bad() -> None:
            UNRECORDABLE[how]()

        @jobs.task
        async def bad_coroutine() -> None:
            UNRECORDABLE[how]()

        @jobs.task
        def good() -> None:
            after.append(1)

        bad.put()
        bad_coroutine.put()
        good.put()
        work(app, broker, concurrency=1)
        found = broker.find(queue="jobs", status="dead").items
        assert [item.counters.failures for item in found] == [1, 1]
        assert {item.dead_reason for item in found} <= {DeadReason.RETRIES_EXHAUSTED, DeadReason.FINAL_ERROR}
        assert after == [1]

    def test_outcomes_are_steered_by_what_is_returned(self, app: App, broker: Broker, clock: FakeClock) -> None:
        jobs = app.queue("jobs")

        @jobs.task
        def later() -> Retry:
            return Retry(after="5m", reason="not yet")

        @jobs.task
        def not_now() -> Release:
            return Release(delay="1m", reason="busy")

        @jobs.task
        def never() -> Dead:
            reason: Any = "buried"
            return Dead(reason, note="no such customer")

        ids = {task.name: task.put().id for task in (later, not_now, never)}
        work(app, broker)
        retried = broker.get(ids["later"])
        assert (retried.status, retried.ready_at, retried.counters.failures) == (
            Status.FAILED,
            clock.now() + 300_000_000,
            1,
        )
        assert retried.last_failure is not None
        assert retried.last_failure.text == "not yet"
        released = broker.get(ids["not_now"])
        assert (released.status, released.ready_at) == (Status.PENDING, clock.now() + 60_000_000)
        assert (released.counters.attempts, released.counters.failures) == (1, 0)
        assert released.history[-1].note == "busy"
        buried = broker.get(ids["never"])
        assert (buried.status, buried.dead_reason) == (Status.DEAD, DeadReason.BURIED)
        assert (buried.history[-1].note, buried.history[-1].event) == ("no such customer", "buried")

    @pytest.mark.parametrize(
        "value",
        [Dead(note=_NO_TEXT), Dead(_NO_TEXT), Dead(to=_NO_TEXT), RetryVerdict(10**30), Release(reason=_NO_TEXT)],
    )
    def test_outcome_that_cannot_be_recorded_is_a_failure(self, app: App, broker: Broker, value: Any) -> None:
        @app.queue("jobs", retry={"attempts": 2, "cooldown": "1h"}).task
        def odd() -> Any:
            return value

        id = odd.put().id
        work(app, broker)
        failure = broker.get(id).last_failure
        assert failure is not None
        assert failure.type.startswith("redrive.errors.")

    def test_note_of_an_outcome_is_cleaned(self, app: App, broker: Broker) -> None:
        @app.queue("jobs").task
        def odd() -> Dead:
            return Dead(note="\0\ud800" + "x" * 10**6)

        id = odd.put().id
        work(app, broker)
        assert len(broker.get(id).history[-1].note or "") < 10**5

    def test_retry_that_is_asked_for_again_and_again_ends(self, app: App, broker: Broker, clock: FakeClock) -> None:
        jobs = app.queue("jobs", max_attempts=3)
        runs: list[int] = []

        @jobs.task
        def later(context: Context) -> Retry:
            runs.append(context.attempts)
            return Retry(after="1s")

        later.put()
        for _ in range(5):
            work(app, broker)
            clock.advance("1s")
        assert runs == [1, 2, 3]
        assert only(broker).dead_reason is DeadReason.MAX_ATTEMPTS

    def test_follow_ups_are_put_with_the_completion(self, app: App, broker: Broker) -> None:
        jobs, mails = app.queue("jobs"), app.queue("mails", max_size=1)
        seen: list[str] = []

        @mails.task
        def mail(to: str) -> None:
            seen.append(to)

        @jobs.task
        def order(context: Context, names: list[str]) -> None:
            for name in names:
                context.put(mail.item(name))

        order.put(["ann"])
        work(app, broker)
        assert seen == ["ann"]
        order.put(["bob", "eve"])  # one item more than fits: none is put, and the order is not completed
        work(app, broker)
        assert seen == ["ann"]
        item = only(broker)
        assert (item.queue, item.status) == ("jobs", Status.DEAD)
        assert item.last_failure is not None
        assert item.last_failure.type.endswith("QueueFull")

    def test_result_is_kept_for_a_while(self, app: App, broker: Broker, clock: FakeClock) -> None:
        jobs = app.queue("jobs")

        @jobs.task(keep_result="10m")
        def add(a: int, b: int) -> int:
            return a + b

        @jobs.task
        def forgets() -> int:
            return 1

        kept, asked, forgotten = add.put(1, 2), forgets.options(keep_result="1m").put(), forgets.put()
        work(app, broker)
        assert (kept.result(timeout=0), asked.result(timeout=0)) == (3, 1)
        with pytest.raises(ResultNotKept):
            forgotten.result(timeout=0)
        clock.advance("9m")
        assert kept.result(timeout=0) == 3
        with pytest.raises(ResultNotKept):
            asked.result(timeout=0)

    def test_result_of_what_died_is_its_failure(self, app: App, broker: Broker) -> None:
        jobs = app.queue("jobs")

        @jobs.task(keep_result="10m")
        def fail() -> int:
            raise ValueError("no")

        handle = fail.put()
        work(app, broker)
        with pytest.raises(TaskFailed, match="no"):
            handle.result(timeout=0)

    def test_middleware_is_around_every_handler(self, app: App, broker: Broker) -> None:
        jobs = app.queue("jobs")
        told: list[str] = []

        @app.middleware
        def logged(context: Context) -> Any:
            told.append(f"before {context.task.name}")
            try:
                yield
            except ValueError as error:
                told.append(f"failed {error}")
                raise
            told.append("after")

        @jobs.task
        def good() -> None:
            told.append("good")

        @jobs.task
        async def bad() -> None:
            raise ValueError("no")

        good.put()
        work(app, broker)
        bad.put()
        work(app, broker)
        assert told == ["before good", "good", "after", "before bad", "failed no"]

    def test_error_in_a_hook_changes_nothing(self, app: App, broker: Broker) -> None:
        jobs = app.queue("jobs")

        @jobs.task
        def fail() -> None:
            raise ValueError("no")

        @jobs.on_dead
        def on_dead(context: Context, failure: Failure | None, settled: Settled) -> None:
            raise RuntimeError("hook")

        fail.put()
        fail.put()
        work(app, broker)
        assert places(broker.stats("jobs")) == {"dead": 2}

    def test_item_put_by_another_program_is_run(self, app: App, broker: Broker) -> None:
        jobs = app.queue("jobs")
        seen: list[int] = []

        @jobs.task
        def count(n: int) -> None:
            seen.append(n)

        app.create_queues(broker)
        broker.put_many("jobs", [new_item({"n": 5}, headers={"task": "count"})])
        work(app, broker)
        assert seen == [5]
