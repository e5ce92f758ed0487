"""Ends of deliveries over HTTP: the queue that a call names is the one that its items were leased from."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.servers.asgi import Client

from redrive.contract import Query
from redrive.contract.queries import GetLease, GetLeases
from redrive.model.duration import parse_duration
from redrive.server.application import application
from redrive.stores.memory.store import MemoryStore

ENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "complete": ("queue.complete", {}),
    "complete with a result": ("queue.complete", {"result": 1, "puts": [{"queue": "jobs", "payload": 2}]}),
    "fail": ("queue.retry", {"error": "busy"}),
    "fail for good": ("queue.retry", {"error": {"text": "broken"}, "final": True}),
    "bury": ("queue.retry", {"dead": True}),
    "release": ("queue.retry", {"delay": "5s"}),
    "release uncounted": ("queue.retry", {"counted": False}),
    "extend": ("queue.extend", {}),
}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    app = application("memory://", maintenance=False)
    client = Client(app)
    for name in ("jobs", "mails"):
        await client.ok("queues.create", name=name)
    yield client
    await app.close()


async def leased(client: Client, queue: str, **options: Any) -> dict[str, Any]:
    await client.ok("queue.produce", queue=queue, items=[{"payload": 1, **options}])
    (item,) = (await client.ok("queue.lease", queue=queue))["items"]
    return item  # type: ignore[no-any-return]


@pytest.mark.parametrize(("call", "fields"), ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("named", ["mails", "nowhere"])
async def test_queue_must_be_that_of_the_item(client: Client, call: str, fields: dict[str, Any], named: str) -> None:
    item = await leased(client, "jobs")
    before = await client.ok("items.get", id=item["id"])
    answer = await client.call(call, queue=named, items=[{"token": item["token"], **fields}])
    if named == "nowhere" and "error" in fields:
        assert (answer.status, answer.json["code"]) == (404, "queue_not_found")
    else:
        assert (answer.status, answer.json["code"]) == (409, "wrong_queue")
        assert answer.json["details"] == {"id": item["id"], "queue": "jobs", "named": named}
    assert await client.ok("items.get", id=item["id"]) == before
    await client.ok(call, queue="jobs", items=[{"token": item["token"], **fields}])


@pytest.mark.parametrize(("call", "fields"), ENDS.values(), ids=ENDS.keys())
async def test_each_item_stands_for_itself(client: Client, call: str, fields: dict[str, Any]) -> None:
    ours, theirs = await leased(client, "jobs"), await leased(client, "mails")
    items = [{"token": item["token"], **fields} for item in (theirs, ours)]
    answer = await client.call(call, queue="jobs", items=items)
    refused, taken = answer.json["results"]
    assert (answer.status, refused["error"]["code"], "error" in taken) == (409, "wrong_queue", False)


@pytest.mark.parametrize("wait", ["soon", "-1s", -1, "", "200000000m"])
@pytest.mark.parametrize("there", [True, False])
async def test_wait_is_checked_whether_something_is_there_or_not(client: Client, wait: object, there: bool) -> None:
    if there:
        await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}])
    answer = await client.call("queue.lease", queue="jobs", wait=wait)
    assert answer.status == 400
    assert (await client.ok("queue.stats", queue="jobs"))["active"] == 0


async def test_failed_item_is_judged_by_the_policy_that_it_was_produced_with(client: Client) -> None:
    await client.ok("queues.update", name="mails", settings={"retry": {"attempts": 9}})
    statuses = []
    for queue, retry in (("jobs", {"attempts": 3, "cooldown": "1h"}), ("mails", {"attempts": 9, "delay": "never"})):
        item = await leased(client, queue, retry=retry)
        await client.ok("queue.retry", queue=queue, items=[{"token": item["token"], "error": "busy"}])
        statuses.append((await client.ok("items.get", id=item["id"]))["status"])
    assert statuses == ["failed", "dead"]


@pytest.mark.parametrize(
    "rules",
    [{"delays": [1] * 1001}, {"by_type": {f"app.E{n}": "1s" for n in range(5_000)}}, {"by_class": {"odd": "1s"}}],
    ids=["list", "size", "class"],
)
async def test_policy_that_an_item_cannot_have_is_refused(client: Client, rules: dict[str, Any]) -> None:
    items = [{"payload": 1}, {"payload": 1, "retry": {"attempts": 3, **rules}}]
    refused = await client.refused("queue.produce", 400, "invalid_setting", queue="jobs", items=items)
    assert refused["details"]["item"] == 1
    assert (await client.ok("queue.stats", queue="jobs"))["pending"] == 0


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (120, "2m"), ("120", "2m"), (1.5, "1.5s"), ("2m", "2m"), ("Fri, 31 Dec 9999 23:59:59 GMT", "1h"),
        (1e300, "1h"), ("365d", "1h"), ("Tue, 14 Nov 2000 22:15:20 GMT", "0s"), (-5, "0s"), ("soon", None),
        ("", None), (None, None),
    ],
)  # fmt: skip
async def test_report_may_say_how_long_to_wait(client: Client, given: object, kept: str | None) -> None:
    settings = {"retry": {"attempts": 3, "cooldown": "1ms"}, "retry_after": "delay"}
    await client.ok("queues.update", name="jobs", settings=settings)
    item = await leased(client, "jobs")
    error = {"text": "429", "status_code": 429, "retry_after": given}
    await client.ok("queue.retry", queue="jobs", items=[{"token": item["token"], "error": error}])
    found = await client.ok("items.get", id=item["id"])
    (entry,) = found["history"]
    assert entry["failure"].get("retry_after") == kept
    waits = datetime.fromisoformat(found["ready_at"]) - datetime.fromisoformat(entry["at"])
    assert waits == timedelta(microseconds=max(parse_duration(kept or 0), 1000))


async def test_report_whose_wait_is_no_text_and_no_number_is_refused(client: Client) -> None:
    item = await leased(client, "jobs")
    error = {"text": "429", "retry_after": ["120"]}
    items = [{"token": item["token"], "error": error}]
    assert (await client.call("queue.retry", queue="jobs", items=items)).status == 400
    assert (await client.ok("items.get", id=item["id"]))["status"] == "active"


async def test_leases_of_a_call_are_read_together(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [(await leased(client, "jobs"))["token"] for _ in range(5)]
    asked: list[type[Any]] = []

    def count(store: MemoryStore, query: Query) -> Any:
        asked.append(type(query))
        return read(store, query)

    read = MemoryStore.read
    monkeypatch.setattr(MemoryStore, "read", count)
    ends: list[dict[str, Any]] = [{"error": "busy"}, {"dead": True}, {"delay": "5s"}, {"counted": False}, {}]
    items = [{"token": token, **fields} for token, fields in zip(tokens, ends, strict=True)]
    await client.ok("queue.retry", queue="jobs", items=items)
    assert Counter(asked)[GetLeases] == 1
    assert GetLease not in asked
