"""Requests that go from the parser to the committer get, byte for byte, the answers that the ASGI application gives.

Two servers that differ in that alone get the same requests over a socket. Date, ids, tokens and instants are replaced
before answers are compared; in the end their counts and their items are.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import chain
from typing import Any

import msgspec
import pytest
import uvicorn
from tests.acceptance import raw_requests as raw
from tests.acceptance.direct_server import (
    LAST,
    LIMITS,
    SHORT_SECONDS,
    Running,
    has_answer,
    reset,
    sock_read,
    sock_send,
    starting_servers,
    unread_connection,
    waiting_in_store,
)
from tests.acceptance.test_server_hostile import PATIENCE_SECONDS, Gate, until
from tests.acceptance.test_server_load import _item as load_item
from tests.servers.http import Caller
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from redrive.errors import StoreUnavailable
from redrive.server import direct_path, http_protocol
from redrive.server.direct_path import DirectRequest, DirectRoute
from redrive.server.request_limits import Limits
from redrive.telemetry.metrics import HTTP_REQUESTS
from redrive.testing.fake_clock import FakeClock

MUTATIONS = 1600


def comparable(answer: bytes) -> bytes:
    """An answer without what is different on every server."""
    answer = re.sub(rb"date: [^\r]+", b"date", answer)
    answer = re.sub(rb"[0-9a-fA-F]{48}|[0-9a-fA-F]{32}", b"ID", answer)
    return re.sub(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", b"INSTANT", answer)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """How many requests were handed in, and how many left to the application, by a route that has a direct path."""
    counted: Counter[bool] = Counter()
    hand_in = DirectRoute.hand_in

    def counting(route: DirectRoute, request: DirectRequest) -> bool:
        done = hand_in(route, request)
        counted[done] += 1
        return done

    monkeypatch.setattr(DirectRoute, "hand_in", counting)
    return counted


@pytest.fixture
async def servers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """Starts servers, and stops them in the end."""
    async with starting_servers(monkeypatch) as start:
        yield start


async def compare(fast: Running, slow: Running, requests: Iterable[bytes]) -> Counter[bytes]:
    """Send each request to both. Gives how often each status was answered first."""
    statuses: Counter[bytes] = Counter()
    for number, request in enumerate(requests):
        await until(lambda: not (fast.is_busy or slow.is_busy))
        await asyncio.gather(fast.take_lease(), slow.take_lease())
        try:
            answers = await asyncio.gather(fast.answer(request), slow.answer(request))
        except TimeoutError:
            raise AssertionError(f"no answer to {number}: {request[:2000]!r}") from None
        assert comparable(answers[0]) == comparable(answers[1]), (number, request[:2000])
        statuses[answers[0][:12]] += 1
    return statuses


async def state(server: Running) -> Any:
    """What is counted and kept, as far as it does not differ by chance."""
    counts = {(sample.labels, sample.value) for sample in server.app._counted() if sample.metric is HTTP_REQUESTS}
    items = []
    for status in ("pending", "active", "dead"):
        page = None
        while page is None or page.cursor is not None:
            cursor = None if page is None else page.cursor
            page = await server.broker.find(status=status, limit=1000, cursor=cursor, redacted=False)
            items += [(i.queue, i.status, i.payload, i.headers, i.priority, i.counters, i.worker) for i in page.items]
    return counts, Counter(comparable(repr(item).encode()) for item in items), vars(server.app.bodies)


def hostile(*tokens: str | None) -> list[bytes]:
    """Every request that is written down here, by each of the callers."""
    made = [raw.request(path, body, token=token) for token in tokens for path, body in raw.bodies()]
    return [*made, *raw.heads(), *chain.from_iterable(raw.pairs(token) for token in tokens)]


async def test_server_without_tokens_answers_alike(servers: Any, taken: Counter[bool]) -> None:
    fast, slow = await servers(), await servers(direct=False)
    usual = list(raw.usual())
    assert await compare(fast, slow, usual) == {b"HTTP/1.1 200": len(usual)}
    assert taken == {True: len(usual)}
    written = hostile(None)
    mutated = list(raw.mutations(random.Random(21), [*usual, *written], MUTATIONS // 2))
    statuses = await compare(fast, slow, [*written, *mutated])
    assert len(statuses) > 8, statuses
    assert statuses[b"HTTP/1.1 500"] == 0
    assert taken[True] > len(written) / 3
    assert await state(fast) == await state(slow)


async def test_server_with_tokens_answers_alike(servers: Any, taken: Counter[bool]) -> None:
    fast, slow = await servers(tokens=True), await servers(direct=False, tokens=True)
    roles = {"admin": 12, "consumer": 12, "limited": 12, "producer": 4, "viewer": 0, "elsewhere": 0}
    read_first = {"limited": 4}  # completions of leases that this server did not give out: their queue is to be read
    for role, count in roles.items():
        taken.clear()
        requests = list(raw.usual(role))
        statuses = await compare(fast, slow, requests)
        assert (statuses[b"HTTP/1.1 200"], taken[True]) == (count, count - read_first.get(role, 0)), role
        assert statuses[b"HTTP/1.1 403"] == len(requests) - count
    usual = list(chain.from_iterable(map(raw.usual, roles)))
    written = hostile("limited")
    mutated = list(raw.mutations(random.Random(22), [*usual, *written], MUTATIONS // 2))
    statuses = await compare(fast, slow, [*written, *mutated])
    assert statuses[b"HTTP/1.1 401"] > 50
    assert statuses[b"HTTP/1.1 500"] == 0
    assert len(usual) + len(written) + len(mutated) + len(hostile(None)) + MUTATIONS // 2 >= 2000
    assert await state(fast) == await state(slow)


async def test_calls_of_the_load_that_survives_kills_take_the_direct_path(servers: Any, taken: Counter[bool]) -> None:
    server = await servers()
    with Caller(server.address[1]) as caller:
        await caller.call("queue.produce", queue="own-jobs", items=[load_item("1")])
        _, leased = await caller.call("queue.lease", queue="own-jobs", limit=1, worker="client-1")
        tokens = [{"token": item["token"]} for item in leased["items"]]
        status, _ = await caller.call("queue.complete", queue="own-jobs", items=tokens)
    assert (status, taken) == (200, {True: 3})


async def test_caller_whose_token_is_for_some_queues_is_named_in_its_leases(servers: Any, taken: Counter[bool]) -> None:
    server = await servers(tokens=True)
    token = server.tokens[raw.TOKENS["limited"].encode()].decode()
    with Caller(server.address[1], token) as caller:
        await caller.call("queue.produce", queue="own-jobs", items=[{"payload": 1}])
        _, leased = await caller.call("queue.lease", queue="own-jobs", worker="w")
        (item,) = leased["items"]
        assert (await server.broker.get(item["id"])).worker == "limited/w"
        status, _ = await caller.call("queue.complete", queue="own-jobs", items=[{"token": item["token"]}])
    assert (status, taken) == (200, {True: 3})


async def test_item_leased_for_a_client_that_is_gone_is_returned_uncounted(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await servers()
    await server.broker.put("own-jobs", 1)
    connection, gate = await waiting_in_store(server, monkeypatch, raw.TAKE)
    reset(connection)
    await until(lambda: not server.runner.server_state.connections)
    gate.open.set()
    await until(lambda: not server.app.direct_requests)
    (item,) = await server.broker.lease("own-jobs")
    assert item.attempts == 1
    assert vars(server.app.bodies)["_all"] == 0


@pytest.mark.parametrize("direct", [True, False])
async def test_lease_for_a_client_that_left_another_request_behind_it_is_returned(
    servers: Any, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    """Nothing is read from the connection meanwhile, so that nothing reports its end."""
    server = await servers(direct=direct)
    await server.broker.put("own-jobs", 1)
    gate = Gate(server.app, "commit", monkeypatch)
    connection = await server.connect()
    await sock_send(connection, raw.request(raw.TAKE, raw.encoded(raw.BODIES[raw.TAKE])))
    await until(lambda: gate.came == 1)
    assert bool(server.app.direct_requests) == direct
    (protocol,) = server.runner.server_state.connections
    await sock_send(connection, LAST)
    await until(lambda: protocol.flow.read_paused)
    connection.close()
    gate.open.set()
    await until(lambda: not server.is_busy and not server.runner.server_state.connections)
    (item,) = await server.broker.lease("own-jobs")
    assert item.attempts == 1


@pytest.mark.parametrize("pipelined", [True, False])
async def test_nothing_is_leased_for_a_client_that_does_not_read_what_came_before(
    servers: Any, taken: Counter[bool], pipelined: bool
) -> None:
    server = await servers(limits=msgspec.structs.replace(LIMITS, answer_seconds=60.0))
    await server.broker.create_queue("large")
    for payload in ("x" * 60_000, "y" * 60_000, "z"):
        await server.broker.put("large", payload)
    connection = await unread_connection(server)
    (protocol,) = server.runner.server_state.connections
    lease = raw.request(raw.TAKE, raw.encoded({"queue": "large"}))
    if pipelined:
        await sock_send(connection, lease * 3)
    else:
        for least in (1, 1 << 16):
            await sock_send(connection, lease)
            await until(lambda least=least: protocol.transport.get_write_buffer_size() >= least)  # type: ignore[misc]
        await until(lambda: protocol.flow.read_paused)  # nothing more is read until it reads
        await sock_send(connection, lease)
    await until(lambda: not pipelined or vars(protocol)["_delayed"] is not None)
    assert (await server.broker.stats("large")).active == 2
    if pipelined:  # it reads, and gets all of them
        received = await sock_read(connection, lambda so_far: so_far.count(b"HTTP/1.1 200") == 3)
        assert received.count(b'"attempts":1') == 3
    else:
        connection.close()
        await until(lambda: not server.runner.server_state.connections)
        (item,) = await server.broker.lease("large")
        assert item.attempts == 1
    connection.close()


async def test_client_that_reads_no_small_answers_is_cut_off(servers: Any) -> None:
    server = await servers(limits=msgspec.structs.replace(LIMITS, answer_seconds=SHORT_SECONDS))
    server.runner.config.timeout_keep_alive = 60
    connection = await unread_connection(server)
    with contextlib.suppress(ConnectionError):
        await sock_send(connection, raw.request("/health/live", b"", method=b"GET") * 2000)
    await until(lambda: not server.runner.server_state.connections)
    connection.close()


async def test_server_that_stops_gives_out_no_lease(servers: Any, taken: Counter[bool]) -> None:
    server = await servers()
    await server.broker.put("own-jobs", 1)
    server.app.stop()
    answer = await server.answer(raw.request(raw.TAKE, raw.encoded(raw.BODIES[raw.TAKE])))
    assert b'{"items":[]}' in answer
    assert taken == {False: 1}


async def test_lease_sees_first_to_what_is_overdue(servers: Any, taken: Counter[bool]) -> None:
    clock = FakeClock()
    server = await servers(clock=clock)
    await server.broker.put("own-jobs", "x")
    await server.broker.lease("own-jobs", lease_timeout="1s")
    clock.advance("2s")
    answer = await server.answer(raw.request(raw.TAKE, raw.encoded(raw.BODIES[raw.TAKE])))
    assert b'"deliveries":2' in answer
    assert taken == {True: 1}


@pytest.mark.parametrize("path", [raw.PRODUCE, raw.TAKE, raw.COMPLETE])
async def test_failure_of_the_store_is_answered_alike(
    servers: Any, monkeypatch: pytest.MonkeyPatch, path: str, taken: Counter[bool]
) -> None:
    answers = []
    for direct in (True, False):
        server = await servers(direct=direct)
        await server.take_lease()

        def fail(*arguments: Any) -> Any:
            raise StoreUnavailable("sqlite", "the disk is gone")

        monkeypatch.setattr(server.broker.core.store, "commit", fail)
        answers.append(comparable(await server.answer(raw.request(path, raw.encoded(raw.BODIES[path])))))
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"HTTP/1.1 503")
    assert b"retry-after" in answers[0]
    assert taken == {True: 1}


async def test_large_answer_is_sent_alike(servers: Any, taken: Counter[bool]) -> None:
    answers = []
    for direct in (True, False):
        server = await servers(direct=direct)
        await server.broker.update_queue("own-jobs", max_payload_size=1_000_000)
        await server.broker.put("own-jobs", "x" * 300_000)
        answers.append(comparable(await server.answer(raw.request(raw.TAKE, raw.encoded(raw.BODIES[raw.TAKE])))))
    assert len(answers[0]) > 300_000
    assert answers[0] == answers[1]
    assert taken == {True: 1}


def _fail(*arguments: Any) -> Any:
    raise ZeroDivisionError


async def test_unexpected_error_before_it_is_handed_in_is_left_to_the_application(
    servers: Any, monkeypatch: pytest.MonkeyPatch, taken: Counter[bool]
) -> None:
    server = await servers(tokens=True)
    monkeypatch.setattr(direct_path, "signed_freely", _fail)
    for request in raw.usual("limited"):
        await server.take_lease()
        assert (await server.answer(request)).startswith(b"HTTP/1.1 200")
    assert taken == {False: 12}
    assert vars(server.app.bodies) == {"_all": 0, "_by_name": {}, "_longest_line": 0}


async def test_unexpected_error_after_it_was_handed_in_is_answered_and_ends_no_other_request(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await servers()
    request = raw.request(raw.PRODUCE, raw.encoded(raw.BODIES[raw.PRODUCE]))
    with monkeypatch.context() as patch:
        patch.setattr(direct_path, "response_of", _fail)
        answer = await server.answer(request)
        assert answer.startswith(b"HTTP/1.1 500")
        assert b'"message":"internal error"' in answer
    with monkeypatch.context() as patch:
        patch.setattr(http_protocol.Connection, "answer", _fail)
        assert await server.answer(request) == b""
    assert (await server.answer(request)).startswith(b"HTTP/1.1 200")
    assert not server.app.direct_requests


async def test_requests_that_arrive_in_pieces_are_answered(
    servers: Any, monkeypatch: pytest.MonkeyPatch, taken: Counter[bool]
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", PATIENCE_SECONDS)
    server = await servers(limits=Limits())
    request = raw.request(raw.PRODUCE, raw.encoded(raw.BODIES[raw.PRODUCE]))
    received: list[bytes] = []
    feed = http_protocol.Connection.data_received

    def receive(connection: http_protocol.Connection, data: bytes) -> None:
        received.append(data)
        feed(connection, data)

    monkeypatch.setattr(http_protocol.Connection, "data_received", receive)
    for cut in (10, request.index(b"\r\n\r\n") + 4, len(request) - 3):
        received.clear()
        with contextlib.closing(await server.connect()) as connection:
            await sock_send(connection, request[:cut])
            await until(lambda: len(received) == 1)
            await sock_send(connection, request[cut:])
            assert (await sock_read(connection, has_answer)).startswith(b"HTTP/1.1 200")
    assert taken == {True: 1}  # the first: its head and its body came together


NEEDED = {
    "access_log",
    "access_logger",
    "default_headers",
    "expect_100_continue",
    "flow",
    "keep_alive",
    "logger",
    "message_event",
    "on_response",
    "scope",
    "transport",
}


def test_uvicorn_is_one_whose_internals_are_known() -> None:
    """Where this fails: read `httptools_impl.py` of the new uvicorn beside `http_protocol.py` and `direct_path.py`, run
    this file, and only then raise the bound in pyproject.toml."""
    found = f"uvicorn {uvicorn.__version__} differs from what http_protocol.py was written for: "
    takes = set(inspect.signature(RequestResponseCycle).parameters)
    assert takes == NEEDED, f"{found}a cycle takes {sorted(takes ^ NEEDED)} more, or no more"
    source = inspect.getsource(HttpToolsProtocol)
    used = set(re.findall(r"self\.cycle\.(\w+)|existing_cycle\.(\w+)", source))
    assert {a or b for a, b in used} <= {*DirectRequest.__slots__, "message_event"}, f"{found}it asks a cycle for more"
    for name in ("_start_asgi_task", "on_response_complete", "on_headers_complete", "shutdown"):
        assert hasattr(HttpToolsProtocol, name), f"{found}it has no {name}"
