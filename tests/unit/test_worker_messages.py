"""What a worker says: what it works on and where, how it went, and why it does not begin."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Broker, Context, Retry, connect
from redrive.errors import InvalidInput
from redrive.worker import Worker


@pytest.fixture
def app() -> App:
    app = App("memory://")
    app.queue("emails", retry={"attempts": 2, "cooldown": "1h"})
    return app


@pytest.fixture
def broker(app: App) -> Iterator[Broker]:
    with connect("memory://") as broker, app.override_broker(broker):
        yield broker


def told(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, Any]:
    (record,) = [each for each in caplog.records if getattr(each, "event", None) == event]
    fields: dict[str, Any] = record.fields  # type: ignore[attr-defined]
    return fields


def test_first_line_says_where_the_worker_works_and_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with App("sqlite:///jobs.db") as app:
        app.queue("emails").task(name="send")(lambda: None)
        with caplog.at_level(logging.INFO, "redrive"):
            Worker(app).run(until_idle=True)
    started = told(caplog, "worker_started")
    assert started["store"] == f"sqlite:///{tmp_path}/jobs.db"
    assert (started["queues"], started["tasks"]) == ("emails", "send")


def test_password_of_the_store_is_in_no_line(broker: Broker, app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.queue("emails").task(name="send")(lambda: None)
    app._used, app._url = None, "postgresql://ann:hunter2hunter2@db.example.com/jobs"
    with caplog.at_level(logging.INFO, "redrive"):
        Worker(app).run(until_idle=True)
    assert "db.example.com" in told(caplog, "worker_started")["store"]
    assert "hunter2" not in caplog.text


def test_last_line_says_how_much_was_done(broker: Broker, app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.queue("emails").task
    def send(context: Context, to: str) -> Retry | None:
        if to == "ben":
            raise TimeoutError("no answer")
        return Retry("1h") if to == "eve" else None

    send.put_many(send.item(to) for to in ("ann", "ben", "cid", "eve"))
    with caplog.at_level(logging.INFO, "redrive"):
        Worker(app).run(until_idle=True)
    stopped = told(caplog, "worker_stopped")
    assert (stopped["completed"], stopped["not_completed"]) == (2, 2)


def test_next_try_is_told_as_the_log_tells_time(broker: Broker, app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.queue("emails").task
    def send() -> None:
        raise TimeoutError("no answer")

    send.put()
    Worker(app).run(until_idle=True)
    retry_at = told(caplog, "item_failed")["retry_at"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", retry_at)
    assert "retry_at=2" in caplog.text


def test_failure_that_is_not_counted_is_no_failed_item(
    broker: Broker, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    class TooManyRequests(Exception):
        retry_after = 3600

    @app.queue("calls", retry={"attempts": 3}, retry_after="gate").task
    def send() -> None:
        raise TooManyRequests

    send.put()
    Worker(app).run(until_idle=True)
    returned = told(caplog, "item_returned")
    assert returned["attempts"] == 0
    assert "retry_at" not in returned, "it waits for the gate of its queue"
    assert "item_failed" not in caplog.text


def test_worker_of_an_app_without_tasks_does_not_begin(broker: Broker, app: App) -> None:
    receipt = broker.put("emails", {"to": "ann"}, headers={"task": "send"})
    with pytest.raises(InvalidInput, match="the app has no task"):
        Worker(app).run(until_idle=True)
    assert broker.get(receipt.id).status == "pending"


def test_worker_on_a_queue_that_is_not_there_does_not_begin(broker: Broker, app: App) -> None:
    app.queue("emails").task(name="send")(lambda: None)
    with pytest.raises(InvalidInput, match=r"no queue 'email' \(did you mean emails\?\); the app declares emails"):
        Worker(app, queues=["email"]).run(until_idle=True)


def test_worker_may_work_on_a_queue_that_others_made(broker: Broker, app: App) -> None:
    app.queue("emails").task(name="send")(lambda: None)
    broker.create_queue("elsewhere")
    receipt = broker.put("elsewhere", {}, headers={"task": "send"})
    Worker(app, queues=["elsewhere"]).run(until_idle=True)
    assert receipt.id not in {item.id for item in broker.find(queue="elsewhere").items}


def test_result_that_cannot_be_kept_is_told_as_such(broker: Broker, app: App) -> None:
    @app.queue("emails").task(keep_result="1m")
    def send() -> object:
        return object()

    handle = send.put()
    Worker(app).run(until_idle=True)
    failure = broker.get(handle.id).last_failure
    assert failure is not None
    assert failure.text.startswith("what it returned cannot be kept as its result: ")
