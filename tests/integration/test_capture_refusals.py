"""Bad input of capture, in memory and over HTTP: a typed error says what to do, and hides no error of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.mounted import Mounts

from redrive import Broker, connect, connect_async
from redrive.capture import (
    AsyncDeadLetterQueue,
    CaptureDisabledError,
    CaptureFullError,
    DeadLetterQueue,
    DeadLetterStatus,
    NoCallbackError,
    UnknownPolicyError,
)
from redrive.errors import (
    IdempotencyConflict,
    InvalidDuration,
    InvalidInput,
    InvalidName,
    InvalidPayload,
    InvalidSetting,
    RedriveError,
)

JSON = "a task is captured as JSON"
RETRIES = "max_retries must be (a whole number, )?0 to 1,000"
PRIORITY = "priority is high, medium, low, or a number from 0 to 9"
TOO_DEEP: Any = []
for _ in range(101):
    TOO_DEEP = [TOO_DEEP]


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    mounts = Mounts()
    url = mounts.mount(lambda namespace: connect_async("memory://", namespace=namespace))
    yield url
    mounts.unmount(url)
    mounts.close()


@pytest.fixture(params=["memory", "http"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = "memory://" if request.param == "memory" else request.getfixturevalue("served")
    return found


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with connect(url) as broker:
        yield broker


@pytest.fixture
def dlq(broker: Broker, request: pytest.FixtureRequest) -> DeadLetterQueue:
    return DeadLetterQueue(broker, f"captured-{abs(hash(request.node.name))}")


def guard(**options: Any) -> Callable[[DeadLetterQueue], Any]:
    return lambda dlq: dlq.guard(**options)(lambda: None)


def unreachable(task: Any, **extra: Any) -> None:
    raise AssertionError("a call that is refused does not run")


CAPTURES: dict[str, tuple[dict[str, Any], type[RedriveError], str]] = {
    "policy": ({"retry_policy": "sometimes"}, UnknownPolicyError, "'sometimes'; there are never, .* add_policy"),
    "policy of another type": ({"retry_policy": 5}, UnknownPolicyError, "there are never, linear"),
    "category": ({"error_category": "odd"}, InvalidInput, "error_category must be one of transient, network, resource"),
    "retries below 0": ({"max_retries": -1}, InvalidInput, RETRIES),
    "retries above the limit": ({"max_retries": 1001}, InvalidInput, RETRIES),
    "retries that are no number": ({"max_retries": "3"}, InvalidInput, RETRIES),
    "retries that are true": ({"max_retries": True}, InvalidInput, RETRIES),
    "function in a task": ({"task": {"call": print}}, InvalidPayload, JSON),
    "NaN in a task": ({"task": [float("nan")]}, InvalidPayload, JSON),
    "half a character in a task": ({"task": "\ud800"}, InvalidPayload, JSON),
    "deep task": ({"task": TOO_DEEP}, InvalidPayload, JSON),
    "function in an extra argument": ({"repos": [print]}, InvalidPayload, JSON),
    "function in metadata": ({"metadata": {"call": print}}, InvalidPayload, "metadata is kept as JSON"),
    "NaN in metadata": ({"metadata": {"n": float("nan")}}, InvalidPayload, "metadata is kept as JSON"),
    "metadata that is no mapping": ({"metadata": "team"}, InvalidInput, "metadata is a mapping"),
    "large metadata": ({"metadata": {"text": "x" * 100_000}}, InvalidInput, "put the rest into the task"),
    "priority": ({"priority": "urgent"}, InvalidInput, PRIORITY),
    "priority out of range": ({"priority": 10}, InvalidInput, "priority"),
    "empty id": ({"task_id": ""}, InvalidName, "task_id"),
    "id of another type": ({"task_id": 7}, InvalidName, "task_id"),
    "error of another type": ({"error": 7}, InvalidInput, "an error is an exception, a text or a Failure"),
}
CALLS: dict[str, tuple[Callable[[DeadLetterQueue], Any], type[RedriveError], str]] = {
    "policy of a guard": (guard(policy="sometimes"), UnknownPolicyError, "add_policy"),
    "category that is listed": (lambda dlq: dlq.list_tasks(category="odd"), InvalidInput, "category must be one of"),
    "status that is listed": (
        lambda dlq: dlq.list_tasks("odd"),
        InvalidInput,
        "status must be one of pending, retrying",
    ),
    "cursor": (lambda dlq: dlq.list_tasks(cursor="odd"), InvalidInput, "cursor is what list_tasks returned"),
    "cursor with a digit that is no number": (lambda dlq: dlq.list_tasks(cursor="²:"), InvalidInput, "cursor is what"),
    "limit": (lambda dlq: dlq.list_tasks(limit=0), InvalidInput, "limit"),
    "retries of a guard": (guard(max_retries=1.5), InvalidInput, RETRIES),
    "metadata of a guard": (guard(metadata=5), InvalidInput, "metadata is a mapping"),
    "metadata of a guard that JSON cannot hold": (guard(metadata={"call": print}), InvalidPayload, "kept as JSON"),
    "further argument of a call": (
        lambda dlq: dlq.execute_with_dlq(unreachable, {}, error="mine"),
        InvalidInput,
        "cannot have the name 'error'",
    ),
    "priority of a guard": (guard(priority="urgent"), InvalidInput, PRIORITY),
    "strategy": (lambda dlq: dlq.set_strategy("odd"), InvalidInput, "strategy must be one of automatic, selective"),
    "policy that is built in": (lambda dlq: dlq.add_policy("never", int), InvalidInput, "choose another name"),
    "policy that is no function": (lambda dlq: dlq.add_policy("mine", 5), InvalidInput, "a policy is a function"),  # type: ignore[arg-type]
    "no callback": (lambda dlq: dlq.start_retry_processor(), NoCallbackError, "give a callback"),
    "no callback for one cycle": (lambda dlq: dlq.run_due_tasks(), NoCallbackError, "set_callback"),
    "callback that is no function": (lambda dlq: dlq.set_callback(5), InvalidInput, "a callback is a function"),  # type: ignore[arg-type]
    "interval": (
        lambda dlq: dlq.start_retry_processor(print, check_interval_seconds=0),
        InvalidInput,
        "check_interval_seconds is a number above 0",
    ),
    "interval without an end": (
        lambda dlq: dlq.start_retry_processor(print, check_interval_seconds=float("inf")),
        InvalidInput,
        "check_interval_seconds is a number above 0",
    ),
}


@pytest.mark.parametrize("case", CAPTURES)
def test_bad_capture_is_refused_with_what_to_do_and_the_error_of_the_task(dlq: DeadLetterQueue, case: str) -> None:
    options, kind, words = CAPTURES[case]
    with pytest.raises(kind, match=words) as caught:
        dlq.enqueue(**{"task_id": "one", "task": 1, "error": TimeoutError("the original"), **options})
    error = str(options.get("error", "TimeoutError: the original"))
    assert caught.value.__notes__ == [f"it was not captured: {error}"]
    check_empty(dlq)


@pytest.mark.parametrize("case", CALLS)
def test_bad_call_is_refused_with_what_to_do(dlq: DeadLetterQueue, case: str) -> None:
    act, kind, words = CALLS[case]
    with pytest.raises(kind, match=words):
        act(dlq)
    check_empty(dlq)


def check_empty(dlq: DeadLetterQueue) -> None:
    assert dlq.list_tasks() == []
    assert dlq.get_statistics()["lifetime_stats"]["enqueued_total"] == 0


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"max_size": -1}, InvalidSetting, "max_size"),
        ({"default_max_retries": 1.5}, InvalidSetting, "default_max_retries"),
        ({"default_retry_policy": 5}, InvalidSetting, "must be the name of a policy"),
        ({"enabled": "perhaps"}, InvalidSetting, "must be true or false"),
        ({"strategy": "odd"}, InvalidInput, "strategy must be one of"),
        ({"concurrency": 0}, InvalidInput, "concurrency must be 1 to 1,000"),
        ({"time_limit": "soon"}, InvalidDuration, "time_limit"),
        ({"is_failure": True}, InvalidInput, "is_failure is a function"),
        ({"alerts": 80}, InvalidInput, "alerts are AlertThresholds"),
        ({"name": ""}, InvalidName, "queue"),
        ({"broker": 5}, InvalidInput, "takes a Broker or a URL"),
    ],
)
def test_bad_argument_of_a_dead_letter_queue_is_refused(
    broker: Broker, options: dict[str, Any], kind: type[RedriveError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        DeadLetterQueue(**{"broker": broker, **options})


def test_default_policy_that_is_not_known_is_refused_when_it_is_needed(broker: Broker) -> None:
    dlq = DeadLetterQueue(broker, "own", default_retry_policy="mine")
    with pytest.raises(UnknownPolicyError, match=r"'mine'; .* add_policy"):
        dlq.enqueue("one", 1, "down")
    dlq.add_policy("mine", lambda failures: 60)
    assert dlq.enqueue("one", 1, "down").retry_policy == "mine"


def test_refusal_of_a_capture_has_the_error_of_the_task(broker: Broker) -> None:
    dlq = DeadLetterQueue(broker, "small", max_size=1)
    dlq.enqueue("one", 1, "down")
    dlq.set_callback(print)
    for kind, words, given in (
        (IdempotencyConflict, "one", ("one", {"other": "task"})),
        (CaptureFullError, "is full: .* archive_task .* or raise max_size", ("two", 2)),
    ):
        with pytest.raises(kind, match=words) as caught:
            dlq.enqueue(*given, TimeoutError("the original"))
        assert caught.value.__notes__ == ["it was not captured: TimeoutError: the original"]
    dlq.set_strategy("disabled")
    with pytest.raises(CaptureDisabledError, match="set_strategy") as refused:
        dlq.enqueue("three", 3, "a text")
    assert refused.value.__notes__ == ["it was not captured: a text"]


# The error of a call that cannot be captured


class Problem:
    """Why a call cannot be captured."""

    def __init__(self, note: str, argument: Any = 1, key: Callable[..., Any] | None = None, **options: Any) -> None:
        self.note, self.argument, self.key, self.options = note, argument, key, options


class Mute(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def mute_key(*_: Any) -> str:
    raise Mute


def no_key(*_: Any) -> str:
    raise KeyError("no key")


PROBLEMS = {
    "argument": Problem("object", object()),
    "key that raises": Problem("no key", key=no_key),
    "key that raises what has no text": Problem("<its text could not be read: RuntimeError>", key=mute_key),
    "key that is no text": Problem("task_id", key=lambda _: 7),
    "full queue": Problem("is full", max_size=0),
}
FACES = ("guard", "guarded coroutine", "execute_with_dlq", "execute_with_dlq, awaited")


@pytest.mark.parametrize(
    ("face", "case"),
    [(face, case) for face in FACES for case in PROBLEMS if "guard" in face or PROBLEMS[case].key is None],
)
def test_error_of_the_call_is_raised_with_its_cause_and_the_reason(url: str, face: str, case: str) -> None:
    problem, cause, context = PROBLEMS[case], KeyError("cause"), ValueError("context")
    error = TimeoutError("the original")

    def call(argument: Any) -> None:
        try:
            raise context
        except ValueError:
            raise error from cause

    with DeadLetterQueue(url, "calls", **problem.options) as dlq:
        with pytest.raises(TimeoutError) as caught:
            run(face, url, dlq, call, problem)
        check_empty(dlq)
    assert caught.value is error
    assert (error.__cause__, error.__context__) == (cause, context)
    (note,) = error.__notes__
    assert note.startswith("it could not be captured in 'calls': ")
    assert problem.note in note


def run(face: str, url: str, dlq: DeadLetterQueue, call: Callable[[Any], Any], problem: Problem) -> Any:
    async def call_later(argument: Any) -> None:
        call(argument)

    async def execute() -> Any:
        async with AsyncDeadLetterQueue(url, "calls", **problem.options) as other:
            return await other.execute_with_dlq(call_later, problem.argument)

    match face:
        case "guard":
            return dlq.guard(name="call", key=problem.key)(call)(problem.argument)
        case "guarded coroutine":
            return asyncio.run(dlq.guard(name="call", key=problem.key)(call_later)(problem.argument))
        case "execute_with_dlq":
            return dlq.execute_with_dlq(call, problem.argument)
        case _:
            return asyncio.run(execute())


def test_error_whose_text_cannot_be_read_is_captured(broker: Broker) -> None:
    def call(task: Any) -> None:
        raise Mute

    dlq = DeadLetterQueue(broker, "mute")
    answer = dlq.execute_with_dlq(call, 1, task_id="one")
    assert (answer["dlq_task_id"], answer["error"]) == ("one", "<its text could not be read: RuntimeError>")
    dlq.set_callback(call)
    assert not dlq.retry_task("one")["success"]
    with pytest.raises(InvalidPayload) as caught:
        dlq.enqueue("two", print, Mute())
    assert caught.value.__notes__ == ["it was not captured: Mute: <its text could not be read: RuntimeError>"]


def test_task_is_not_in_retry_after_a_cancelled_one(url: str) -> None:
    async def main() -> None:
        async with AsyncDeadLetterQueue(url, "cancelled") as dlq:
            began = asyncio.Event()

            async def callback(task: Any) -> None:
                began.set()
                await asyncio.Event().wait()

            dlq.set_callback(callback)
            await dlq.enqueue("one", 1, "down")
            running = asyncio.ensure_future(dlq.retry_task("one"))
            await began.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            after = await dlq.get_task("one")
            assert after is not None
            assert after.status is DeadLetterStatus.PENDING

    asyncio.run(main())


def test_cancelled_call_waits_for_its_capture(tmp_path: Path) -> None:
    """The coroutine is cancelled while the failure is being written: it is written, and the cancellation raised."""

    async def main() -> None:
        async with AsyncDeadLetterQueue(f"sqlite:///{tmp_path}/calls.db") as dlq:
            await dlq.list_tasks()
            failed = asyncio.Event()

            async def call(task: Any) -> None:
                failed.set()
                raise TimeoutError("the original")

            running = asyncio.ensure_future(dlq.execute_with_dlq(call, 1))
            await failed.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await running
            assert isinstance(caught.value.__context__, TimeoutError)
            assert [task.error for task in await dlq.list_tasks()] == ["the original"]

    asyncio.run(main())
