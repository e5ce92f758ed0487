"""An exception at any line of capture: a failure is never lost, and the error of the call is always raised."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.acceptance.interrupted import is_between
from tests.acceptance.interruptions import SOURCES, Interrupter, Interruption, Point, interrupt

from redrive import Broker, connect
from redrive.broker.async_broker import AsyncBroker
from redrive.capture import AsyncDeadLetterQueue, DeadLetterQueue
from redrive.testing import FakeClock

CAPTURE = str(Path(SOURCES) / "capture")
ARGUMENTS = str(Path(SOURCES) / "task" / "arguments.py")


class InCapture(Interrupter):
    """Strikes at the n-th line of capture only: what is below it has tests of its own."""

    def __init__(self, nth: int) -> None:
        super().__init__(Point.LINE, nth)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith((CAPTURE, ARGUMENTS)) or code.co_qualname.startswith("KnownTasks"):
            return None  # a table of functions, which nothing of a task can break
        if event == "line" and not is_between(frame):
            self._strike()
        return self._trace


@pytest.fixture(autouse=True)
def installed_handler() -> Iterator[None]:
    signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Broker]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/calls.db"
    with connect(url, clock=clock, maintenance=False, durability="relaxed") as broker:
        yield broker


def every_line(attempt: Callable[[InCapture], None]) -> int:
    """Attempt it with an exception at each line in turn, until one attempt ends before it."""
    nth = 0
    while True:
        nth += 1
        interrupter = InCapture(nth)
        attempt(interrupter)
        if not interrupter.has_struck:
            return nth


def raised(interrupter: InCapture, work: Callable[[], Any]) -> tuple[Any, list[BaseException]]:
    """Return the result, or what is raised, then what was being handled then."""
    try:
        return interrupter.run(work), []
    except Exception as error:
        chain: list[BaseException] = [error]
        while (link := chain[-1].__context__) is not None:
            chain.append(link)
        return None, chain


def check_told(dlq: DeadLetterQueue, chain: list[BaseException], log: str) -> None:
    """The error of the call is raised, with a note that is true; or what struck, over it."""
    errors = [error for error in chain if type(error) is ConnectionError]
    assert errors, f"the error of the call is lost: {chain!r}"
    if chain[0] is not errors[0]:
        assert type(chain[0]) is Interruption, chain
        return
    notes = getattr(chain[0], "__notes__", ())
    if not notes:  # struck while it is made
        assert dlq.list_tasks(limit=1000) or "capture_failed" in log
    elif notes[-1].startswith("captured as task"):
        assert dlq.get_task(notes[-1].split("'")[1]) is not None, "captured, as the note says, and not there"
    else:
        assert notes[-1].startswith(f"it could not be captured in '{dlq.name}': ")
        assert Interruption.__name__ in notes[-1]


@pytest.mark.parametrize("kind", ["function", "coroutine function"])
@pytest.mark.parametrize("key", [None, lambda items: f"task-{items}"], ids=["no key", "key"])
def test_guarded_call_raises_its_own_error(
    broker: Broker, kind: str, key: Any, caplog: pytest.LogCaptureFixture
) -> None:
    dlq = DeadLetterQueue(broker)
    calls: list[int] = []

    def call(items: list[int]) -> None:
        calls.append(1)
        raise ConnectionError("down")

    async def call_later(items: list[int]) -> None:
        call(items)

    face: Any = dlq if kind == "function" else AsyncDeadLetterQueue(AsyncBroker(broker.core))
    guarded = face.guard(name="call", key=key)(call if kind == "function" else call_later)
    loop = asyncio.new_event_loop()

    def attempt(interrupter: InCapture) -> None:
        calls.clear()
        face._queue.is_open = interrupter.count % 2 == 0
        work = (lambda: guarded([1])) if kind == "function" else (lambda: loop.run_until_complete(guarded([1])))
        _, chain = raised(interrupter, work)
        if calls:
            check_told(dlq, chain, caplog.text)
        caplog.clear()

    try:
        assert every_line(attempt) > 60
    finally:
        loop.close()
    dlq.shutdown()


def test_enqueued_failure_is_there_or_its_error_is_raised(broker: Broker) -> None:
    dlq = DeadLetterQueue(broker)

    def attempt(interrupter: InCapture) -> None:
        id = f"task-{interrupter._nth}"
        task, chain = raised(interrupter, lambda: dlq.enqueue(id, {"a": 1}, "down", metadata={"b": 2}))
        if task is not None:
            assert dlq.get_task(id) is not None
        else:
            assert any(type(error) is Interruption for error in chain), chain

    assert every_line(attempt) > 60
    dlq.shutdown()


def test_executed_call_says_what_became_of_its_failure(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    dlq = DeadLetterQueue(broker)
    calls: list[int] = []

    def call(task: Any) -> None:
        calls.append(1)
        raise ConnectionError("down")

    def attempt(interrupter: InCapture) -> None:
        calls.clear()
        answer, chain = raised(interrupter, lambda: dlq.execute_with_dlq(call, {"a": 1}))
        if answer is not None:
            assert dlq.get_task(answer["dlq_task_id"]) is not None, answer
        elif calls:
            check_told(dlq, chain, caplog.text)
        caplog.clear()

    assert every_line(attempt) > 60
    dlq.shutdown()


@pytest.mark.parametrize("succeeds", [True, False])
def test_task_that_is_retried_by_an_operator_is_never_lost(broker: Broker, clock: FakeClock, succeeds: bool) -> None:
    dlq = DeadLetterQueue(broker)

    def callback(task: Any) -> Any:
        if not succeeds:
            raise ConnectionError("down")

    dlq.set_callback(callback)

    def attempt(interrupter: InCapture) -> None:
        id = f"task-{interrupter._nth}"
        dlq.enqueue(id, {}, "down", "linear", 9)
        raised(interrupter, lambda: dlq.retry_task(id))
        clock.advance("61s")
        broker.run_maintenance()
        found = dlq.get_task(id)
        assert found is not None, f"lost at line {interrupter.count}"
        assert found.status.value in ({"completed", "pending"} if succeeds else {"pending"}), found
        dlq.archive_task(id)

    assert every_line(attempt) > 40
    dlq.shutdown()
