"""`items.lease`: exactly these items, with a result for each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.servers.asgi import Client

from redrive.server.application import application
from redrive.server.request_limits import DEFAULT_LIMITS

UNKNOWN = "0" * 31 + "1"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, max_response_bytes=1000)
    app = application("memory://", maintenance=False, limits=limits)
    client = Client(app)
    await client.ok("queues.create", name="jobs")
    yield client
    await app.close()


async def put(client: Client, *payloads: Any, **options: Any) -> list[str]:
    items = [{"payload": payload, **options} for payload in payloads]
    return [each["id"] for each in (await client.ok("queue.produce", queue="jobs", items=items))["items"]]


async def test_items_are_leased_in_the_order_of_their_ids(client: Client) -> None:
    first, second = await put(client, "a", "b", delay="1h")
    answer = await client.ok("items.lease", ids=[second, first], worker="w1", lease_timeout="5m")
    assert [(item["id"], item["payload"]) for item in answer["items"]] == [(second, "b"), (first, "a")]
    assert all("dead_reason" not in item for item in answer["items"])
    tokens = [{"token": item["token"]} for item in answer["items"]]
    await client.ok("queue.complete", queue="jobs", items=tokens)
    assert (await client.ok("queue.stats", queue="jobs"))["completed_total"] == 2


async def test_each_id_stands_for_itself(client: Client) -> None:
    (id,) = await put(client, "a")
    answer = await client.call("items.lease", ids=[UNKNOWN, id, id])
    missing, leased, active = answer.json["results"]
    assert (answer.status, answer.json["code"]) == (404, "item_not_found")
    assert (missing["error"]["code"], active["error"]["code"]) == ("item_not_found", "item_active")
    assert leased["payload"] == "a"


async def test_dead_items_are_leased_if_they_are_asked_for(client: Client) -> None:
    (id,) = await put(client, "a")
    await client.ok("items.bury", ids=[id])
    assert (await client.call("items.lease", ids=[id])).json["code"] == "wrong_status"
    (item,) = (await client.ok("items.lease", ids=[id], include_dead=True))["items"]
    assert item["dead_reason"] == "buried"
    (settled,) = (await client.ok("queue.retry", queue="jobs", items=[{"token": item["token"], "error": "no"}]))[
        "items"
    ]
    assert (settled["status"], settled["dead_reason"]) == ("dead", "buried")


async def test_what_has_no_room_in_the_answer_is_given_back(client: Client) -> None:
    ids = await put(client, "a" * 600, "b" * 600, "c" * 300)
    answer = await client.call("items.lease", ids=ids)
    first, second, third = answer.json["results"]
    assert (answer.status, second["error"]["code"]) == (413, "request_too_large")
    assert (first["payload"], third["payload"]) == ("a" * 600, "c" * 300)
    stats = await client.ok("queue.stats", queue="jobs")
    assert (stats["active"], stats["pending"]) == (2, 1)
    assert (await client.ok("items.get", id=ids[1]))["counters"]["attempts"] == 0


@pytest.mark.parametrize("call", [{"ids": []}, {"ids": ["what"]}, {}, {"ids": [UNKNOWN], "queue": "jobs"}], ids=repr)
async def test_call_that_names_no_items_is_refused(client: Client, call: dict[str, Any]) -> None:
    assert (await client.call("items.lease", **call)).status == 400
