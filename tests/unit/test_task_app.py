"""Apps: nothing is opened before it is needed, and declared queues become queues of the store."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Broker, Context, connect
from redrive.errors import Closed, InvalidInput, InvalidSetting, QueueNotFound
from redrive.mailbox import Mailbox
from redrive.model.breaker import BreakerRule
from redrive.testing import Drained, memory_broker, run_tasks


@pytest.fixture
def broker() -> Iterator[Broker]:
    with memory_broker() as opened:
        yield opened


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", maintenance=False)
    work = app.queue("jobs").task(name="work")(lambda: None)
    work.item()
    assert work.call() is None
    assert list(tmp_path.iterdir()) == []
    with app:
        work.put()
        assert (tmp_path / "jobs.db").exists()
        assert app.broker is app.open()


def test_url_comes_from_the_environment_when_the_app_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(maintenance=False)
    monkeypatch.setenv("REDRIVE_URL", f"sqlite:///{tmp_path / 'named.db'}")
    with app:
        app.open()
    assert (tmp_path / "named.db").exists()


def test_without_a_url_it_is_a_file_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDRIVE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with App(maintenance=False) as app:
        app.open()
    assert "redrive.db" in os.listdir(tmp_path)


def test_app_says_where_it_runs_without_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = App("sqlite:///jobs.db")
    assert app.store_url == f"sqlite:///{tmp_path}/jobs.db"
    with app.override_broker("memory://"):
        assert app.store_url == "memory://"
    assert app.store_url.endswith("jobs.db")
    where = App("postgresql://ann:hunter2hunter2@db.example.com/jobs").store_url
    assert where.endswith("@db.example.com/jobs")
    assert "hunter2" not in where


def test_closed_app_is_opened_again_by_the_next_use(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", maintenance=False)
    work = app.queue("jobs").task(name="work")(lambda: None)
    work.put()
    first = app.broker
    app.close()
    app.close()
    with pytest.raises(Closed):
        first.stats("jobs")
    work.put()
    assert app.broker.stats("jobs").pending == 2
    app.close()


def test_queue_that_is_missing_is_created(broker: Broker) -> None:
    app = App()
    app.queue("jobs", retry={"attempts": 3}, lease_timeout="5m")
    with app.override_broker(broker):
        settings = broker.get_queue("jobs").settings
    assert (settings.retry.attempts, settings.lease_timeout) == (3, 300_000_000)


def test_declared_queue_and_mailbox_have_their_breakers(broker: Broker) -> None:
    app = App()
    app.queue("jobs", breakers={"network": {"failures": 3}})
    with pytest.raises(InvalidSetting, match=r"breakers\.weather"):
        app.queue("others", breakers={"weather": {}})
    with app.override_broker(broker):
        assert broker.get_queue("jobs").settings.breakers == {"network": BreakerRule(failures=3)}
    Mailbox(broker, "letters", settings={"breakers": {"queue": {}}}).approximate_count()
    assert broker.get_queue("letters").settings.breakers == {"queue": BreakerRule()}


def test_settings_that_are_named_are_set_and_others_stay(broker: Broker) -> None:
    broker.create_queue("jobs", retry={"attempts": 2}, max_size=7)
    app = App()
    app.queue("jobs", retry={"attempts": 3})
    with app.override_broker(broker):
        queue = broker.get_queue("jobs")
    assert (queue.settings.retry.attempts, queue.settings.max_size) == (3, 7)


def test_declaring_again_changes_nothing(broker: Broker) -> None:
    app = App()
    app.queue("jobs", retry={"attempts": 3}, dead_queue="morgue")
    app.create_queues(broker)
    before = broker.list_queues()
    app.create_queues(broker)
    assert broker.list_queues() == before


def test_dead_queues_come_first_and_are_created_where_they_are_missing(broker: Broker) -> None:
    app = App()
    app.queue("jobs", dead_queue={"network": "tomorrow", "default": "morgue"})
    app.queue("morgue", keep_dead="30d")
    with app.override_broker(broker):
        assert [queue.name for queue in broker.list_queues()] == ["jobs", "morgue", "tomorrow"]
        assert broker.get_queue("morgue").settings.keep_dead == 30 * 86_400_000_000


def test_dead_queue_in_another_store(tmp_path: Path) -> None:
    far = f"sqlite:///{tmp_path / 'far.db'}"
    with connect(far, store_name="far", maintenance=False) as other:
        other.create_queue("morgue")
    app = App("memory://", store_name="near", stores={"far": far}, maintenance=False)
    app.queue("jobs", dead_queue="morgue@far")
    with app:
        assert app.broker.get_queue("jobs").settings.dead_queue == "morgue@far"


def test_queue_that_is_declared_late_is_created_by_the_next_use() -> None:
    with App("memory://", maintenance=False) as app:
        app.queue("early")
        app.open()
        work = app.queue("late").task(name="work")(lambda: None)
        work.put()
        assert app.broker.stats("late").pending == 1


def test_wrong_setting_is_refused_where_it_is_declared() -> None:
    app = App()
    with pytest.raises(InvalidSetting):
        app.queue("jobs", rety={"attempts": 3})
    assert not app.queues


def test_settings_of_a_queue_are_given_in_one_place() -> None:
    app = App()
    jobs = app.queue("jobs", max_size=3)
    assert app.queue("jobs") is jobs
    with pytest.raises(InvalidInput, match="declared already"):
        app.queue("jobs", max_size=4)
    assert app.queues == {"jobs": jobs}


def test_broker_that_could_not_be_given_its_queues_is_closed(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", maintenance=False)
    app.queue("jobs", dead_queue="morgue")
    app.queue("morgue", dead_queue="jobs")
    with pytest.raises(InvalidSetting):
        app.open()
    assert app._broker is None


def test_another_store_is_used_for_a_while(broker: Broker, tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", maintenance=False)
    work = app.queue("jobs").task(name="work")(lambda: None)
    work.put()
    with app.override_broker(broker) as used:
        assert used is broker is app.broker
        work.put()
        assert run_tasks(app) == Drained(completed=1)
    with app.override_broker("memory://", maintenance=False) as memory:
        assert memory.stats("jobs").put_total == 0
    with pytest.raises(Closed):
        memory.stats("jobs")
    assert broker.stats("jobs").completed_total == 1
    assert app.broker.stats("jobs").pending == 1
    app.close()


def test_store_is_given_back_when_a_test_fails(broker: Broker) -> None:
    app = App("memory://", maintenance=False)
    with pytest.raises(ZeroDivisionError), app.override_broker(broker):
        raise ZeroDivisionError
    with app:
        assert app.broker is not broker


def test_broker_has_its_options_already(broker: Broker) -> None:
    with pytest.raises(InvalidInput, match="namespace"), App().override_broker(broker, namespace="x"):
        pass


async def test_async_broker_is_on_the_same_store(broker: Broker) -> None:
    app = App()
    app.queue("jobs")
    with app.override_broker(broker):
        await app.async_broker.put("jobs", 1)
        await (await app.open_async()).put("jobs", 2)
        assert broker.stats("jobs").pending == 2


async def test_app_is_opened_on_an_event_loop(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", maintenance=False)
    work = app.queue("jobs").task(name="work")(lambda: None)
    await work.put_async()
    assert app.broker.stats("jobs").pending == 1
    app.close()


def test_namespace_and_other_options_reach_the_store() -> None:
    with App("memory://", namespace="mine", maintenance=False) as app, pytest.raises(QueueNotFound, match="mine"):
        app.broker.stats("jobs")


# Around every task


def test_middleware_is_around_the_handler_the_first_outermost(broker: Broker) -> None:
    app = App()
    seen: list[str] = []

    def named(name: str) -> None:
        @app.middleware
        def around(context: Context) -> Iterator[None]:
            seen.append(f"{name} before {context.task.name}")
            yield
            seen.append(f"{name} after")

    named("outer")
    named("inner")

    @app.queue("jobs").task
    def work() -> None:
        seen.append("work")

    @app.queue("jobs").task
    async def awaited() -> None:
        seen.append("awaited")

    with app.override_broker(broker):
        work.put()
        awaited.put()
        assert run_tasks(app) == Drained(completed=2)
    inner = ["outer before {0}", "inner before {0}", "{0}", "inner after", "outer after"]
    assert seen == [line.format(name) for name in ("work", "awaited") for line in inner]


def test_middleware_sees_what_the_handler_raises_and_may_raise_something_else(broker: Broker) -> None:
    app = App()

    @app.middleware
    def translate(context: Context) -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise LookupError("translated") from error

    @app.queue("jobs").task
    def work() -> None:
        raise KeyError("x")

    with app.override_broker(broker):
        handle = work.put()
        assert run_tasks(app) == Drained(dead=1)
        failure = broker.get(handle.id).last_failure
    assert failure is not None
    assert (failure.type, failure.text) == ("LookupError", "translated")


def test_middleware_that_lets_no_exception_out_has_dealt_with_it(broker: Broker) -> None:
    app = App()

    @app.middleware
    def deal(context: Context) -> Iterator[None]:
        with contextlib.suppress(KeyError):
            yield

    @app.queue("jobs").task(keep_result="1m")
    def work() -> int:
        raise KeyError("x")

    with app.override_broker(broker):
        handle = work.put()
        assert work.call() is None  # type: ignore[func-returns-value, unused-ignore]
        assert run_tasks(app) == Drained(completed=1)
        assert handle.result(0) is None  # type: ignore[comparison-overlap, unused-ignore]


def test_middleware_has_one_yield() -> None:
    app = App()
    wrong: Any = lambda context: None  # noqa: E731
    with pytest.raises(InvalidInput, match="one yield"):
        app.middleware(wrong)
