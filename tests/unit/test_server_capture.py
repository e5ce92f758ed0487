"""Capture over HTTP: what is wrong is refused with a code and a text, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.asgi import Client

from redrive.config.apply import apply
from redrive.config.loader import parse
from redrive.connect import connect
from redrive.model.payload import MAX_DEPTH
from redrive.server.application import application

TASK = {"task_id": "wf_1", "task": {"type": "sweep"}, "error": "Connection timeout"}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


FILE = Path("/srv/shop/redrive.toml")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with connect(url) as broker:
        apply(
            broker, parse("[capture]\nmax_size = 100\ndefault_max_retries = 7\n[capture.off]\nenabled = false\n", FILE)
        )
    app = application(url, maintenance=False)
    yield Client(app)
    await app.close()


@pytest.mark.parametrize(
    ("code", "said", "wrong"),
    [
        (
            "invalid_input",
            "there is no retry policy 'sometimes'; there are never, linear",
            {"retry_policy": "sometimes"},
        ),
        ("invalid_input", "error_category must be one of transient, network", {"error_category": "odd"}),
        ("invalid_input", "max_retries must be 0 to 1,000", {"max_retries": -1}),
        ("invalid_input", "max_retries must be 0 to 1,000", {"max_retries": 1001}),
        ("invalid_input", "priority is high, medium, low", {"priority": "urgent"}),
        ("invalid_payload", "a task is captured as JSON", {"task": nested(MAX_DEPTH + 1)}),
        ("invalid_payload", "metadata", {"metadata": {"text": "x" * 100_000}}),
        ("invalid_input", "cannot have the name 'task'", {"extra": {"task": 1, "repos": []}}),
        ("invalid_input", "cannot have the name 'metadata'", {"extra": {"metadata": {}}}),
        ("invalid_name", "task_id", {"task_id": ""}),
        ("invalid_name", "queue", {"queue": "no/such"}),
        ("invalid_input", "error", {"error": 7}),
    ],
)
async def test_wrong_task_is_refused_and_nothing_is_captured(
    client: Client, code: str, said: str, wrong: dict[str, Any]
) -> None:
    answer = await client.refused("capture.enqueue", 400, code, **{**TASK, **wrong})
    assert said in answer["message"]
    assert (await client.ok("capture.list"))["tasks"] == []


async def test_known_id_with_another_task_is_refused(client: Client) -> None:
    await client.ok("capture.enqueue", **TASK)
    await client.refused("capture.enqueue", 409, "idempotency_conflict", **{**TASK, "task": "another"})


async def test_disabled_queue_refuses(client: Client) -> None:
    answer = await client.refused("capture.enqueue", 409, "refused", queue="off", **TASK)
    assert "capture queue 'off' is disabled" in answer["message"]


async def test_settings_of_the_file_hold(client: Client) -> None:
    await client.ok("capture.enqueue", **TASK)
    assert (await client.ok("capture.get", task_id="wf_1"))["max_retries"] == 7
    assert (await client.ok("capture.statistics"))["max_size"] == 100


async def test_full_queue_refuses_new_tasks_and_takes_failures_of_known_ones(client: Client) -> None:
    for number in range(100):
        await client.ok("capture.enqueue", **{**TASK, "task_id": f"wf_{number}"})
    answer = await client.refused("capture.enqueue", 429, "queue_full", **{**TASK, "task_id": "one more"})
    assert "has 100 tasks, and max_size is 100; archive exhausted" in answer["message"]
    assert (await client.ok("capture.enqueue", **TASK))["duplicate"]
    assert (await client.ok("capture.statistics"))["utilization_percent"] == 100


@pytest.mark.parametrize(
    "wrong",
    [{"status": "dead"}, {"category": "odd"}, {"limit": 0}, {"cursor": "x"}, {"since": "yesterday"}],
    ids=str,
)
async def test_wrong_condition_of_a_list_is_refused(client: Client, wrong: dict[str, Any]) -> None:
    assert (await client.call("capture.list", **wrong)).status == 400


async def test_task_in_another_status_is_refused(client: Client) -> None:
    await client.ok("capture.enqueue", **TASK)
    await client.refused("capture.restore", 409, "wrong_status", task_id="wf_1")
    await client.ok("queue.produce", queue="off", items=[{"payload": 1}])
    (item,) = (await client.ok("items.list", queue="off"))["items"]
    await client.refused("capture.retry", 404, "not_found", task_id=item["id"])


async def test_secrets_in_a_task_are_redacted(client: Client) -> None:
    secret = {"password": "hunter2hunter2"}
    await client.ok("capture.enqueue", **{**TASK, "task": secret, "metadata": secret, "extra": secret})
    shown = await client.ok("capture.get", task_id="wf_1")
    assert "hunter2" not in str(shown) + str(await client.ok("capture.list"))
    assert shown["task"] == shown["metadata"] == shown["extra"] == {"password": "[redacted]"}
