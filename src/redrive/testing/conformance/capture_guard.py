"""Guards: failures of functions are captured, and retried by the same function."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from redrive import AsyncBroker, Broker
from redrive.capture import AsyncDeadLetterQueue, Captured, DeadLetterQueue, DeadLetterStatus, DLQIntegrationStrategy
from redrive.errors import InvalidInput
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class Unwritable(Exception):
    """An exception that refuses attributes."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class Talkative(Exception):
    """An exception that has every attribute."""

    def __getattr__(self, name: str) -> str:
        return name


class GuardConformance(Suite):
    """The guarantees of a guard."""

    @pytest.fixture
    def guarded(self, broker: Broker) -> Iterator[DeadLetterQueue]:
        """Return a dead-letter queue for guards."""
        with DeadLetterQueue(broker, "guarded") as dlq:
            yield dlq

    def notes(self, error: BaseException) -> str:
        """Return the notes of an error."""
        return " ".join(getattr(error, "__notes__", ()))

    def test_failure_is_raised_as_it_is_and_captured_with_its_arguments(self, guarded: DeadLetterQueue) -> None:
        @guarded.guard(name="charge")
        def charge(order: int, *, amount: float = 1.5) -> None:
            raise TimeoutError("too slow")

        with pytest.raises(TimeoutError, match="too slow") as caught:
            charge(7)
        (task,) = guarded.list_tasks()
        assert task.task == {"function": "charge", "arguments": {"order": 7}}
        assert (task.error, task.error_type, task.retry_policy, task.max_retries) == (
            "too slow",
            "TimeoutError",
            "exponential",
            3,
        )
        assert task.traceback is not None
        assert [frame.name for frame in caught.traceback[1:]] == ["guarded", "charge"]
        assert f"captured as task '{task.task_id}' in 'guarded'" in self.notes(caught.value)

    def test_retry_calls_the_undecorated_function(self, guarded: DeadLetterQueue, clock: FakeClock) -> None:
        calls: list[int] = []

        @guarded.guard(name="charge")
        def charge(order: int) -> str:
            calls.append(order)
            if len(calls) < 3:
                raise ConnectionError("down")
            return "paid"

        with pytest.raises(ConnectionError):
            charge(7)
        for _ in range(2):
            clock.advance("1h")
            guarded.run_due_tasks()
        assert calls == [7, 7, 7]
        (task,) = guarded.list_tasks("completed")
        assert (task.result, task.total_attempts) == ("paid", 3)
        assert len(guarded.list_tasks()) == 1

    def test_success_captures_nothing(self, guarded: DeadLetterQueue) -> None:
        @guarded.guard
        def fine(value: int) -> int:
            return value + 1

        assert fine(1) == 2
        assert guarded.list_tasks() == []
        assert fine.__name__ == "fine"

    def test_handled_failure_returns_its_task(self, guarded: DeadLetterQueue) -> None:
        @guarded.guard(on_failure="handle", key=lambda order: f"order-{order}", name="charge")
        def charge(order: int) -> None:
            raise TimeoutError

        assert charge(7) == Captured("order-7")
        assert charge(7) == Captured("order-7")
        assert len(guarded.list_tasks()) == 1

    def test_inner_guard_captures_and_outer_one_does_not_again(self, guarded: DeadLetterQueue) -> None:
        @guarded.guard(name="inner")
        def inner() -> None:
            raise TimeoutError

        @guarded.guard(name="outer")
        def outer() -> None:
            inner()

        with pytest.raises(TimeoutError):
            outer()
        assert [task.task["function"] for task in guarded.list_tasks()] == ["inner"]

    def test_guard_of_another_task_captures_and_outer_one_does_not_again(self, guarded: DeadLetterQueue) -> None:
        @guarded.guard(name="inner")
        async def inner() -> None:
            raise TimeoutError

        @guarded.guard(name="outer")
        async def outer() -> None:
            await asyncio.gather(inner())

        with pytest.raises(TimeoutError):
            asyncio.run(outer())
        assert [task.task["function"] for task in guarded.list_tasks()] == ["inner"]

    def test_each_call_that_one_exception_object_ends_is_captured(self, guarded: DeadLetterQueue) -> None:
        shared = TimeoutError("of a pool, for all who wait")

        @guarded.guard(name="waits", on_failure="handle")
        def waits(order: int) -> None:
            raise shared

        assert waits(1) != waits(2)
        assert sorted(task.task["arguments"]["order"] for task in guarded.list_tasks()) == [1, 2]

    def test_ids_of_calls_differ_in_programs_that_seed_random_numbers(self, guarded: DeadLetterQueue) -> None:
        @guarded.guard(name="simulate", on_failure="handle")
        def simulate() -> None:
            random.seed(42)
            raise TimeoutError

        assert simulate() != simulate()

    def test_queue_that_was_deleted_is_created_again(self, guarded: DeadLetterQueue, broker: Broker) -> None:
        @guarded.guard(name="charge", on_failure="handle")
        def charge() -> None:
            raise TimeoutError

        assert isinstance(charge(), Captured)
        broker.delete_queue("guarded", confirm=1)
        assert isinstance(charge(), Captured)
        assert len(guarded.list_tasks()) == 1

    def test_error_that_cannot_be_captured_is_raised_with_the_reason(self, guarded: DeadLetterQueue) -> None:
        @guarded.guard(name="charge")
        def charge(order: Any) -> None:
            raise TimeoutError("the original")

        with pytest.raises(TimeoutError, match="the original") as caught:
            charge(object())
        assert "it could not be captured in 'guarded'" in self.notes(caught.value)
        assert guarded.list_tasks() == []

    def test_error_with_odd_attributes_is_captured(self, guarded: DeadLetterQueue) -> None:
        @guarded.guard(on_failure="handle", name="odd")
        def odd() -> None:
            raise Unwritable

        @guarded.guard(on_failure="handle", name="talk")
        def talk() -> None:
            raise Talkative

        assert {odd(), talk()} == {Captured(task.task_id) for task in guarded.list_tasks()}

    def test_exits_are_not_captured(self, guarded: DeadLetterQueue) -> None:
        @guarded.guard(name="leave")
        def leave() -> None:
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            leave()
        assert guarded.list_tasks() == []

    def test_strategies(self, guarded: DeadLetterQueue) -> None:
        errors: list[Exception] = [TimeoutError(), PermissionError()]

        @guarded.guard(name="fail")
        def fail(kind: int) -> None:
            raise errors[kind]

        def captured() -> list[int]:
            before = len(guarded.list_tasks())
            found = []
            for kind in (0, 1):
                errors[:] = [TimeoutError(), PermissionError()]
                with pytest.raises((TimeoutError, PermissionError)):
                    fail(kind)
                found.append(len(guarded.list_tasks()) - before)
                before += found[-1]
            return found

        for strategy, wanted in (
            ("automatic", [1, 1]),
            ("selective", [1, 0]),
            ("manual", [0, 0]),
            ("disabled", [0, 0]),
        ):
            guarded.set_strategy(strategy)
            assert captured() == wanted, strategy
        assert guarded.strategy is DLQIntegrationStrategy.DISABLED

    def test_execute_with_dlq_says_what_became_of_the_call(self, guarded: DeadLetterQueue) -> None:
        def work(task: dict[str, Any], repos: list[str]) -> Any:
            if task.get("fails"):
                raise ConnectionError("down")
            return task.get("answer", 3)

        assert guarded.execute_with_dlq(work, {}, repos=["r"]) == {"status": "completed", "result": 3}
        failed = {"status": "failed", "error": "no disk"}
        for task, error in (({"fails": True}, "down"), ({"answer": failed}, "no disk")):
            result = guarded.execute_with_dlq(work, task, repos=["r"], metadata={"why": "test"})
            assert (result["status"], result["error"], result["dlq_enqueued"]) == ("failed", error, True)
            found = guarded.get_task(result["dlq_task_id"])
            assert found is not None
            assert (found.task, found.repos, found.metadata) == (task, ["r"], {"why": "test"})

    def test_task_for_a_function_that_is_not_known_here_is_left_to_others(
        self, guarded: DeadLetterQueue, broker: Broker, clock: FakeClock
    ) -> None:
        @guarded.guard(name="charge")
        def charge(order: int) -> None:
            raise ConnectionError

        with pytest.raises(ConnectionError):
            charge(7)
        elsewhere = DeadLetterQueue(broker, "guarded")
        elsewhere.set_callback(lambda task: None)
        clock.advance("1h")
        elsewhere.run_due_tasks()
        (task,) = guarded.list_tasks()
        assert (task.status, task.retry_count) == (DeadLetterStatus.PENDING, 0)

    def test_what_cannot_be_guarded_is_refused(self, guarded: DeadLetterQueue) -> None:
        def generator() -> Iterator[int]:
            yield 1

        class Shop:
            def charge(self) -> None:
                """Nothing."""

        class Client:
            async def __call__(self) -> None:
                """Nothing."""

        async def coroutine() -> None:
            """Nothing."""

        @functools.wraps(coroutine)
        def run() -> None:
            asyncio.run(coroutine())

        cases: tuple[tuple[Any, dict[str, Any], str], ...] = (
            (generator, {}, "yields"),
            (functools.partial(generator), {"name": "partial"}, "yields"),
            (run, {}, "guard the coroutine function itself"),
            (Client(), {"name": "client"}, "guard the coroutine function itself"),
            (max, {}, "does not say which arguments it takes"),
            (Shop.charge, {}, "is a method, whose object is not captured: give a key"),
            (Shop().charge, {}, "is a method, whose object is not captured: give a key"),
            (int, {}, "for functions"),
            (lambda: 1, {}, "has no name by which a retry finds it"),
            (print, {"on_failure": "hide"}, "on_failure is"),
            (len, {"timeout": "1s"}, "timeout is for coroutine functions"),
        )
        guard: Any = guarded.guard
        for function, options, problem in cases:
            with pytest.raises(InvalidInput, match=problem):
                guard(**options)(function)

    def test_coroutine_function_is_guarded_and_retried(self, guarded: DeadLetterQueue, clock: FakeClock) -> None:
        calls: list[int] = []

        @guarded.guard(name="fetch")
        async def fetch(page: int) -> int:
            calls.append(page)
            if len(calls) == 1:
                raise ConnectionError("down")
            return page * 2

        with pytest.raises(ConnectionError):
            asyncio.run(fetch(4))
        clock.advance("1h")
        guarded.run_due_tasks()
        (task,) = guarded.list_tasks("completed")
        assert (calls, task.result) == ([4, 4], 8)

    @pytest.mark.parametrize("retried", ["when due", "here", "on an event loop"])
    def test_coroutine_that_a_function_returns_is_guarded_and_retried(
        self, guarded: DeadLetterQueue, clock: FakeClock, retried: str
    ) -> None:
        calls: list[int] = []

        async def fetch(page: int) -> int:
            calls.append(page)
            await asyncio.sleep(0)
            if len(calls) == 1:
                raise ConnectionError("down")
            return page * 2

        started: Any = guarded.guard(name="fetch")(lambda page: fetch(page))
        with pytest.raises(ConnectionError) as caught:
            asyncio.run(started(page=4))
        (task,) = guarded.list_tasks()
        assert caught.value.__notes__ == [f"captured as task '{task.task_id}' in '{guarded.name}'"]
        clock.advance("1h")
        if retried == "when due":
            guarded.run_due_tasks()
        elif retried == "here":
            assert guarded.retry_task(task.task_id)["result"] == 8
        else:
            other = AsyncDeadLetterQueue(AsyncBroker(guarded._queue.core), guarded.name)
            other.guard(name="fetch")(lambda page: fetch(page))
            assert asyncio.run(other.retry_task(task.task_id))["result"] == 8
        (task,) = guarded.list_tasks("completed")
        assert (calls, task.task["arguments"], task.result) == ([4, 4], {"page": 4}, 8)

    def test_cancellation_waits_for_the_capture_and_cancelled_calls_are_captured_only_on_request(
        self, guarded: DeadLetterQueue
    ) -> None:
        @guarded.guard(name="plain")
        async def plain() -> None:
            await asyncio.sleep(3600)

        @guarded.guard(name="kept", on_cancel="capture")
        async def kept() -> None:
            await asyncio.sleep(3600)

        @guarded.guard(name="late", timeout="1ms")
        async def late() -> None:
            await asyncio.sleep(3600)

        async def cancelled(function: Any) -> None:
            running = asyncio.ensure_future(function())
            await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

        asyncio.run(cancelled(plain))
        assert guarded.list_tasks() == []
        asyncio.run(cancelled(kept))
        assert [task.task["function"] for task in guarded.list_tasks()] == ["kept"]
        with pytest.raises(TimeoutError, match="late took longer than its timeout of 1ms"):
            asyncio.run(late())
        assert guarded.list_tasks()[0].error == "late took longer than its timeout of 1ms"
        assert len(guarded.list_tasks()) == 2

    def test_time_out_of_the_function_itself_keeps_its_text(self, guarded: DeadLetterQueue) -> None:
        @guarded.guard(timeout="1h", on_failure="handle")
        async def late(*words: str) -> None:
            raise TimeoutError(*words)

        for words in ((), ("mine",)):
            asyncio.run(late(*words))
            assert guarded.list_tasks()[0].error == "".join(words)

    def test_end_of_the_event_loop_waits_for_the_capture(self, guarded: DeadLetterQueue) -> None:
        @guarded.guard(name="background")
        async def background(n: int) -> None:
            raise TimeoutError

        async def main() -> list[asyncio.Task[None]]:
            running = [asyncio.create_task(background(n)) for n in range(3)]
            await asyncio.sleep(0)
            return running

        for task in asyncio.run(main()):
            assert task.cancelled() or isinstance(task.exception(), TimeoutError)
        assert sorted(task.task["arguments"]["n"] for task in guarded.list_tasks()) == [0, 1, 2]
