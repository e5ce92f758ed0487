"""Clients that mean no good, or have bad luck: they do not read, go away, send without end, or ask for too much."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from tests.servers.asgi import Answer, Client, Exchange

from redrive.auth import store_call_authorization
from redrive.auth.principal import UNAUTHENTICATED_ADMIN, Principal, Role
from redrive.contract.admin_calls import Register
from redrive.contract.item_calls import Leased, LeaseItems, NewItem, Put
from redrive.contract.queries import FindItems, ListRegistrations, ListWorkerLeases, Page
from redrive.errors import InvalidName, StoreUnavailable, Unauthorized
from redrive.model.filter import Filter
from redrive.model.limits import MIB
from redrive.server import broker_pool, http_protocol
from redrive.server.application import application
from redrive.server.asgi import Server
from redrive.server.authentication import NoAuthentication
from redrive.server.http_server import HttpRunner, listen
from redrive.server.request_limits import Limits
from redrive.server.routes import store_api
from redrive.wire.messages import (
    CONTENT_TYPE,
    CommitRequest,
    WatchRequest,
    decode_about,
    decode_watch_answer,
    read_commit,
)
from redrive.wire.result_codec import decode_answer, encode

PATIENCE_SECONDS = 120.0
HOST = b"host: 127.0.0.1\r\n"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


class Gateway(NoAuthentication):
    """Lets everybody in, until it does not."""

    def __init__(self) -> None:
        self.is_open = True
        self.principal = UNAUTHENTICATED_ADMIN

    async def identify(self, headers: dict[bytes, bytes]) -> Principal:
        if not self.is_open:
            raise Unauthorized("revoked")
        return self.principal


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
async def app(gateway: Gateway) -> AsyncIterator[Server]:
    limits = Limits(max_response_bytes=2 * MIB, max_total_body_bytes=MIB, answer_seconds=0.2)
    app = application("memory://", access=gateway, limits=limits, maintenance=False)
    yield app
    await app.close()


@pytest.fixture
async def client(app: Server) -> Client:
    client = Client(app)
    await client.ok("queues.create", name="jobs")
    return client


class Gate:
    """A store that takes its time: what is asked of it waits until `open`."""

    def __init__(self, app: Server, what: str, monkeypatch: pytest.MonkeyPatch, namespace: str = "default") -> None:
        broker = app.brokers.get(namespace)
        assert broker is not None
        store: Any = broker.core.store
        self.open = threading.Event()
        self.came = 0
        inner = getattr(store, what)

        def slow(*arguments: Any) -> Any:
            self.came += 1
            assert self.open.wait(PATIENCE_SECONDS)
            return inner(*arguments)

        monkeypatch.setattr(store, what, slow)


# Our own client's calls, as anybody may send them.


async def post(client: Client, route: str, message: Any) -> Answer:
    return await client.send("POST", f"/v1/{route}", encode(message), content_type=CONTENT_TYPE)


async def commit(client: Client, id: str, *calls: Any, **options: Any) -> Answer:
    boot = decode_about((await post(client, "store.about", None)).body).server_epoch
    return await post(client, "store.commit", CommitRequest(id, boot, list(calls), **options))


async def put_large(client: Client, count: int) -> None:
    for _ in range(count):
        item = NewItem(b"x" * (MIB // 2), "application/octet-stream")
        assert (await commit(client, f"put-{_}", Put("jobs", (item,)))).status == 200


async def test_page_is_cut_where_its_payloads_are_too_much_and_goes_on(client: Client) -> None:
    await put_large(client, 70)
    seen: list[str] = []
    query = FindItems(Filter(status=None, queue="jobs"), limit=1000)
    while True:
        answer = await post(client, "store.read", query)
        assert len(answer.body) < 3 * MIB
        page: Page = decode_answer(query, answer.body)
        seen += [item.id for item in page.items]
        if page.cursor is None:
            break
        query = msgspec.structs.replace(query, cursor=page.cursor)
    assert len(seen) == len(set(seen)) == 70


async def test_page_of_small_items_is_whole(client: Client) -> None:
    await client.ok("queue.produce", queue="jobs", items=[{"payload": n} for n in range(200)])
    query = FindItems(Filter(status=None, queue="jobs"), limit=150)
    page: Page = decode_answer(query, (await post(client, "store.read", query)).body)
    assert len(page.items) == 150
    assert page.cursor is not None
    rest = msgspec.structs.replace(query, cursor=page.cursor)
    page = decode_answer(rest, (await post(client, "store.read", rest)).body)
    assert (len(page.items), page.cursor) == (50, None)


async def test_leases_beyond_what_an_answer_may_have_are_given_back_uncounted(client: Client) -> None:
    await put_large(client, 10)
    calls = [LeaseItems("jobs", 6, "ann"), LeaseItems("jobs", 6, "ann")]
    answer = await commit(client, "lease", *calls)
    assert len(answer.body) < 3 * MIB
    first, second = read_commit(calls, answer.body)[1].results
    assert isinstance(first, Leased)
    assert (len(first.leases), len(second.leases)) == (4, 0)
    assert second.next_at is not None, "whoever got nothing may ask again at once"
    stats = await client.ok("queue.stats", queue="jobs")
    assert (stats["active"], stats["pending"]) == (4, 6)
    rest: list[Any] = []
    for number in range(2):
        again = await commit(client, f"lease-{number}", LeaseItems("jobs", 6, "ann"))
        rest += read_commit([calls[0]], again.body)[1].results[0].leases
    assert [lease.attempts for lease in rest] == [1] * 6
    held = await post(client, "store.read", ListWorkerLeases("ann", 1000))
    assert len(held.body) < 3 * MIB


async def test_id_of_a_request_is_short_since_it_is_remembered(client: Client) -> None:
    answer = await commit(client, "x" * 1000, LeaseItems("jobs", 1))
    assert (answer.status, answer.json["code"]) == (400, "invalid_input")


async def test_commit_whose_answer_broke_is_not_done_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> bytes:
        raise LookupError

    put = Put("jobs", (NewItem(b"1", "application/json"),))
    with monkeypatch.context() as context:
        context.setattr(store_api, "encode_commit", broken)
        first = await commit(client, "id", put)
    again = await commit(client, "id", put, is_retry=True)
    assert {first.json["code"], again.json["code"]} == {"outcome_unknown"}
    assert (await client.ok("queue.stats", queue="jobs"))["pending"] == 1


async def test_request_that_may_have_been_on_its_way_for_long_is_not_run_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first answer is forgotten, because there were too many since."""
    monkeypatch.setattr("redrive.server.replay_cache.ReplayCache._forget", _forget_all)
    put = Put("jobs", (NewItem(b"1", "application/json"),))
    assert (await commit(client, "id", put)).status == 200
    again = await commit(client, "id", put, is_retry=True)
    assert (again.status, again.json["code"]) == (503, "outcome_unknown")
    assert (await client.ok("queue.stats", queue="jobs"))["pending"] == 1


def _forget_all(answers: Any) -> None:
    while answers._ended:
        _, answers._forgotten, id, _ = answers._ended.popleft()
        answers._known.pop(id)


async def test_what_a_worker_registered_that_is_no_text_breaks_nobodys_list(client: Client) -> None:
    value = b'{"name":"\xff"}'
    for kind in ("worker", "managed", "token"):
        await commit(client, f"register-{kind}", Register(kind, "jobs", value, timeout=10**9))
    await client.ok("workers.list")
    await client.ok("queues.update", name="jobs", settings={"max_attempts": 3})
    assert (await post(client, "store.read", ListRegistrations("worker"))).status == 200


# Who is gone, or no longer let in.


async def test_items_leased_by_a_slow_store_for_a_client_that_left_are_given_back(
    app: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}])
    gate = Gate(app, "commit", monkeypatch)
    gone = client.begin("queue.lease", {"queue": "jobs"})
    await until(lambda: gate.came == 1)
    gone.leave()
    gate.open.set()
    await gone.task
    assert not gone.was_answered
    (item,) = (await client.ok("queue.lease", queue="jobs"))["items"]
    assert item["attempts"] == 1


async def test_client_that_is_there_gets_what_a_slow_store_leased(
    app: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}])
    gate = Gate(app, "commit", monkeypatch)
    there = client.begin("queue.lease", {"queue": "jobs"})
    await until(lambda: gate.came == 1)
    gate.open.set()
    assert len((await there.answer()).json["items"]) == 1


async def test_token_that_was_revoked_while_it_waited_gets_nothing(
    app: Server, client: Client, gateway: Gateway
) -> None:
    waiting = client.begin("queue.lease", {"queue": "jobs", "wait": "20s"})
    follows = client.begin("feed.read", {"after": "0", "wait": "20s", "queue": "jobs", "kinds": ["died"]})
    await until(lambda: len(app.waiting) >= 1)
    put = client.begin("queue.produce", {"queue": "jobs", "items": [{"payload": 1}]})
    await asyncio.sleep(0)
    gateway.is_open = False
    assert (await waiting.answer()).status == 401
    assert (await put.answer()).status == 200
    gateway.is_open = True
    follows.leave()
    await follows.task
    (item,) = (await client.ok("queue.lease", queue="jobs"))["items"]
    assert item["attempts"] == 1


# A store that is slow.


async def test_bodies_of_requests_that_wait_for_the_store_are_bounded(
    app: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(app, "commit", monkeypatch)
    arguments = {"queue": "jobs", "items": [{"payload": "x" * (MIB // 4)}]}
    under_way = [client.begin("queue.produce", arguments) for _ in range(3)]
    await until(lambda: gate.came == 1)
    await client.refused("queue.produce", 429, "overloaded", **arguments)
    small = client.begin("queue.produce", {"queue": "jobs", "items": [{"payload": 1}]})
    gate.open.set()
    for each in [*under_way, small]:
        assert (await each.answer()).status == 200
    await client.ok("queue.produce", **arguments)


def padded(call: dict[str, Any], size: int) -> bytes:
    """A call with as many blanks, which JSON allows."""
    return msgspec.json.encode(call).ljust(size)


@pytest.mark.parametrize(
    ("route", "call"),
    [("queue.lease", {"queue": "jobs", "wait": "20s"}), ("feed.read", {"after": "0", "queue": "jobs", "wait": "20s"})],
)
async def test_requests_that_only_wait_leave_the_room_of_their_bodies_to_others(
    app: Server, client: Client, route: str, call: dict[str, Any]
) -> None:
    body = padded(call, MIB - 100)
    for number in range(3):
        Exchange(app, "POST", f"/v1/{route}", [body], client.headers)
        await until(lambda number=number: len(app.waiting) == number + 1)
    await client.ok("queue.produce", queue="jobs", items=[{"payload": "x" * 1000}])
    app.stop()


async def test_watch_of_a_large_body_is_refused(app: Server, client: Client) -> None:
    boot = decode_about((await post(client, "store.about", None)).body).server_epoch
    names = tuple(f"{number:0>120}" for number in range(5000))
    answer = await post(client, "store.watch", WatchRequest(boot, 2**62, names, 20.0))
    assert (answer.status, answer.json["code"]) == (413, "request_too_large")
    waiting = asyncio.ensure_future(post(client, "store.watch", WatchRequest(boot, 2**62, names[:1000], 20.0)))
    await until(lambda: len(app.waiting) == 1)
    app.stop()
    assert (await waiting).status == 200


async def test_bodies_that_one_token_sends_slowly_keep_nobody_else_out(
    app: Server, client: Client, gateway: Gateway
) -> None:
    gateway.principal = Principal("mallory", frozenset({Role.PRODUCER}))
    half_sent = [Exchange(app, "POST", "/v1/queue.produce", [], client.headers) for _ in range(12)]
    for each in half_sent:
        each.send(b" " * (MIB // 8))
    await until(lambda: sum(each.task.done() for each in half_sent) == 8)
    refused = [await each.answer() for each in half_sent if each.task.done()]
    assert {(answer.status, answer.json["code"]) for answer in refused} == {(429, "overloaded")}
    gateway.principal = Principal("ann", frozenset({Role.PRODUCER}))
    await client.ok("queue.produce", queue="jobs", items=[{"payload": "x" * (MIB // 3)}])
    for each in half_sent:
        each.leave()
        await each.task


async def test_health_is_told_while_queries_take_all_threads(
    app: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = app.brokers.get("default")
    assert broker is not None
    store: Any = broker.core.store
    opened = threading.Event()
    inner = store.read

    def slow(query: Any) -> Any:
        if isinstance(query, FindItems):
            assert opened.wait(PATIENCE_SECONDS)
        return inner(query)

    monkeypatch.setattr(store, "read", slow)
    queries = [client.begin("items.list", {"queue": "jobs"}) for _ in range(100)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS / 2):
            assert (await client.send("GET", "/health/ready")).status == 200
            assert (await client.send("GET", "/health")).json["status"] == "ok"
            await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}])
    finally:
        opened.set()
    for each in queries:
        assert (await each.answer()).status == 200


# Bytes on the line.


@pytest.fixture
async def runner(app: Server, client: Client) -> AsyncIterator[HttpRunner]:
    runner = HttpRunner(app, listen("127.0.0.1", 0), 5)
    serving = asyncio.ensure_future(runner.run_until_stopped())
    await until(lambda: runner.started)
    yield runner
    runner.should_exit = True
    await serving


@pytest.fixture
def port(runner: HttpRunner) -> int:
    port: int = runner._listener.getsockname()[1]
    return port


async def test_trailers_without_end_are_not_kept(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/queues.list HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
    trailer = b"x-trailer: " + b"y" * 1000 + b"\r\n"
    sent = 0
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while sent < 200 * http_protocol.MAX_HEAD_BYTES:
                writer.write(trailer)
                sent += len(trailer)
                await writer.drain()
                await asyncio.sleep(0)
    assert sent < 200 * http_protocol.MAX_HEAD_BYTES, "the server took it all"
    writer.close()


async def test_body_in_many_chunks_with_a_trailer_is_taken(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"queue": "jobs", "items": [{"payload": "' + b"x" * 20_000 + b'"}]}'
    writer.write(b"POST /v1/queue.produce HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n")
    for start in range(0, len(body), 7):
        part = body[start : start + 7]
        writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        await writer.drain()
    writer.write(b"0\r\nx-digest: 1\r\n\r\n")
    assert b" 200 " in await reader.readline()
    writer.close()


def produced(size: int) -> bytes:
    """A request that puts an item of that size."""
    body = b'{"queue": "jobs", "items": [{"payload": "' + b"x" * size + b'"}]}'
    return b"POST /v1/queue.produce HTTP/1.1\r\n" + HOST + b"content-length: %d\r\n\r\n%b" % (len(body), body)


async def test_head_that_begins_behind_a_large_body_is_not_as_large_as_that(
    client: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "MAX_HEAD_BYTES", 4096)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = produced(20_000)
    writer.write(request + request[:40])
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert b" 200 " in await reader.readline()
        writer.write(request[40:])
        assert b" 200 " in (await reader.readuntil(b"HTTP/1.1 ")) + await reader.readline()
    assert (await client.ok("queue.stats", queue="jobs"))["pending"] == 2
    writer.close()


async def test_head_without_end_behind_a_request_is_refused(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(produced(10))
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert b" 200 " in await reader.readline()
        writer.write(b"GET / HTTP/1.1\r\nx: " + b"y" * 2 * http_protocol.MAX_HEAD_BYTES)
        assert b" 431 " in await reader.read()
    writer.close()


@pytest.mark.parametrize("rest", [b"GET / HTTP/1.1\r\nx: " + b"y" * 5000, b"no request at all\r\n\r\n"])
async def test_what_comes_behind_a_request_is_not_answered_in_its_place(
    app: Server, client: Client, port: int, monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    """Whoever reads an error takes it that nothing was done."""
    monkeypatch.setattr(http_protocol, "MAX_HEAD_BYTES", 4096)
    gate = Gate(app, "commit", monkeypatch)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(produced(10))
    await until(lambda: gate.came == 1)
    writer.write(rest)
    async with asyncio.timeout(PATIENCE_SECONDS):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    gate.open.set()
    while (await client.ok("queue.stats", queue="jobs"))["pending"] == 0:
        await asyncio.sleep(0.001)
    writer.close()


@pytest.mark.parametrize("keep_alive_seconds", [0.2, 60.0])
async def test_client_that_does_not_read_a_large_answer_is_cut_off(
    runner: HttpRunner, client: Client, port: int, keep_alive_seconds: float
) -> None:
    """Without that, what it does not read stays in memory until it goes away."""
    await client.ok("queues.update", name="jobs", settings={"max_payload_size": 16 * MIB})
    item = NewItem(b"x" * (12 * MIB), "application/octet-stream")
    client.app.limits = msgspec.structs.replace(client.app.limits, max_total_body_bytes=100 * MIB)
    assert (await commit(client, "put", Put("jobs", (item,)))).status == 200
    runner.config.timeout_keep_alive = keep_alive_seconds  # type: ignore[assignment]
    connections = runner.server_state.connections
    with contextlib.closing(socket.socket()) as line:
        line.setblocking(False)
        await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", port))
        body = encode(FindItems(Filter(status=None, queue="jobs"), limit=3))
        line.send(
            b"POST /v1/store.read HTTP/1.1\r\n" + HOST + b"content-type: application/msgpack\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        await until(lambda: len(connections) == 1)
        await until(lambda: len(connections) == 0)


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 2\r\ncontent-length: 3\r\n",
        b"content-length: 2\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 2\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding : chunked\r\n",
        b"content-length: +2\r\n",
        b"content-length: 2, 2\r\n",
        b"content-length: " + b"9" * 5000 + b"\r\n",
        b"content-length : 2\r\n",
        b" content-length: 2\r\n",
    ],
)
async def test_request_whose_length_is_in_doubt_ends_the_connection(port: int, head: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    smuggled = b"GET /health/live HTTP/1.1\r\n" + HOST + b"\r\n"
    writer.write(b"POST /v1/queues.list HTTP/1.1\r\n" + HOST + head + b"\r\n{}" + smuggled)
    async with asyncio.timeout(PATIENCE_SECONDS):
        answers = await reader.read()
    assert answers.count(b"HTTP/1.1 ") <= 1, answers
    assert b" 200 " not in answers
    writer.close()


async def test_length_of_thousands_of_digits_is_too_large(client: Client) -> None:
    exchange = Exchange(
        client.app, "POST", "/v1/queues.list", [b"{}"], {**client.headers, "content-length": "9" * 5000}
    )
    assert (await exchange.answer()).status == 413


# Opening and closing.


async def test_namespace_whose_store_was_down_is_opened_by_the_next_request(
    app: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = Client(app, **{"redrive-namespace": "team"})

    def down(namespace: str) -> Any:
        raise StoreUnavailable("memory", "it is down")

    with monkeypatch.context() as context:
        context.setattr(app.brokers, "_open_one", down)
        answers = await asyncio.gather(*(team.call("queues.list") for _ in range(5)))
        assert [answer.status for answer in answers] == [503] * 5
    await team.ok("queues.list")


async def test_nothing_is_opened_once_the_server_is_closed(app: Server, client: Client) -> None:
    await app.close()
    answer = await Client(app, **{"redrive-namespace": "team"}).call("queues.list")
    assert (answer.status, answer.json["code"]) == (503, "closed")
    assert not app.brokers.open


def in_namespace(app: Server, namespace: str) -> Client:
    return Client(app, **{"redrive-namespace": namespace})


@pytest.fixture
def few_namespaces(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_pool, "MAX_NAMESPACES", 4)


@pytest.mark.usefixtures("few_namespaces")
async def test_namespaces_that_somebody_made_up_keep_nobody_out(app: Server) -> None:
    await in_namespace(app, "shop").ok("queues.create", name="orders")
    for number in range(10):
        made_up = in_namespace(app, f"made-up-{number}")
        await made_up.refused("queue.produce", 404, "queue_not_found", queue="orders", items=[{"payload": 1}])
    assert len(app.brokers.open) == 4
    assert (await in_namespace(app, "shop").ok("queue.stats", queue="orders"))["pending"] == 0
    await in_namespace(app, "prod").ok("queues.create", name="orders")


@pytest.mark.usefixtures("few_namespaces")
async def test_namespaces_with_queues_are_not_closed_to_make_room(app: Server, client: Client) -> None:
    for name in ("one", "two", "three"):
        await in_namespace(app, name).ok("queues.create", name="orders")
    await in_namespace(app, "four").refused("queues.list", 429, "overloaded")
    answer = await in_namespace(app, "four").call("queues.list")
    assert "4 namespaces are open" in answer.json["message"]
    for name in ("one", "two", "three"):
        await in_namespace(app, name).ok("queue.stats", queue="orders")
    await in_namespace(app, "two").ok("queues.delete", name="orders", confirm=0)
    for _ in range(5):  # it may be the last that is looked at again
        if (await in_namespace(app, "four").call("queues.list")).status == 200:
            break
    await in_namespace(app, "four").ok("queues.list")
    assert "two" not in app.brokers.open


@pytest.mark.usefixtures("few_namespaces")
async def test_namespace_that_the_server_itself_uses_is_not_closed_to_make_room(app: Server) -> None:
    broker = await app.brokers.at("own")
    for number in range(10):
        await in_namespace(app, f"made-up-{number}").ok("queues.list")
    assert app.brokers.get("own") is broker
    assert await broker.list_queues() == ()


@pytest.mark.usefixtures("few_namespaces")
async def test_who_waits_in_a_namespace_without_queues_keeps_nobody_out(app: Server) -> None:
    waiting = [in_namespace(app, f"made-up-{n}").begin("feed.read", {"after": "0", "wait": "20s"}) for n in range(3)]
    await until(lambda: len(app.waiting) == 3)
    await in_namespace(app, "prod").ok("queues.create", name="orders")
    (ended, *_), _ = await asyncio.wait([each.task for each in waiting], return_when=asyncio.FIRST_COMPLETED)
    answer = await next(each for each in waiting if each.task is ended).answer()
    assert (answer.status, answer.json["code"]) == (503, "closed")
    for each in waiting:
        each.leave()
        await each.task


@pytest.mark.usefixtures("few_namespaces")
async def test_namespace_is_not_closed_under_a_request_that_is_carried_out(
    app: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [in_namespace(app, f"team-{number}") for number in range(3)]
    for each in made:
        await each.ok("queues.list")
    broker = app.brokers.get("team-0")
    assert broker is not None
    gate = Gate(app, "commit", monkeypatch, "team-0")
    creating = made[0].begin("queues.create", {"name": "orders"})
    await until(lambda: gate.came == 1)
    for number in range(5):
        await in_namespace(app, f"made-up-{number}").ok("queues.list")
    assert app.brokers.get("team-0") is broker
    gate.open.set()
    assert (await creating.answer()).status == 200


@pytest.mark.usefixtures("few_namespaces")
async def test_client_that_watched_a_namespace_hears_of_it_after_it_was_closed_and_opened(app: Server) -> None:
    team = in_namespace(app, "team")
    boot = decode_about((await post(team, "store.about", None)).body).server_epoch
    known = decode_watch_answer((await post(team, "store.watch", WatchRequest(server_epoch=None))).body)
    for number in range(10):
        await in_namespace(app, f"made-up-{number}").ok("queues.list")
    await team.ok("queues.create", name="jobs")
    async with asyncio.timeout(PATIENCE_SECONDS):
        again = WatchRequest(boot, known.number, ("jobs",), 60.0)
        told = decode_watch_answer((await post(team, "store.watch", again)).body)
        assert told.queues is None
        waiting = asyncio.ensure_future(post(team, "store.watch", WatchRequest(boot, told.number, ("jobs",), 60.0)))
        await until(lambda: len(app.waiting) == 1)
        await team.ok("queue.produce", queue="jobs", items=[{"payload": 1}])
        assert decode_watch_answer((await waiting).body).queues == ("jobs",)


async def test_commit_of_which_every_call_is_refused_is_answered(client: Client) -> None:
    put = Put("no good name!", (NewItem(b"1", "application/json"),))
    answer = await commit(client, "id", put, put)
    assert answer.status == 200
    assert [type(result) for result in read_commit([put, put], answer.body)[1].results] == [InvalidName] * 2


# The event loop is for everybody.


@pytest.mark.parametrize(
    ("route", "call"),
    [
        ("queue.produce", b'{"queue": "jobs", "items": [%b]}' % b",".join([b'{"payload": 1}'] * 200_000)),
        ("queue.produce", b'{"queue": "jobs", "items": [{"payload": 1, "headers": {%b}}]}' % (b'"a":"",' * 400_000)),
        ("dead.redrive", b'{"ids": ["x"], "new_payload": [%b]}' % (b"[[[[[[]]]]]]," * 100_000)),
    ],
)
async def test_more_values_than_may_be_read_in_one_go_are_refused_unread(
    app: Server, client: Client, route: str, call: bytes
) -> None:
    app.limits = msgspec.structs.replace(app.limits, values=300_000, max_total_body_bytes=32 * MIB)
    answer = await client.send("POST", f"/v1/{route}", call)
    assert (answer.status, answer.json["code"], answer.json["details"]["limit"]) == (413, "request_too_large", 300_000)


async def test_payload_of_the_usual_size_may_have_as_many_values_as_fit_in(app: Server, client: Client) -> None:
    app.limits = msgspec.structs.replace(app.limits, max_total_body_bytes=32 * MIB)
    payload = b"[" + b"[]," * ((MIB - 4) // 3) + b"1]"
    body = b'{"queue": "jobs", "items": [{"payload": %b}]}' % payload
    assert len(payload) <= MIB < len(body)
    assert (await client.send("POST", "/v1/queue.produce", body)).status == 200


async def test_calls_that_take_long_to_check_let_others_have_their_turn(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_call_authorization, "TURN_SECONDS", 0.0)
    put = Put("jobs", (NewItem(b"1", "application/json"),) * 10)
    committing = asyncio.ensure_future(commit(client, "many", *[put] * 100))
    turns = 0
    while not committing.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await committing).status == 200
    assert turns > 100


async def test_page_in_json_is_found_bit_by_bit_and_goes_on(client: Client) -> None:
    await put_large(client, 70)
    seen: list[str] = []
    pivot: dict[str, str] = {}
    while True:
        page = await client.ok("items.list", queue="jobs", limit=70, **pivot)
        seen += [item["id"] for item in page["items"]]
        if "cursor" not in page:
            break
        assert len(page["items"]) < 70
        pivot = {"cursor": page["cursor"]}
    assert len(seen) == len(set(seen)) == 70


async def test_secrets_are_taken_out_of_large_items_where_nobody_waits_for_it(
    app: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 30 MB of payloads it takes 15 seconds."""
    broker = app.brokers.get("default")
    assert broker is not None
    threads: list[threading.Thread] = []
    redact = broker.core.redaction.item

    def seen(item: Any) -> Any:
        threads.append(threading.current_thread())
        return redact(item)

    monkeypatch.setattr(broker.core.redaction, "item", seen)
    put = await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}])
    await client.ok("items.list", queue="jobs")
    await client.ok("items.get", id=put["items"][0]["id"])
    assert len(threads) == 2
    assert threading.current_thread() not in threads
