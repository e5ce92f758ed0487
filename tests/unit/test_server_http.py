"""The server as HTTP sees it: paths, methods, bodies that are wrong, limits, sites, errors in one shape."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.servers.asgi import Client, Exchange

from redrive import errors
from redrive.errors import Closed, ItemMoving, Overloaded, RedriveError, StoreUnavailable
from redrive.server.application import application
from redrive.server.asgi import Server
from redrive.server.request_limits import Limits

LIMITS = Limits(
    max_body_bytes=1000,
    batch=3,
    page=100,
    body_seconds=0.05,
    max_long_polls=2,
    wait_seconds=0.05,
    max_response_bytes=100,
)
PUT = "/v1/queue.produce"
SHAPE = {"code", "message", "details"}


@pytest.fixture
async def app() -> AsyncIterator[Server]:
    app = application("memory://", limits=LIMITS, maintenance=False, max_dead=1)
    yield app
    await app.close()


@pytest.fixture
async def client(app: Server) -> Client:
    client = Client(app)
    await client.ok("queues.create", name="jobs", settings={"max_size": 5})
    return client


def body_of(size: int) -> bytes:
    """A request that puts an item and has exactly so many bytes."""
    empty = json.dumps({"queue": "jobs", "items": [{"payload": ""}]})
    return json.dumps({"queue": "jobs", "items": [{"payload": "x" * (size - len(empty))}]}).encode()


@pytest.mark.parametrize("path", ["/v1/queue", "/v1/", "/v1", "/v2/queue.produce", "/v1/queue.produce/", "/x", "//"])
async def test_path_that_does_not_exist_is_not_found(client: Client, path: str) -> None:
    answer = await client.send("POST", path, b"{}")
    assert (answer.status, answer.json["code"]) == (404, "route_not_found")


ODD_PATHS = [
    "/v1%2fqueues.list",
    "%2fv1/queues.list",
    "/v1/queues%2elist",
    "/v1/%71ueues.list",
    "/%76%31/queues.list",
    "/v1/%2e%2e/v1/queues.list",
    "/v1/../v1/queues.list",
    "/x/../v1/queues.list",
    "/./v1/queues.list",
    "//v1/queues.list",
    "/v1//queues.list",
    "/v1/queues.list/",
    "/v1/queues.list;x=1",
    "/v1;x/queues.list",
    "/v1/queues.list%00",
    "/v1/queues.list%20",
    "/v1/queues.list%3fx",
    "/v1\\queues.list",
    "/v1%5cqueues.list",
    "/V1/queues.list",
    "/v1/Queues.List",
    "/v1/queues.list%",
    "/v1/queues.list%zz",
]


@pytest.mark.parametrize("root", ["", "/queues", "/my queues"])
@pytest.mark.parametrize("path", ODD_PATHS)
async def test_path_is_taken_as_it_came(client: Client, path: str, root: str) -> None:
    answer = await client.send("POST", path, b"{}", root=root)
    assert (answer.status, answer.json["code"]) == (404, "route_not_found")


@pytest.mark.parametrize("path", ["/%68ealth", "/health%2flive", "/metrics%2f", "/%6detrics", "%2f"])
async def test_path_of_a_page_is_taken_as_it_came(client: Client, path: str) -> None:
    assert (await client.send("GET", path)).status == 404


async def test_slash_behind_the_mount_is_not_encoded(client: Client) -> None:
    scope = {"path": "/queues/v1/queues.list", "raw_path": b"/queues%2fv1/queues.list", "root_path": "/queues"}
    assert (await client.send("POST", "", b"{}", scope=scope)).status == 404


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_call_is_made_with_post(client: Client, method: str) -> None:
    answer = await client.send(method, PUT, b"{}")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert bool(answer.body) == (method != "HEAD")


@pytest.mark.parametrize("path", ["/", "/health", "/health/live", "/health/ready", "/metrics", "/openapi.json"])
async def test_page_is_read_with_get(client: Client, path: str) -> None:
    answer = await client.send("GET", path)
    head = await client.send("HEAD", path)
    assert (answer.status, head.status, head.body) == (200, 200, b"")
    assert answer.headers["content-length"] == str(len(answer.body))
    posted = await client.send("POST", path)
    assert (posted.status, posted.headers["allow"]) == (405, "GET, HEAD")


async def test_answers_are_neither_sniffed_nor_kept(client: Client) -> None:
    for answer in (await client.call("queues.list"), await client.call("x"), await client.send("GET", "/health")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"queue": "jobs", "items": [{"payload": NaN}]}',
        b'{"queue": "jobs", "items": [{"payload": Infinity}]}',
        b'{"queue": "jobs", "items": [{"payload": 1e999}]}',
        b'{"queue": "jobs", "items": [{"payload": "\xff"}]}',
        b'{"queue": "\xff", "items": [{"payload": 1}]}',
        b'{"queue": "jobs", "items": [{"payload": "\\ud800"}]}',
        b'{"queue": "jobs", "items": [{"payload": ' + b"[" * 200 + b"]" * 200 + b"}]}",
        b"[" * 900,
        b'{"queue": "jobs", "items": [{"payload": ' + b"[" * 800,
        b'{"queue": "jobs", "items": [{"payload": 1}]} x',
        b'\xef\xbb\xbf{"queue": "jobs", "items": [{"payload": 1}]}',
        b'{"queue": "jobs", "items": []}',
        b'{"queue": "jobs"}',
        b'{"queue": "a b", "items": [{"payload": 1}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "priority": 10}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "delay": "soon"}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "delay": -1}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "enqueue_at": "0001-01-01T00:00:00+23:59"}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "enqueue_at": "2026-01-01T00:00:00"}]}',
        b'{"queue": "jobs", "items": [{"payload": "!", "encoding": "base64"}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "encoding": "utf8"}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "headers": {"a": "\\u0000"}}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "kind": "a", "headers": {"kind": "b"}}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "content_type": "text/plain"}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "retry": 3}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "retry": {"cooldown": "1s"}}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "retry": {"attempts": 3, "delay": "sometimes"}}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "retry": {"attempts": 3}, "max_attempts": 2}]}',
        b'{"queue": "jobs", "items": [{"payload": 1, "retry_attempts": 3}]}',
    ],
)
async def test_body_that_is_wrong_is_refused_and_says_why(client: Client, body: bytes) -> None:
    answer = await client.send("POST", PUT, body, content_type="application/json")
    assert answer.status == 400, answer
    assert set(answer.json) == SHAPE
    assert (await client.ok("queue.stats", queue="jobs"))["pending"] == 0


async def test_error_says_which_item_it_is_about(client: Client) -> None:
    items = [{"payload": 1}, {"payload": 2, "delay": "soon"}]
    assert (await client.call("queue.produce", queue="jobs", items=items)).json["details"]["item"] == 1


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("", 200),
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/msgpack", 415),
    ],
)
async def test_body_is_json(client: Client, content_type: str, status: int) -> None:
    assert (await client.send("POST", PUT, body_of(200), content_type=content_type)).status == status


async def test_body_that_is_exactly_as_large_as_allowed_is_taken(client: Client) -> None:
    assert (await client.send("POST", PUT, body_of(1000), content_length="1000")).status == 200


@pytest.mark.parametrize(
    "declared", [{"content_length": "1001"}, {}, {"content_length": "9" * 400}, {"content_length": "x"}]
)
async def test_body_that_is_one_byte_too_large_is_refused(client: Client, declared: dict[str, str]) -> None:
    body = body_of(1001)
    answer = await client.send("POST", PUT, body, **declared)
    assert (answer.status, answer.json["code"], answer.json["details"]["limit"]) == (413, "request_too_large", 1000)
    in_parts = await client.send("POST", PUT, *(body[n : n + 100] for n in range(0, 1001, 100)), **declared)
    assert in_parts.status == 413


async def test_body_that_comes_in_parts_is_one_body(client: Client) -> None:
    body = body_of(999)
    assert (await client.send("POST", PUT, body[:1], body[1:500], body[500:])).status == 200


async def test_client_that_sends_too_slowly_is_not_waited_for(app: Server, client: Client) -> None:
    exchange = Exchange(app, "POST", PUT, [], client.headers)
    answer = await exchange.answer()
    assert (answer.status, answer.json["code"]) == (408, "request_timeout")


async def test_too_many_bytes_that_are_being_read_are_refused() -> None:
    app = application("memory://", limits=Limits(max_total_body_bytes=1000), maintenance=False)
    client = Client(app)
    reading = Exchange(app, "POST", PUT, [b"x" * 600, b"x" * 600, b""], client.headers)
    answer = await reading.answer()
    assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (429, "overloaded", "1")
    await app.close()


async def test_batch_that_is_one_item_too_large_is_refused(client: Client) -> None:
    await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}] * 3)
    await client.refused("queue.produce", 413, "request_too_large", queue="jobs", items=[{"payload": 1}] * 4)
    await client.refused("queue.lease", 413, "request_too_large", queue="jobs", limit=4)
    await client.refused("items.delete", 413, "request_too_large", ids=["0" * 32] * 4)
    leased = (await client.ok("queue.lease", queue="jobs", limit=3))["items"]
    tokens = [{"token": item["token"]} for item in leased]
    for route in ("queue.complete", "queue.retry", "queue.extend"):
        await client.refused(route, 413, "request_too_large", queue="jobs", items=[*tokens, tokens[0]])
    await client.ok("queue.complete", queue="jobs", items=tokens)


@pytest.mark.parametrize(
    "route", ["items.list", "dead.find", "dead.groups", "operations.list", "feed.read", "audit.list"]
)
async def test_page_that_is_one_too_large_is_refused(client: Client, route: str) -> None:
    named = {"queue": "jobs"} if route == "items.list" else {}
    await client.ok(route, limit=100, **named)
    await client.refused(route, 413, "request_too_large", limit=101, **named)


async def test_answer_has_no_more_payload_than_allowed(client: Client) -> None:
    await client.ok("queue.produce", queue="jobs", items=[{"payload": "x" * 60}] * 3)
    listed = (await client.ok("items.list", queue="jobs"))["items"]
    assert ["payload" in item for item in listed] == [True, False, False]
    assert [item.get("too_large", False) for item in listed] == [False, True, True]
    first = (await client.ok("queue.lease", queue="jobs", limit=3))["items"]
    second = (await client.ok("queue.lease", queue="jobs", limit=3))["items"]
    assert [(len(each), each[0]["attempts"]) for each in (first, second)] == [(1, 1), (1, 1)]


async def test_queue_that_is_full_says_when_to_come_again(client: Client) -> None:
    await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}] * 3)
    answer = await client.call("queue.produce", queue="jobs", items=[{"payload": 1}] * 3)
    assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (429, "queue_full", "5")
    assert (await client.ok("queue.stats", queue="jobs"))["pending"] == 3


async def test_overload_is_told_to_the_client_and_once_to_the_log(
    app: Server, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def overloaded(*_: Any) -> Any:
        raise Overloaded(100_000)

    monkeypatch.setattr(app.brokers.open["default"].core.committer, "submit", overloaded)
    with caplog.at_level(logging.WARNING, "redrive.server"):
        for _ in range(3):
            answer = await client.call("queue.produce", queue="jobs", items=[{"payload": 1}])
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert [record.event for record in caplog.records] == ["overloaded"]  # type: ignore[attr-defined]


async def test_error_that_nobody_foresaw_says_only_its_id(
    app: Server, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("the password is hunter2hunter2, and the file is /etc/passwd")

    monkeypatch.setattr(app.brokers.open["default"].core.committer, "submit", broken)
    answer = await client.call("queue.produce", queue="jobs", items=[{"payload": {"secret": "payload"}}])
    assert (answer.status, set(answer.json["details"])) == (500, {"id"})
    assert answer.json["message"] == "internal error"
    (record,) = caplog.records
    line = record.getMessage()
    assert answer.json["details"]["id"] in line
    assert "RuntimeError" in line
    assert "test_server_http.py" in line
    assert 'payload"' not in line


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7272", "localhost:7272", "LOCALHOST", "[::1]:7272", "10.0.0.7", "a.localhost"]
)
async def test_server_without_tokens_answers_to_addresses_and_localhost(client: Client, host: str) -> None:
    assert (await client.send("POST", "/v1/queues.list", b"{}", host=host)).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7272", "127.0.0.1.evil.example", "localhost.evil.example", "[", "@"]
)
async def test_server_without_tokens_answers_to_no_other_name(client: Client, host: str) -> None:
    for method, path in (("POST", "/v1/queues.list"), ("GET", "/health"), ("GET", "/metrics")):
        answer = await client.send(method, path, b"{}" if method == "POST" else b"", host=host)
        assert (answer.status, answer.json["code"]) == (403, "host_not_allowed"), (path, answer)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1:7273", "null", "http://localhost:7272", ""]
)
async def test_server_without_tokens_answers_to_no_page_of_another_site(client: Client, origin: str) -> None:
    answer = await client.send("POST", "/v1/queues.list", b"{}", origin=origin)
    assert answer.status == (403 if origin else 200)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Same-Origin", "anything else"])
@pytest.mark.parametrize("origin", ["", "http://127.0.0.1:7272"])
async def test_browser_that_names_another_site_is_refused(client: Client, site: str, origin: str) -> None:
    body = b'{"name": "made-by-a-page"}'
    answer = await client.send("POST", "/v1/queues.create", body, sec_fetch_site=site, origin=origin)
    assert (answer.status, answer.json["code"]) == (403, "host_not_allowed")
    assert [queue["name"] for queue in (await client.ok("queues.list"))["queues"]] == ["jobs"]


@pytest.mark.parametrize("site", ["same-origin", "none"])
async def test_browser_that_names_no_other_site_may_call(client: Client, site: str) -> None:
    assert (await client.send("POST", "/v1/queues.list", b"{}", sec_fetch_site=site)).status == 200


async def test_link_on_another_site_may_lead_to_a_page(client: Client) -> None:
    for path in ("/", "/health", "/metrics", "/openapi.json"):
        assert (await client.send("GET", path, sec_fetch_site="cross-site", sec_fetch_mode="navigate")).status != 403


async def test_page_of_the_server_itself_may_call(client: Client) -> None:
    assert (await client.send("POST", "/v1/queues.list", b"{}", origin="http://127.0.0.1:7272")).status == 200


async def test_names_that_were_given_are_answered_to() -> None:
    app = application("memory://", hosts=("Queue.Example.com",), maintenance=False)
    answer = await Client(app).send("POST", "/v1/queues.list", b"{}", host="queue.example.com")
    assert answer.status == 200
    await app.close()


async def test_namespaces_do_not_see_each_other(app: Server, client: Client) -> None:
    other = Client(app, **{"redrive-namespace": "other"})
    assert (await other.ok("queues.list"))["queues"] == []
    await other.refused("queue.stats", 404, "queue_not_found", queue="jobs")
    await Client(app, **{"redrive-namespace": "no name"}).refused("queues.list", 400, "invalid_name")


async def test_mounted_below_a_path_it_answers_there(client: Client) -> None:
    assert (await client.send("POST", "/v1/queues.list", b"{}", root="/queues")).status == 200
    assert (await client.send("GET", "/health/live", root="/queues")).status == 200
    assert (await client.send("GET", "", root="/queues")).json["name"] == "redrive"


async def test_websocket_is_closed(app: Server) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "websocket"}, None, send)  # type: ignore[arg-type]
    assert sent[0]["type"] == "websocket.close"


async def test_life_of_the_application_opens_and_closes(app: Server) -> None:
    incoming: asyncio.Queue[Any] = asyncio.Queue()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    incoming.put_nowait({"type": "lifespan.startup"})
    incoming.put_nowait({"type": "lifespan.shutdown"})
    await app({"type": "lifespan"}, incoming.get, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert not app.brokers.open


async def test_health_is_degraded_by_dead_letters(client: Client) -> None:
    assert (await client.send("GET", "/health")).json["status"] == "ok"
    await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}] * 2)
    leased = (await client.ok("queue.lease", queue="jobs", limit=2))["items"]
    await client.ok("queue.retry", queue="jobs", items=[{"token": item["token"], "dead": True} for item in leased])
    health = await client.send("GET", "/health")
    (default,) = health.json["namespaces"].values()
    assert (health.status, health.json["status"], default["dead_letters"]) == (200, "degraded", 2)
    assert "2 dead letters" in default["warnings"][0]
    assert default["durability"]["level"] == "none"


async def test_health_says_when_the_store_does_not_answer(
    app: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise StoreUnavailable("memory", "it is gone")

    monkeypatch.setattr(app.brokers.open["default"].core.store, "read", broken)
    health, ready = await client.send("GET", "/health"), await client.send("GET", "/health/ready")
    assert (health.status, health.json["status"], ready.status) == (503, "failing", 503)
    assert "it is gone" in health.json["namespaces"]["default"]["problem"]
    assert (await client.send("GET", "/health/live")).status == 200


async def test_server_that_stops_is_not_ready(app: Server, client: Client) -> None:
    assert (await client.send("GET", "/health/ready")).status == 200
    app.stop()
    assert (await client.send("GET", "/health/ready")).status == 503
    assert (await client.send("GET", "/health/live")).status == 200


async def test_metrics_count_requests_by_call_and_status(client: Client) -> None:
    await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}])
    await client.call("queue.produce", queue="x", items=[{"payload": 1}])
    text = (await client.send("GET", "/metrics")).body.decode()
    assert 'redrive_http_requests_total{call="queue.produce",namespace="",status="200",store=""} 1.0' in text
    assert 'redrive_http_requests_total{call="queue.produce",namespace="",status="404",store=""} 1.0' in text
    assert 'redrive_http_request_duration_seconds_count{call="queue.produce",namespace="",store=""} 2.0' in text
    assert 'redrive_items_put_total{namespace="default",queue="jobs",store="memory"} 1.0' in text


def test_every_error_has_a_status() -> None:
    from redrive.wire.error_codec import STATUS_BY_CODE

    def tree(error: type[RedriveError]) -> set[str]:
        return {error.code}.union(
            *(tree(child) for child in error.__subclasses__() if child.__module__ == errors.__name__)
        )

    assert tree(RedriveError) <= STATUS_BY_CODE.keys()


@pytest.mark.parametrize(
    ("route", "body", "text"),
    [
        (
            "queue.lease",
            b'{"queue":"jobs","limt":1}',
            "`limt` (did you mean limit?); there are lease_timeout, limit, queue",
        ),
        (
            "queue.lease",
            b'{"queue":"jobs","colour":1}',
            "`colour`; there are lease_timeout, limit, queue, wait, worker",
        ),
        (
            *("queue.produce", b'{"queue":"jobs","items":[{"payload":1,"prioritty":1}]}'),
            "`prioritty` - at `$.items[0]` (did you mean priority?); there are content_type, ",
        ),
        (
            "queue.retry",
            b'{"queue":"jobs","items":[{"token":"x","delya":1}]}',
            "(did you mean delay?); there are counted, ",
        ),
        ("queue.lease", b'{"queue":"\\ud800"}', r"it has the lone surrogate \ud800, which UTF-8 cannot hold"),
        ("queue.lease", b'{"queue":"\\uD800x"}', r"it has the lone surrogate \uD800, which UTF-8 cannot hold"),
        ("queue.lease", b'{"queue":"\\\\\\udc00"}', r"it has the lone surrogate \udc00, which UTF-8 cannot hold"),
        (
            "queue.produce",
            b'{"queue":"jobs","items":[{"payload":"\\ud83d\\ude00 \\ud83d"}]}',
            r"surrogate \ud83d, which",
        ),
        ("queue.lease", b'{"queue":"\\\\ud800', "queue.lease takes: Input data was truncated"),
        ("queue.lease", b'{"queue":"\xed\xa0\x80"}', "it has a text that is not UTF-8"),
        ("queues.update", b'{"name":"jobs","settings":{"feed":{}}}', "feed must be 'all', 'none', or a list of put, "),
    ],
)
async def test_refusal_says_what_is_wrong_in_the_request(client: Client, route: str, body: bytes, text: str) -> None:
    answer = await client.send("POST", f"/v1/{route}", body)
    assert answer.status == 400
    assert text in answer.json["message"]


async def test_errors_are_in_words_of_http(client: Client) -> None:
    (item,) = (await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}]))["items"]
    await client.ok("items.hold", ids=[item["id"]], held_by="ann")
    texts = [
        (await client.send("POST", "/v1/queues.list", b"{}", sec_fetch_site="cross-site")).json["message"],
        (await client.send("POST", "/v1/queues.list", b"{}", origin="http://evil.example")).json["message"],
    ]
    for route, call in (
        ("queue.lease", {"queue": "nowhere"}),
        ("operations.info", {"id": "0" * 32}),
        ("breakers.close", {"queue": "jobs", "kind": "network"}),
        ("items.lease", {"ids": [item["id"]]}),
        ("items.get", {"id": item["id"][:8]}),
    ):
        answer = await client.call(route, **call)
        assert answer.status >= 400
        texts.append(answer.json["message"])
    texts += [str(Closed()), str(ItemMoving("0" * 32, "there"))]
    assert not [text for text in texts if re.search(r"\w\(|\bb'", text)]
    assert "'cross-site'" in texts[0]
