"""Tasks: declared, put, called, and run until they have ended."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from redrive import App, Broker, Context, Dead, DeadReason, Release, Retry, Status, TaskHandle, new_item
from redrive.errors import InvalidArguments, InvalidInput, InvalidName, InvalidSetting, QueueNotFound, RedriveError
from redrive.model.duration import SECOND
from redrive.model.item import Overrides
from redrive.model.retry_policy import RetryPolicy
from redrive.testing import Drained, FakeClock, memory_broker, run_tasks


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app() -> App:
    return App("memory://")


@pytest.fixture
def broker(app: App, clock: FakeClock) -> Iterator[Broker]:
    with memory_broker(clock) as opened:
        yield opened


def test_task_is_put_as_json_by_name(app: App, broker: Broker) -> None:
    @app.queue("emails").task
    def send(to: str, subject: str = "hi") -> None: ...

    with app.override_broker(broker):
        handle = send.put("ann", subject="x")
        item = broker.get(handle.id)
    assert isinstance(handle, TaskHandle)
    assert (item.queue, item.value, item.headers) == ("emails", {"to": "ann", "subject": "x"}, {"task": "send"})
    assert item.content_type == "application/json"


def test_calling_a_task_is_calling_the_function(app: App) -> None:
    @app.queue("jobs").task
    def double(number: int) -> int:
        """Twice."""
        return 2 * number

    assert double(4) == 8
    assert double("x") == "xx"
    assert (double.name, double.__doc__, double.queue.name, double.app) == ("double", "Twice.", "jobs", app)
    assert app.tasks == {"double": double}


def test_wrong_argument_puts_nothing(app: App, broker: Broker) -> None:
    @app.queue("jobs").task
    def double(number: int) -> int:
        return 2 * number

    with app.override_broker(broker):
        with pytest.raises(InvalidArguments):
            double.put("x")  # type: ignore[arg-type]
        with pytest.raises(InvalidArguments):
            double.put_many([double.item(1), double.item("x")])  # type: ignore[arg-type]
        assert broker.stats("jobs").put_total == 0


def test_options_hold_for_one_put(app: App, broker: Broker) -> None:
    @app.queue("jobs").task(priority=7, max_attempts=9, expire_timeout="1h", keep_result="1m")
    def work(number: int = 0) -> None: ...

    with app.override_broker(broker):
        plain = broker.get(work.put().id)
        put = work.options(
            priority=2,
            delay="5m",
            headers={"from": "test"},
            idempotency_key="k",
            max_attempts=3,
            max_losses=1,
            retry={"attempts": 2},
            keep_result="2s",
        )
        item = broker.get(put.put(1).id)
        assert put.put(1).duplicate
        at = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
        later = broker.get(work.options(headers={"a": "1"}).options(headers={"b": "2"}, enqueue_at=at).put().id)
        held = broker.get(work.options(held_by="me").put().id)
        until = broker.get(work.options(expire_at=at).put().id)
    assert (plain.priority, plain.overrides.max_attempts, plain.headers) == (7, 9, {"task": "work"})
    assert plain.expire_deadline == plain.put_at + 3_600_000_000
    assert (item.priority, item.ready_at, item.idempotency_key) == (2, item.put_at + 300_000_000, "k")
    assert item.headers == {"from": "test", "task": "work", "keep_result": "2000000"}
    assert item.overrides == Overrides(3, 1, RetryPolicy(2))
    assert (later.headers["a"], later.headers["b"], later.ready_at) == ("1", "2", later.put_at + 600_000_000)
    assert held.held_by == ("me",)
    assert until.expire_deadline == until.put_at + 600_000_000


@pytest.mark.parametrize(
    "options",
    [
        {"dely": 3},
        {"priority": 10},
        {"delay": "soon"},
        {"headers": {"task": "other"}},
        {"headers": {"keep_result": "1"}},
        {"keep_result": 0},
        {"idempotency_key": ""},
    ],
    ids=str,
)
def test_wrong_options_of_a_put_are_refused(app: App, options: Any) -> None:
    @app.queue("jobs").task
    def work() -> None: ...

    with pytest.raises(InvalidInput):
        work.options(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"nmae": "x"},
        {"name": "a b"},
        {"time_limit": 0},
        {"keep_result": "soon"},
        {"final_errors": (3,)},
        {"final_errors": int},
        {"max_attempts": -1},
        {"every": "1s", "cron": "* * * * *"},
        {"every": "100ms"},
        {"cron": "nonsense"},
        {"cron": "* * * * *", "timezone": "Nowhere/Never"},
        {"every": "1s", "on_missed": "perhaps"},
    ],
    ids=str,
)
def test_wrong_options_of_a_task_are_refused(app: App, options: Any) -> None:
    with pytest.raises(InvalidInput):
        app.queue("jobs").task(**options)(lambda: None)
    assert not app.tasks


def test_option_that_is_misspelt_or_called_otherwise_elsewhere_is_told_with_its_name_here(app: App) -> None:
    with pytest.raises(InvalidInput, match=r"a task has no option 'time_limt' \(did you mean time_limit\?\)"):
        app.queue("jobs").task(**{"time_limt": "1m"})(lambda: None)  # type: ignore[call-overload]
    work = app.queue("jobs").task(name="work")(lambda: None)
    with pytest.raises(InvalidInput, match=r"put has no option 'countdown' \(did you mean delay\?\)"):
        work.options(**{"countdown": 3})  # type: ignore[arg-type]


def test_options_of_a_task_are_known_to_workers(app: App) -> None:
    @app.queue("jobs").task(name="other", time_limit="30s", final_errors=(ValueError, "Timeout"), capture_locals=True)
    async def work() -> None: ...

    assert (work.name, work.is_async, work.time_limit, work.keep_result) == ("other", True, 30_000_000, None)
    assert (work.final_errors, work.capture_locals) == ((ValueError, "Timeout"), True)


def test_two_tasks_of_one_name_are_refused(app: App) -> None:
    app.queue("jobs").task(name="work")(lambda: None)
    with pytest.raises(InvalidInput, match="two tasks of the name 'work'"):
        app.queue("others").task(name="work")(lambda: None)


def test_what_is_no_function_is_refused(app: App) -> None:
    def yields() -> Iterator[int]:
        yield 1

    task: Any = app.queue("jobs").task
    for wrong in (3, int, yields):
        with pytest.raises(InvalidInput):
            task(wrong)
    with pytest.raises(InvalidName):
        task(lambda: None)  # has no name of its own


def test_many_are_put_or_none(app: App, broker: Broker) -> None:
    queue = app.queue("jobs", max_size=3)

    @queue.task
    def work(number: int) -> None: ...

    @queue.task
    def other() -> None: ...

    with app.override_broker(broker):
        handles = work.put_many(work.item(number) for number in range(3))
        assert [broker.get(handle.id).value for handle in handles] == [{"number": 0}, {"number": 1}, {"number": 2}]
        with pytest.raises(RedriveError):
            work.put_many([work.item(3)])
        for wrong in (other.item(), new_item(1), 3):
            with pytest.raises(InvalidInput, match=r"work\.put_many takes what work\.item"):
                work.put_many([wrong])  # type: ignore[list-item]


def test_put_within_a_transaction_of_the_program(app: App, tmp_path: Any) -> None:
    import apsw

    @app.queue("jobs").task
    def work(number: int) -> None: ...

    file = tmp_path / "jobs.db"
    with app.override_broker(f"sqlite:///{file}", maintenance=False) as broker:
        own = apsw.Connection(str(file))
        own.execute("BEGIN IMMEDIATE")
        work.options(transaction=own).put(1)
        own.execute("ROLLBACK")
        assert broker.stats("jobs").pending == 0
        own.execute("BEGIN IMMEDIATE")
        work.options(transaction=own).put(2)
        own.execute("COMMIT")
        assert broker.stats("jobs").pending == 1
        own.close()


def test_call_goes_through_what_a_worker_does(app: App) -> None:
    seen: list[Any] = []

    @app.middleware
    def watch(context: Context) -> Iterator[None]:
        seen.append(context.task.name)
        yield

    @app.queue("jobs").task
    def work(context: Context, day: datetime) -> str:
        seen.append((context.attempts, context.queue, type(day), context.stopping))
        return "done"

    @app.queue("jobs").task
    async def awaited(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    assert work.call(datetime(2026, 1, 1, tzinfo=UTC)) == "done"
    assert awaited.call(1) == 2
    assert seen == ["work", (1, "jobs", datetime, False), "awaited"]
    with pytest.raises(InvalidArguments):
        work.call("no day")  # type: ignore[arg-type]


def test_call_raises_what_the_function_raises(app: App) -> None:
    @app.queue("jobs").task
    def work() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        work.call()


async def test_call_on_an_event_loop(app: App) -> None:
    @app.queue("jobs").task
    async def work(number: int) -> int:
        return number + 1

    @app.queue("jobs").task
    def blocking(number: int) -> int:
        return number - 1

    assert await work.call_async(1) == 2
    assert await blocking.call_async(1) == 0
    assert blocking.call(1) == 0
    with pytest.raises(InvalidInput, match=r"await work\.call_async"):
        work.call(1)


async def test_put_and_result_on_an_event_loop(app: App, broker: Broker) -> None:
    @app.queue("jobs").task(keep_result="1m")
    async def work(number: int) -> int:
        return number + 1

    with app.override_broker(broker):
        handle = await work.put_async(1)
        many = await work.put_many_async([work.item(2), work.item(3)])
        with pytest.raises(InvalidInput, match="to_thread"):
            run_tasks(app)
        await asyncio.to_thread(run_tasks, app)
        assert [await each.result_async(0) for each in (handle, *many)] == [2, 3, 4]


# What becomes of them


def test_what_raises_is_tried_again_until_it_is_dead(app: App, broker: Broker, clock: FakeClock) -> None:
    tries: list[int] = []

    @app.queue("jobs", retry={"attempts": 3, "cooldown": "30s"}).task
    def work(context: Context) -> None:
        tries.append(context.attempts)
        raise TimeoutError("no answer")

    begun = clock.now()
    with app.override_broker(broker):
        handle = work.put()
        assert run_tasks(app) == Drained(retried=2, dead=1)
        item = broker.get(handle.id)
    assert tries == [1, 2, 3]
    assert clock.now() == begun + 60_000_000
    assert (item.status, item.dead_reason) == (Status.DEAD, DeadReason.RETRIES_EXHAUSTED)


def test_clock_stays_where_it_is_unless_it_may_be_moved(app: App, broker: Broker) -> None:
    @app.queue("jobs", retry={"attempts": 2, "cooldown": "30s"}).task
    def work() -> None:
        raise TimeoutError

    with app.override_broker(broker):
        work.put()
        work.options(delay="1h").put()
        assert run_tasks(app, advance=False) == Drained(retried=1)
        assert run_tasks(app) == Drained(retried=1, dead=2)


def test_retry_of_a_task_goes_before_that_of_its_queue(app: App, broker: Broker) -> None:
    @app.queue("jobs", retry={"attempts": 2}).task(retry={"attempts": 4})
    def work() -> None:
        raise TimeoutError

    with app.override_broker(broker):
        work.put()
        assert run_tasks(app) == Drained(retried=3, dead=1)


def test_retry_of_a_put_goes_before_that_of_its_task(app: App, broker: Broker, clock: FakeClock) -> None:
    @app.queue("jobs").task(retry={"attempts": 4, "cooldown": "1m"})
    def work() -> None:
        raise TimeoutError

    with app.override_broker(broker):
        work.options(retry={"attempts": 2, "cooldown": "1s"}).put()
        assert run_tasks(app, advance=False) == Drained(retried=1)
        (item,) = broker.find(status="failed").items
        assert item.ready_at == clock.now() + SECOND
        assert run_tasks(app) == Drained(dead=1)


def test_items_keep_the_retry_that_they_were_put_with(app: App, broker: Broker) -> None:
    queue = app.queue("jobs")

    @queue.task(retry={"attempts": 3})
    def work() -> None:
        raise TimeoutError

    with app.override_broker(broker):
        work.put()
        broker.update_queue("jobs", retry={"attempts": 9, "delay": "never"})
        assert run_tasks(app) == Drained(retried=2, dead=1)


def test_retry_that_cannot_be_is_refused_where_the_task_is_declared(app: App) -> None:
    def work() -> None: ...

    with pytest.raises(InvalidSetting, match=r"retry\.delay must be one of"):
        app.queue("jobs").task(retry={"attempts": 3, "delay": "sometimes"})(work)
    with pytest.raises(InvalidSetting, match=r"max_attempts 2 is lower than retry\.attempts 3"):
        app.queue("jobs").task(max_attempts=2, retry={"attempts": 3})(work)


def test_final_error_of_a_task_is_not_tried_again(app: App, broker: Broker) -> None:
    @app.queue("jobs", retry={"attempts": 5}).task(final_errors=(LookupError,))
    def work() -> None:
        raise KeyError("gone")

    with app.override_broker(broker):
        handle = work.put()
        assert run_tasks(app) == Drained(dead=1)
        assert broker.get(handle.id).dead_reason is DeadReason.FINAL_ERROR


def test_item_that_does_not_fit_is_a_final_failure_of_class_validation(app: App, broker: Broker) -> None:
    @app.queue("jobs", retry={"attempts": 5}).task
    def work(number: int) -> None: ...

    with app.override_broker(broker):
        receipt = broker.put("jobs", {"number": "x"}, headers={"task": "work"})
        assert run_tasks(app) == Drained(dead=1)
        failure = broker.get(receipt.id).last_failure
    assert failure is not None
    assert (failure.error_class, failure.final) == ("validation", True)
    assert "number: Expected `int`, got `str`" in failure.text


@pytest.mark.parametrize(
    ("headers", "value", "reason"),
    [
        ({"task": "work"}, b"\xff", DeadReason.UNDECODABLE),
        ({"task": "nobody"}, {}, DeadReason.UNKNOWN_HANDLER),
        ({}, {}, DeadReason.UNKNOWN_HANDLER),
    ],
)
def test_item_that_no_task_can_take_is_dead_at_once(
    app: App, broker: Broker, headers: dict[str, str], value: Any, reason: DeadReason
) -> None:
    @app.queue("jobs", retry={"attempts": 5}).task
    def work(number: int) -> None: ...

    with app.override_broker(broker):
        receipt = broker.put("jobs", value, headers=headers)
        assert run_tasks(app) == Drained(dead=1)
        assert broker.get(receipt.id).dead_reason is reason


def test_returned_retry_is_tried_again_after_that_time_while_attempts_are_left(
    app: App, broker: Broker, clock: FakeClock
) -> None:
    @app.queue("jobs", max_attempts=3).task
    def work() -> Retry:
        return Retry(after="10m", reason="busy")

    begun = clock.now()
    with app.override_broker(broker):
        handle = work.put()
        assert run_tasks(app) == Drained(retried=2, dead=1)
        item = broker.get(handle.id)
    assert clock.now() == begun + 20 * 60_000_000
    assert [entry.failure and entry.failure.text for entry in item.history] == ["busy"] * 3
    assert item.dead_reason is DeadReason.MAX_ATTEMPTS


def test_returned_release_goes_to_the_tail_and_counts_no_failure(app: App, broker: Broker) -> None:
    order: list[int] = []

    @app.queue("jobs").task
    def work(context: Context, number: int) -> Release | None:
        order.append(number)
        return Release(reason="not yet") if context.attempts == 1 and number == 1 else None

    with app.override_broker(broker):
        work.put(1)
        work.put(2)
        assert run_tasks(app) == Drained(completed=2, released=1)
    assert order == [1, 2, 1]


def test_returned_death_is_dead_with_its_note(app: App, broker: Broker) -> None:
    @app.queue("jobs", retry={"attempts": 5}).task
    def work() -> Dead:
        return Dead(note="no such customer")

    with app.override_broker(broker):
        handle = work.put()
        assert run_tasks(app) == Drained(dead=1)
        item = broker.get(handle.id)
    assert (item.dead_reason, item.history[-1].note) == (DeadReason.BURIED, "no such customer")
    assert item.death is not None
    assert item.death.cause.title == "no such customer"


def test_note_of_a_verdict_that_a_program_brings_is_in_the_history(broker: Broker) -> None:
    broker.create_queue("jobs", retry={"attempts": 5})
    broker.create_queue("morgue")
    for verdict in (Dead(note="not wanted"), Dead(to="morgue", note="not wanted")):
        broker.put("jobs", 1)
        settled = broker.fail(broker.lease("jobs")[0], "boom", verdict=verdict)
        item = broker.get(settled.id)
        assert (settled.dead_reason, item.history[-1].note) == (DeadReason.BURIED, "not wanted")
    broker.put("jobs", 1)
    with pytest.raises(InvalidInput, match="note"):
        broker.fail(broker.lease("jobs")[0], "boom", verdict=Dead(note=3))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [lambda: Retry(after="soon"), lambda: Release(delay=-1)])
def test_outcome_with_a_wrong_duration_is_refused_where_it_is_made(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        wrong()


def test_follow_ups_are_put_with_the_completion_and_only_then(app: App, broker: Broker) -> None:
    queue = app.queue("jobs", retry={"attempts": 2})
    shipped: list[int] = []

    @queue.task
    def charge(context: Context, order: int) -> None:
        context.put(ship.item(order))
        if context.attempts == 1:
            raise TimeoutError

    @queue.task
    def ship(order: int) -> None:
        shipped.append(order)

    with app.override_broker(broker):
        charge.put(17)
        assert run_tasks(app) == Drained(completed=2, retried=1)
    assert shipped == [17]


def test_follow_up_that_is_refused_makes_the_task_fail(app: App, broker: Broker) -> None:
    @app.queue("jobs").task
    def charge(context: Context) -> None:
        context.put(ship.item())

    @app.queue("full", max_size=1).task
    def ship() -> None: ...

    with app.override_broker(broker):
        ship.options(held_by="test").put()
        handle = charge.put()
        assert run_tasks(app) == Drained(dead=1)
        failure = broker.get(handle.id).last_failure
    assert failure is not None
    assert failure.type.endswith("QueueFull")


def test_context_puts_only_what_a_task_made(app: App) -> None:
    @app.queue("jobs").task
    def work(context: Context) -> None:
        context.put(new_item(1))  # type: ignore[arg-type]

    with pytest.raises(InvalidInput, match=r"task\.item"):
        work.call()


def test_task_without_end_is_stopped(app: App, broker: Broker) -> None:
    @app.queue("jobs", max_attempts=0).task
    def work() -> Release:
        return Release()

    with app.override_broker(broker):
        work.put()
        with pytest.raises(AssertionError, match="after 20 deliveries"):
            run_tasks(app, limit=20)


def test_handler_may_put_and_wait_from_other_threads(app: App, broker: Broker) -> None:
    @app.queue("jobs").task
    def work(number: int) -> None: ...

    with app.override_broker(broker):
        threads = [threading.Thread(target=work.put, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert run_tasks(app) == Drained(completed=8)


def test_task_of_a_queue_that_was_deleted_is_refused(app: App, broker: Broker) -> None:
    @app.queue("jobs").task
    def work() -> None: ...

    with app.override_broker(broker):
        broker.delete_queue("jobs")
        with pytest.raises(QueueNotFound):
            work.put()
