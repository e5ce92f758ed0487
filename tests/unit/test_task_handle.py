"""Handles: the result of a task, or why there is none."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.until import until

from redrive import App, Broker, Dead, TaskHandle
from redrive.contract.queries import GetItem
from redrive.errors import (
    Closed,
    InvalidDuration,
    ResultNotKept,
    ResultTimeout,
    ResultUnavailable,
    StoreUnavailable,
    TaskFailed,
)
from redrive.model.duration import SECOND
from redrive.model.ids import result_topic
from redrive.testing import Drained, FakeClock, memory_broker, run_tasks
from redrive.testing.conformance.actions import Background


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with memory_broker(clock) as opened:
        yield opened


@pytest.fixture
def app(broker: Broker) -> Iterator[App]:
    app = App()
    with app.override_broker(broker):
        yield app


@dataclass
class Total:
    sum: int


def test_result_is_what_the_function_returned_as_it_says(app: App) -> None:
    @app.queue("jobs").task(keep_result="10m")
    def total(numbers: list[int]) -> Total:
        return Total(sum(numbers))

    handle = total.put([1, 2])
    run_tasks(app)
    assert handle.result(0) == Total(3)
    assert handle.result() == Total(3)


def test_nothing_is_a_result_too(app: App) -> None:
    @app.queue("jobs").task(keep_result="10m")
    def work() -> None: ...

    handle = work.put()
    run_tasks(app)
    assert handle.result(0) is None  # type: ignore[func-returns-value]


def test_result_is_there_for_as_long_as_was_asked(app: App, broker: Broker, clock: FakeClock) -> None:
    @app.queue("jobs").task(keep_result="10m")
    def work() -> int:
        return 1

    usual, shorter = work.put(), work.options(keep_result="1m").put()
    run_tasks(app)
    clock.advance("5m")
    broker.run_maintenance()
    assert usual.result(0) == 1
    with pytest.raises(ResultNotKept):
        shorter.result(0)
    clock.advance("5m")
    broker.run_maintenance()
    with pytest.raises(ResultNotKept):
        usual.result(0)


def test_result_that_nobody_asked_for_is_not_kept(app: App) -> None:
    @app.queue("jobs").task
    def work() -> int:
        return 1

    handle, asked = work.put(), work.options(keep_result="1m").put()
    run_tasks(app)
    with pytest.raises(ResultNotKept, match="keep_result"):
        handle.result()
    assert asked.result(0) == 1


def test_result_of_a_queue_that_keeps_completed_items(app: App) -> None:
    @app.queue("jobs", keep_completed="1h").task
    def work() -> dict[str, str]:
        return {"password": "hunter2"}

    handle = work.put()
    run_tasks(app)
    assert handle.result(0) == {"password": "hunter2"}


@pytest.mark.parametrize("keep_completed", ["0s", "1h"])
def test_completion_between_two_queries_of_a_caller_is_not_missed(
    app: App, broker: Broker, keep_completed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first finds no result, and the second an item that has ended, or none."""

    @app.queue("jobs", keep_completed=keep_completed).task(keep_result="1m")
    def work() -> int:
        return 5

    handle = work.put()
    store = broker.core.store
    read = store.read

    def reading(query: Any) -> Any:
        if isinstance(query, GetItem):
            run_tasks(app)
        return read(query)

    monkeypatch.setattr(store, "read", reading)
    assert handle.result(0) == 5


def test_result_that_json_cannot_hold_makes_the_task_fail(app: App) -> None:
    @app.queue("jobs").task(keep_result="1m")
    def work() -> Any:
        return object()

    handle = work.put()
    assert run_tasks(app) == Drained(dead=1)
    with pytest.raises(TaskFailed):
        handle.result(0)


def test_dead_task_raises_with_its_failure(app: App) -> None:
    @app.queue("jobs").task(keep_result="1m")
    def work() -> None:
        raise ValueError("no such order")

    handle = work.put()
    run_tasks(app)
    with pytest.raises(TaskFailed, match="no such order") as failed:
        handle.result()
    error = failed.value
    assert (error.task, error.id, error.reason) == ("work", handle.id, "retries_exhausted")
    assert error.failure.type == "ValueError"
    assert isinstance(error, ResultUnavailable)


def test_secrets_of_a_failure_are_hidden(app: App) -> None:
    @app.queue("jobs").task
    def work() -> None:
        raise ValueError("password=hunter2")

    handle = work.put()
    run_tasks(app)
    with pytest.raises(TaskFailed) as failed:
        handle.result()
    assert "hunter2" not in str(failed.value)
    assert "hunter2" not in failed.value.failure.text


@pytest.mark.parametrize("dead_queue", [None, "morgue"])
def test_task_that_was_brought_back_is_waited_for_again(app: App, broker: Broker, dead_queue: str | None) -> None:
    broken = True

    @app.queue("jobs", dead_queue=dead_queue, retry={"attempts": 2}).task(keep_result="1m")
    def work() -> int:
        if broken:
            raise ValueError("boom")
        return 3

    handle = work.put()
    run_tasks(app)
    with pytest.raises(TaskFailed, match="boom"):
        handle.result(0)
    brought = broker.redrive(broker.get(handle.id).id)
    with pytest.raises(ResultTimeout):
        handle.result(0)
    broker.undo(brought.id)
    with pytest.raises(TaskFailed):
        handle.result(0)
    broker.redrive(broker.get(handle.id).id)
    assert run_tasks(app, advance=False).retried + run_tasks(app).dead >= 1
    with pytest.raises(TaskFailed):
        handle.result(0)
    broker.redrive(broker.get(handle.id).id)
    broken = False
    assert run_tasks(app) == Drained(completed=1)
    assert handle.result(0) == 3


def test_death_without_a_failure_is_told(app: App) -> None:
    @app.queue("jobs").task
    def work() -> Dead:
        return Dead(note="not wanted")

    handle = work.put()
    run_tasks(app)
    with pytest.raises(TaskFailed, match=r"buried.*not wanted") as failed:
        handle.result()
    assert failed.value.failure is None


def test_task_that_is_retried_is_waited_for(app: App) -> None:
    @app.queue("jobs", retry={"attempts": 2, "cooldown": "1m"}).task
    def work() -> None:
        raise ValueError

    handle = work.put()
    run_tasks(app, advance=False)
    with pytest.raises(ResultTimeout) as late:
        handle.result(0)
    assert late.value.retryable


def test_wait_ends_when_the_time_is_over(app: App, clock: FakeClock) -> None:
    work = app.queue("jobs").task(name="work")(lambda: None)
    handle = work.put()
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            handle.result("30s")
        except ResultUnavailable as error:
            caught.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while waiter.is_alive():
        clock.advance("1s")
        waiter.join(0.001)
    assert isinstance(caught[0], ResultTimeout)
    assert "30 s" in str(caught[0])


def test_completion_in_this_process_ends_the_wait(app: App, clock: FakeClock) -> None:
    @app.queue("jobs").task(keep_result="1m")
    def work() -> int:
        return 5

    handle = work.put()
    got: list[int] = []
    waiter = threading.Thread(target=lambda: got.append(handle.result("1h")))
    waiter.start()
    clock.until_waiting()
    run_tasks(app)
    waiter.join(120)
    assert got == [5]


def test_completion_in_another_process_ends_the_wait(tmp_path: Path) -> None:
    """Another broker on the same file stands for it."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"

    def declared() -> tuple[App, Any]:
        app = App(url, maintenance=False)
        return app, app.queue("jobs").task(name="work", keep_result="1m")(lambda: 7)

    (here, work), (there, _) = declared(), declared()
    with here, there:
        handle = work.put()
        got: list[int] = []
        waiter = threading.Thread(target=lambda: got.append(handle.result("1h")), daemon=True)
        waiter.start()
        assert run_tasks(there) == Drained(completed=1)
        waiter.join(120)
        assert got == [7]


async def test_wait_on_an_event_loop_can_be_cancelled(app: App) -> None:
    work = app.queue("jobs").task(name="work")(lambda: None)
    handle = await work.put_async()
    waiting = asyncio.create_task(handle.result_async("1h"))
    for _ in range(10):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(ResultTimeout):
        await handle.result_async(0)


def test_handle_tells_what_was_put(app: App, broker: Broker) -> None:
    work = app.queue("jobs").task(name="work")(lambda: None)
    put = work.options(idempotency_key="k")
    first, second = put.put(), put.put()
    assert isinstance(first, TaskHandle)
    assert (first.id, first.duplicate, second.id, second.duplicate) == (first.id, False, first.id, True)
    assert broker.get(first.id).idempotency_key == "k"
    assert repr(second) == f"Handle(task='work', id='{first.id}', duplicate=True)"
    with pytest.raises(InvalidDuration):
        first.result("soon")


class Outage:
    """While it lasts, no query reaches the store."""

    def __init__(self, broker: Broker) -> None:
        self._store: Any = broker.core.store
        self._read = self._store.read
        self.tries = 0
        self._store.read = self._refuse

    def _refuse(self, query: Any) -> Any:
        self.tries += 1
        raise StoreUnavailable("memory", "it restarts")

    def end(self) -> None:
        self._store.read = self._read


@pytest.fixture
def max_outage(monkeypatch: pytest.MonkeyPatch) -> int:
    """In seconds."""
    monkeypatch.setattr("redrive.task.result_handle.MAX_OUTAGE", 5 * SECOND)
    return 5


def test_outage_of_the_store_is_survived(app: App, broker: Broker, clock: FakeClock, max_outage: int) -> None:
    @app.queue("jobs").task(keep_result="1h")
    def work() -> int:
        return 5

    handle = work.put()
    notify, topic = broker.core.notify, result_topic(handle.id)
    waiter = Background(lambda: handle.result("1h"))
    until(lambda: notify._waiters)
    outage = Outage(broker)
    for tries in range(1, max_outage):
        clock.advance("1s")
        until(lambda: outage.tries == tries and notify._waiters)  # noqa: B023
        for unknown in (True, False):  # as polls do of a store that cannot be reached
            with notify._mutex:
                woken = notify._others_changed(None if unknown else [topic])
            notify._wake(woken)
            until(lambda: notify._waiters)
        assert outage.tries == tries
    outage.end()
    run_tasks(app)
    assert waiter.result_in_time(clock) == 5


def test_outage_that_lasts_is_raised(app: App, broker: Broker, clock: FakeClock, max_outage: int) -> None:
    work = app.queue("jobs").task(name="work")(lambda: None)
    handle = work.put()
    waiter = Background(handle.result)
    until(lambda: broker.core.notify._waiters)
    Outage(broker)
    begun = clock.now()
    with pytest.raises(StoreUnavailable, match="it restarts"):
        waiter.result_in_time(clock)
    assert clock.now() - begun >= max_outage * SECOND


def test_outage_when_the_time_is_over_is_raised(app: App, broker: Broker) -> None:
    work = app.queue("jobs").task(name="work")(lambda: None)
    handle = work.put()
    outage = Outage(broker)
    with pytest.raises(StoreUnavailable, match="it restarts"):
        handle.result(0)
    assert outage.tries == 1


def test_close_during_an_outage_ends_the_wait(app: App, broker: Broker) -> None:
    work = app.queue("jobs").task(name="work")(lambda: None)
    handle = work.put()
    Outage(broker)
    waiter = Background(handle.result)
    until(lambda: broker.core.notify._waiters)
    broker.close()
    with pytest.raises(Closed):
        waiter.result()
