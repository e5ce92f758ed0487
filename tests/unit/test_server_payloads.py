"""Payloads over HTTP: what goes in comes back, in a form that says what it is; and only to whoever may see it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.asgi import Client

from redrive.auth.principal import Principal, Role
from redrive.errors import Unauthorized
from redrive.model.payload import JSON
from redrive.server.application import application
from redrive.server.authentication import NoAuthentication
from redrive.wire.json_views import encode_payload

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


class As(NoAuthentication):
    """Lets everybody in as the one whom a header names."""

    PRINCIPALS: ClassVar[dict[str, Principal]] = {
        "anyone": Principal(None, frozenset({Role.ADMIN})),
        "viewer": Principal("vera", frozenset({Role.VIEWER})),
        "operator": Principal("otto", frozenset({Role.OPERATOR})),
        "consumer": Principal("carl", frozenset({Role.CONSUMER})),
        "jobs-operator": Principal("jo", frozenset({Role.OPERATOR}), queues=("jobs",)),
        "jobs-viewer": Principal("jv", frozenset({Role.VIEWER}), queues=("jobs",)),
    }

    async def identify(self, headers: Any) -> Principal:
        return self.PRINCIPALS[headers.get(b"who", b"anyone").decode()]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    app = application("memory://", access=As(), maintenance=False)
    client = Client(app)
    await client.ok("queues.create", name="jobs")
    await client.ok("queues.create", name="other")
    yield client
    await app.close()


def acting(client: Client, who: str) -> Client:
    return Client(client.app, who=who)


async def round_trip(client: Client, item: dict[str, Any]) -> Any:
    await client.ok("queue.produce", queue="jobs", items=[item])
    leased = (await client.ok("queue.lease", queue="jobs"))["items"][0]
    await client.ok("queue.complete", queue="jobs", items=[{"token": leased["token"]}])
    return leased


@pytest.mark.parametrize(
    ("item", "content_type"),
    [
        ({"payload": {"a": [1, 2.5, None, "é", True]}}, "application/json"),
        ({"payload": 12345678901234567890123}, "application/json"),
        ({"payload": "hé\u0000", "encoding": "utf8"}, "text/plain; charset=utf-8"),
        ({"payload": "", "encoding": "utf8", "content_type": "text/csv"}, "text/csv"),
        ({"payload": "AAH/", "encoding": "base64"}, "application/octet-stream"),
        ({"payload": {"a": 1}, "content_type": "application/problem+json"}, "application/problem+json"),
    ],
)
async def test_payload_comes_back_in_the_form_it_came(client: Client, item: dict[str, Any], content_type: str) -> None:
    leased = await round_trip(client, item)
    assert leased["payload"] == item["payload"]
    assert leased["encoding"] == item.get("encoding", "json")
    assert leased["content_type"] == content_type


async def test_number_keeps_every_digit_that_was_written(client: Client) -> None:
    body = b'{"queue": "jobs", "items": [{"payload": {"price": 0.10000000000000000555, "big": 1e2}}]}'
    assert (await client.send("POST", "/v1/queue.produce", body)).status == 200
    answer = await client.send("POST", "/v1/queue.lease", b'{"queue": "jobs"}')
    assert b'{"price": 0.10000000000000000555, "big": 1e2}' in answer.body


@given(VALUES)
def test_json_value_is_shown_as_it_is(value: Any) -> None:
    text = json.dumps(value).encode()
    encoding, form = encode_payload(text, JSON)
    assert (encoding, bytes(form)) == ("json", text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("payload", "content_type", "encoding"),
    [
        (b"{broken", "application/json", "utf8"),
        (b"\xff", "application/json", "base64"),
        (b"\xff", "text/plain", "base64"),
        (b"text", "application/octet-stream", "base64"),
        (b"", "application/json", "utf8"),
        (b"[" * 100_000, "application/json", "utf8"),
    ],
)
def test_bytes_that_are_not_what_they_are_called_do_not_break_the_answer(
    payload: bytes, content_type: str, encoding: str
) -> None:
    assert encode_payload(payload, content_type)[0] == encoding


@pytest.fixture
async def dead(client: Client) -> str:
    item = {"payload": {"name": "sesame"}, "headers": {"tenant": "ali"}, "kind": "door"}
    await client.ok("queue.produce", queue="jobs", items=[item])
    token = (await client.ok("queue.lease", queue="jobs"))["items"][0]["token"]
    error = {"type": "TimeoutError", "text": "no answer"}
    ended = await client.ok("queue.retry", queue="jobs", items=[{"token": token, "error": error}])
    id: str = ended["items"][0]["id"]
    return id


async def test_viewer_sees_why_it_died_and_not_what_is_in_it(client: Client, dead: str) -> None:
    viewer = acting(client, "viewer")
    pages = [
        await viewer.ok("items.get", id=dead),
        *(await viewer.ok("items.list", queue="jobs"))["items"],
        *(await viewer.ok("dead.find"))["items"],
    ]
    for item in pages:
        assert item["hidden"] is True
        assert "no answer" in json.dumps(item)
        assert not {"sesame", "ali", "door"} & set(json.dumps(item).replace('"', " ").split())


async def test_viewer_cannot_find_out_what_is_in_it_by_asking(client: Client, dead: str) -> None:
    viewer = acting(client, "viewer")
    for conditions in ({"words": "sesame"}, {"headers": {"tenant": "ali"}}):
        await viewer.refused("dead.find", 403, "forbidden", **conditions)
    await viewer.refused("dead.search", 403, "forbidden", words="sesame")
    await viewer.refused("items.result", 403, "forbidden", id=dead)
    await viewer.refused("items.get", 403, "forbidden", id=dead, redacted=False)


async def test_operator_sees_what_is_in_it(client: Client, dead: str) -> None:
    item = await acting(client, "operator").ok("items.get", id=dead)
    assert (item["payload"], item["headers"]["tenant"], item["kind"]) == ({"name": "sesame"}, "ali", "door")
    assert "hidden" not in item


async def test_token_of_some_queues_changes_nothing_elsewhere(client: Client, dead: str) -> None:
    put = await client.ok("queue.produce", queue="other", items=[{"payload": 1}])
    elsewhere = put["items"][0]["id"]
    limited = acting(client, "jobs-operator")
    for route, options in (
        ("items.get", {"id": elsewhere}),
        ("items.bury", {"ids": [elsewhere]}),
        ("items.get", {"id": "0" * 32}),
        ("items.move", {"ids": [dead], "to": "other"}),
        ("dead.redrive", {"ids": [dead], "to": "other"}),
        ("dead.redrive", {"queue": "other"}),
        ("dead.redrive", {"all": True}),
        ("dead.find", {}),
        ("audit.list", {}),
        ("queues.info", {"name": "other"}),
    ):
        answer = await limited.call(route, **options)
        assert answer.json["code"] in ("forbidden", "item_not_found"), (route, answer)
    results = (await limited.call("items.bury", ids=[dead, elsewhere])).json["results"]
    assert [each["error"]["code"] for each in results] == ["wrong_status", "item_not_found"]
    assert (await limited.ok("items.get", id=dead))["status"] == "dead"
    assert {entry["queue"] for entry in (await limited.ok("feed.read"))["entries"]} == {"jobs"}
    assert [queue["name"] for queue in (await limited.ok("queues.list"))["queues"]] == ["jobs"]
    assert (await limited.ok("dead.redrive", ids=[dead]))["items"][0]["status"] == "pending"


async def test_letters_of_a_shared_dead_queue_do_not_go_where_the_token_may_not(client: Client) -> None:
    await client.ok("queues.create", name="source", settings={"dead_queue": "jobs"})
    await client.ok("queue.produce", queue="source", items=[{"payload": 1}])
    token = (await client.ok("queue.lease", queue="source"))["items"][0]["token"]
    died = await client.ok("queue.retry", queue="source", items=[{"token": token, "dead": True}])
    limited = acting(client, "jobs-operator")
    assert (await limited.call("dead.redrive", ids=[died["items"][0]["id"]])).status in (403, 404)
    await limited.refused("dead.redrive", 403, "forbidden", queue="jobs")


async def test_token_stands_in_the_audit_and_not_who_the_call_names(client: Client, dead: str) -> None:
    await acting(client, "operator").ok("items.retry", ids=[dead], actor="somebody else")
    assert (await client.ok("audit.list"))["entries"][0]["actor"] == "otto"


async def test_consumer_puts_follow_up_work_only_where_it_may(client: Client) -> None:
    consumer = acting(client, "consumer")
    await consumer.ok("queue.produce", queue="jobs", items=[{"payload": 1}])
    leased = (await consumer.ok("queue.lease", queue="jobs", worker="w1"))["items"][0]
    assert (await client.ok("items.get", id=leased["id"]))["worker"] == "carl/w1"
    await consumer.refused("queue.stats", 403, "forbidden", queue="jobs")


class Asks(As):
    """Lets nobody in who does not say who they are."""

    async def identify(self, headers: Any) -> Principal:
        if b"who" not in headers:
            raise Unauthorized("who are you")
        return await super().identify(headers)


async def test_without_a_token_health_is_one_word() -> None:
    app = application("memory://", access=Asks(), maintenance=False)
    await app.brokers.at("default")
    client = Client(app)
    assert (await client.send("GET", "/health")).json == {"status": "ok"}
    assert (await client.send("GET", "/health/ready")).json == {"status": "ok"}
    assert (await client.send("GET", "/metrics")).status == 401
    seen = await client.send("GET", "/health", authorization="Bearer x", who="viewer")
    assert seen.json["namespaces"]["default"]["dead_letters"] == 0
    assert (await client.send("GET", "/health", authorization="Bearer x", who="consumer")).json == {"status": "ok"}
    await app.close()
