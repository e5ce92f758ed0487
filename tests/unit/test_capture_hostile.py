"""What a program brings to capture may raise anything: that settles its own task, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.until import until

from redrive import connect_async
from redrive.capture import AsyncDeadLetterQueue, Captured, DeadLetterQueue
from redrive.errors import Closed, LeaseLost, QueueNotFound
from redrive.testing.fake_clock import PATIENCE_SECONDS


class Unreadable(Exception):
    """An exception that raises when its text is read."""

    def __str__(self) -> str:
        raise RuntimeError


class Ending(BaseException):
    """An exception that is no Exception."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "unreadable": Unreadable,
    "exit": lambda: SystemExit(3),
    "cancelled": asyncio.CancelledError,
    "generator exit": GeneratorExit,
    "base exception": Ending,
    "lease lost": lambda: LeaseLost("0" * 32, None),  # type: ignore[arg-type]
    "closed": Closed,
    "no queue": lambda: QueueNotFound("captured"),
    "stop": StopIteration,
    "stop async": StopAsyncIteration,
    "group": lambda: BaseExceptionGroup("two", [SystemExit(), ValueError()]),
    "memory": MemoryError,
    "recursion": RecursionError,
}
ENDS_A_WAIT = "generator exit"
"""An exception by which Python itself closes a coroutine: it never is the failure of a call."""
OF_CALLS = pytest.mark.parametrize("make", [ERRORS[name] for name in ERRORS if name != ENDS_A_WAIT])
EACH = pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)


@pytest.fixture
def dlq() -> Iterator[DeadLetterQueue]:
    with DeadLetterQueue("memory://") as dlq:
        yield dlq


def statuses(dlq: DeadLetterQueue) -> dict[str, str]:
    return {task.task_id: task.status.value for task in dlq.list_tasks()}


@EACH
@pytest.mark.parametrize("kind", ["function", "coroutine function"])
def test_callback_that_raises_settles_its_task_only(
    dlq: DeadLetterQueue, make: Callable[[], BaseException], kind: str
) -> None:
    def callback(task: str) -> Any:
        if task == "raises":
            raise make()

    async def later(task: str) -> Any:
        return callback(task)

    for id in ("raises", "fine"):
        dlq.enqueue(id, id, "down", "immediate", 1)
    dlq.start_retry_processor(callback if kind == "function" else later)
    until(lambda: statuses(dlq) == {"raises": "exhausted", "fine": "completed"})
    dlq.enqueue("more", "fine", "down", "immediate")
    until(lambda: statuses(dlq)["more"] == "completed")
    assert dlq.stop_retry_processor(PATIENCE_SECONDS)


def test_cancelled_inner_task_is_a_failure_of_its_task_only(dlq: DeadLetterQueue) -> None:
    async def callback(task: str) -> None:
        inner = asyncio.create_task(asyncio.sleep(3600 if task == "raises" else 0))
        if task == "raises":
            inner.cancel()
        await inner

    for id in ("raises", "fine"):
        dlq.enqueue(id, id, "down", "immediate", 1)
    dlq.set_callback(callback)
    dlq.run_due_tasks()
    assert statuses(dlq) == {"raises": "exhausted", "fine": "completed"}


@OF_CALLS
@pytest.mark.parametrize("kind", ["function", "coroutine function"])
def test_run_by_hand_that_raises_is_a_failure(
    dlq: DeadLetterQueue, make: Callable[[], BaseException], kind: str
) -> None:
    def callback(task: str) -> None:
        raise make()

    async def later(task: str) -> None:
        callback(task)

    dlq.set_callback(callback if kind == "function" else later)
    dlq.enqueue("one", {}, "down")
    answer = dlq.retry_task("one")
    assert not answer["success"]
    assert statuses(dlq) == {"one": "pending"}


@OF_CALLS
async def test_run_on_an_event_loop_that_raises_is_a_failure(make: Callable[[], BaseException]) -> None:
    async def callback(task: str) -> None:
        raise make()

    async with connect_async("memory://") as broker, AsyncDeadLetterQueue(broker) as dlq:
        dlq.set_callback(callback)
        await dlq.enqueue("one", {}, "down")
        answer = await dlq.retry_task("one")
        assert not answer["success"]
        assert [task.status.value for task in await dlq.list_tasks()] == ["pending"]


async def test_cancelled_run_on_an_event_loop_is_given_back() -> None:
    started = asyncio.Event()

    async def callback(task: str) -> None:
        started.set()
        await asyncio.sleep(3600)

    async with connect_async("memory://") as broker, AsyncDeadLetterQueue(broker) as dlq:
        dlq.set_callback(callback)
        await dlq.enqueue("one", {}, "down")
        running = asyncio.create_task(dlq.retry_task("one"))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        (task,) = await dlq.list_tasks()
        assert (task.status.value, task.retry_count) == ("pending", 0)


def test_ctrl_c_in_a_run_by_hand_gives_the_task_back(dlq: DeadLetterQueue) -> None:
    def callback(task: str) -> None:
        raise KeyboardInterrupt

    dlq.set_callback(callback)
    dlq.enqueue("one", {}, "down")
    with pytest.raises(KeyboardInterrupt):
        dlq.retry_task("one")
    assert statuses(dlq) == {"one": "pending"}


@EACH
def test_hook_that_raises_costs_nothing(dlq: DeadLetterQueue, make: Callable[[], BaseException]) -> None:
    seen: list[str] = []

    def hook(task: Any) -> None:
        raise make()

    for event in (dlq.on_captured, dlq.on_retried, dlq.on_succeeded, dlq.on_exhausted, dlq.on_alert):
        event(hook)
        event(lambda value: seen.append(type(value).__name__))
    dlq.set_callback(lambda task: None)
    dlq.enqueue("one", {}, "down", "immediate")
    dlq.enqueue("two", {}, "down", "never")
    dlq.run_due_tasks()
    until(lambda: len(seen) >= 5)
    assert statuses(dlq) == {"one": "completed", "two": "exhausted"}


@EACH
def test_policy_that_raises_leaves_a_task_that_is_retried(
    dlq: DeadLetterQueue, make: Callable[[], BaseException]
) -> None:
    def policy(failures: int) -> float:
        raise make()

    dlq.add_policy("odd", policy)
    task = dlq.enqueue("one", {}, "down", "odd")
    assert (task.status.value, task.next_retry_at is not None) == ("pending", True)


@OF_CALLS
def test_judgement_of_a_result_that_raises_is_a_failure(make: Callable[[], BaseException]) -> None:
    def is_failure(result: Any) -> bool:
        raise make()

    with DeadLetterQueue("memory://", is_failure=is_failure) as dlq:
        dlq.set_callback(lambda task: None)
        dlq.enqueue("one", {}, "down", "immediate", 1)
        assert not dlq.retry_task("one")["success"]
        dlq.run_due_tasks()
        assert statuses(dlq) == {"one": "exhausted"}


@EACH
@pytest.mark.parametrize("on_cancel", ["ignore", "capture"])
def test_guard_raises_what_its_function_raises(make: Callable[[], BaseException], on_cancel: Any) -> None:
    error = make()

    async def call(given: int) -> None:
        raise error

    def call_now(given: int) -> None:
        raise error

    with DeadLetterQueue("memory://") as dlq:
        for function in (dlq.guard(call_now), dlq.guard(on_cancel=on_cancel)(call)):
            with pytest.raises(BaseException) as caught:  # noqa: PT011
                asyncio.run(later(function))
            assert caught.value is error or isinstance(caught.value, RuntimeError)
        captured = len(dlq.list_tasks())
        wanted = 2 if isinstance(error, Exception) else int(on_cancel == "capture" and make is asyncio.CancelledError)
        assert captured == wanted


async def later(function: Any) -> None:
    called = function(1)
    if called is not None:
        await called


@OF_CALLS
def test_key_that_raises_leaves_the_error_with_a_note(dlq: DeadLetterQueue, make: Callable[[], BaseException]) -> None:
    def key(given: int) -> str:
        raise make()

    @dlq.guard(key=key, on_failure="handle")
    def call(given: int) -> None:
        raise ConnectionError("down")

    with pytest.raises(ConnectionError, match="down") as caught:
        call(1)
    assert "it could not be captured" in caught.value.__notes__[0]


@pytest.mark.parametrize("result", ["same", "status", "hostile"])
def test_result_that_cannot_be_judged_is_no_end_of_a_processor(dlq: DeadLetterQueue, result: str) -> None:
    class Hostile(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise SystemExit

    dlq.enqueue("one", {}, "down", "immediate", 1)
    dlq.enqueue("two", {}, "down", "immediate", 1)
    dlq.set_callback(lambda task: Hostile() if result == "hostile" else {"status": {}, "error": Unreadable()})
    dlq.run_due_tasks()
    assert not {"pending", "retrying"} & set(statuses(dlq).values())


def test_function_that_cannot_be_retried_is_no_end_of_a_processor(
    dlq: DeadLetterQueue, caplog: pytest.LogCaptureFixture
) -> None:
    class Custom:
        """Cannot be read from JSON."""

    @dlq.guard(name="odd")
    def odd(given: Custom) -> None:
        """Nothing."""

    dlq.set_callback(lambda task: None)
    dlq.enqueue("one", {}, "down", "immediate")
    dlq.run_due_tasks()
    assert statuses(dlq) == {"one": "completed"}
    assert "function_not_retried" in caplog.text


def test_guarded_call_with_an_unreadable_error_is_captured(dlq: DeadLetterQueue) -> None:
    @dlq.guard(on_failure="handle")
    def call() -> None:
        raise Unreadable

    assert isinstance(call(), Captured)
    assert "could not be read" in dlq.list_tasks()[0].error
