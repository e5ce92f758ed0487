"""Requests behind others on one connection: few are parsed ahead, in turn with other connections, and trailers and a
client that has sent everything change nothing in their responses."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.acceptance import raw_requests as raw
from tests.acceptance.direct_server import (
    LAST,
    LIMITS,
    Running,
    reset,
    sock_read,
    sock_send,
    starting_servers,
    unread_connection,
)
from tests.acceptance.test_server_hostile import Gate, until
from tests.servers.http import Caller, HttpServer

from redrive.server.http_protocol import Connection
from redrive.server.request_limits import TURNS, Limits, LineTurns
from redrive.server.request_line import MAX_LINES, REQUEST_BYTES

SMALL = b"GET * HTTP/1.1\r\n\r\n"
HEALTH = raw.request("/health/live", b"", method=b"GET")
MOST = MAX_LINES // 2
"""Requests that may be parsed together."""
WITHOUT_READING = msgspec.structs.replace(LIMITS, answer_seconds=60.0)


@pytest.fixture
async def servers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """Starts servers, and stops them in the end."""
    async with starting_servers(monkeypatch) as start:
        yield start


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each call of the parser has found."""
    counts: list[int] = []
    parse, begin = Connection._parse, Connection.on_message_begin

    def counting(connection: Connection, data: bytes) -> None:
        counts.append(0)
        parse(connection, data)

    def beginning(connection: Connection) -> None:
        counts[-1] += 1
        begin(connection)

    monkeypatch.setattr(Connection, "_parse", counting)
    monkeypatch.setattr(Connection, "on_message_begin", beginning)
    return counts


def connection_of(server: Running) -> Connection:
    (connection,) = server.runner.server_state.connections
    return connection


def counted(server: Running) -> int:
    """The bytes in the memory for bodies."""
    return int(vars(server.app.bodies)["_all"])


# Trailers.


def chunked(path: str, body: bytes, *headers: bytes, trailer: bytes = b"", token: str | None = None) -> bytes:
    chunks = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailer)
    return raw.request(path, chunks, *headers, length=b"transfer-encoding: chunked", token=token)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("path", [raw.PRODUCE, "/v1/queues.list"])
async def test_trailers_are_no_headers(servers: Any, direct: bool, path: str) -> None:
    server = await servers(direct=direct, tokens=True)
    body = raw.encoded(raw.BODIES.get(path, {}))
    admin = f"authorization: Bearer {raw.TOKENS['admin']}\r\n".encode()
    nothing = f"authorization: Bearer {raw.TOKENS['elsewhere']}\r\n".encode()
    assert (await server.answer(chunked(path, body, trailer=admin))).startswith(b"HTTP/1.1 401")
    for trailer in (
        *(nothing, b"redrive-namespace: team\r\n", b"content-type: text/plain\r\n", b"host: evil.example\r\n"),
        *(b"origin: http://evil.example\r\n", b"sec-fetch-site: cross-site\r\n", b"expect: 100-continue\r\n"),
    ):
        answer = await server.answer(chunked(path, body, trailer=trailer, token="admin"))
        assert answer.startswith(b"HTTP/1.1 200"), trailer
    assert "team" not in server.app.brokers.open


async def test_trailers_do_not_reach_the_next_request(servers: Any) -> None:
    server = await servers(tokens=True)
    admin = f"authorization: Bearer {raw.TOKENS['admin']}\r\n".encode()
    first = chunked("/v1/queues.list", b"{}", trailer=admin, token="admin")
    for behind in (chunked("/v1/queues.list", b"{}"), raw.request(raw.PRODUCE, raw.encoded(raw.BODIES[raw.PRODUCE]))):
        answer = await server.answer(first + behind)
        assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"401", b"200"]


# Bounds.


async def test_few_requests_are_parsed_ahead_and_all_are_answered_in_order(servers: Any, parsed: list[int]) -> None:
    server = await servers()
    requests = b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(1500)) + HEALTH + LAST
    connection = await server.connect()
    lines: list[int] = []
    is_read_ahead: list[bool] = []

    def look() -> None:
        for each in server.runner.server_state.connections:
            lines.append(len(each.pipeline))
            is_read_ahead.append(bool(each.pipeline or each._unparsed) and not each.flow.read_paused)
        looking[0] = asyncio.get_running_loop().call_soon(look)

    looking = [asyncio.get_running_loop().call_soon(look)]
    try:
        sending = asyncio.ensure_future(sock_send(connection, requests))
        received = await sock_read(connection, lambda so_far: False)
        await sending
    finally:
        looking[0].cancel()
        connection.close()
    statuses = re.findall(rb"HTTP/1.1 (\d+)", received)
    assert statuses == [b"404"] * 1500 + [b"200"] * 2
    assert max(lines) == MOST - 1 or max(lines) == MOST
    assert not any(is_read_ahead)
    assert max(parsed) == MOST
    assert counted(server) == 0


async def test_requests_of_several_kinds_in_one_packet_are_answered_in_order(servers: Any, parsed: list[int]) -> None:
    server = await servers()
    payload = {"queue": "own-jobs", "items": [{"payload": "line\nline\n" * 50}]}
    produce = raw.request(raw.PRODUCE, msgspec.json.format(raw.encoded(payload), indent=1))
    raw_lines = raw.request(raw.PRODUCE, raw.encoded(payload).replace(b"{", b"{" + b"\n" * 3000, 1))
    some = [produce, HEALTH, raw_lines, chunked(raw.PRODUCE, b"\n" * 400 + raw.encoded(payload)), SMALL * 40, produce]
    with contextlib.closing(await server.connect()) as connection:
        await sock_send(connection, b"".join(some) + LAST)
        received = await sock_read(connection, lambda so_far: False)
    statuses = re.findall(rb"HTTP/1.1 (\d+)", received)
    assert statuses == [b"200"] * 4 + [b"404"] * 40 + [b"200"] * 2
    assert (await server.broker.stats("own-jobs")).pending == 4
    assert max(parsed) <= MOST


async def test_request_of_many_lines_in_any_pieces_is_taken(servers: Any) -> None:
    server = await servers(limits=Limits())
    body = raw.encoded({"queue": "own-jobs", "items": [{"payload": 1}]}).replace(b"{", b"{" + b"\r\n" * 9000, 1)
    request = raw.request(raw.PRODUCE, body, *(b"x-%d: y" % number for number in range(60)))
    for cut in (1, 300, 700, len(request) - len(body), len(request) - len(body) + 9000, len(request) - 1):
        with contextlib.closing(await server.connect()) as connection:
            await sock_send(connection, request[:cut])
            await asyncio.sleep(0)
            await sock_send(connection, request[cut:])
            assert (await sock_read(connection, lambda so_far: b"}" in so_far)).startswith(b"HTTP/1.1 200"), cut
    assert counted(server) == 0


@pytest.mark.parametrize("path", [raw.PRODUCE, "/v1/queues.create"])
async def test_requests_in_line_are_counted_in_the_memory_and_nothing_more_is_read(
    servers: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    server = await servers(limits=Limits())
    gate = Gate(server.app, "commit", monkeypatch)
    body = raw.encoded(raw.BODIES.get(path, {"name": "new"}))
    connection = await server.connect()
    await sock_send(connection, raw.request(path, body))
    await until(lambda: gate.came == 1)
    before = counted(server)
    ours = connection_of(server)
    for _ in range(40):
        with contextlib.suppress(BlockingIOError):
            connection.send(SMALL * 20_000)
        await asyncio.sleep(0)
    await until(lambda: len(ours.pipeline) > 0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(ours.pipeline) <= MOST
    assert ours.flow.read_paused
    ours.flow.resume_reading()  # as a request that is being executed does
    assert ours.flow.read_paused
    assert counted(server) - before == ours._line_data + REQUEST_BYTES * len(ours.pipeline)
    assert ours._line_data <= 256 * 1024
    reset(connection)
    gate.open.set()
    await until(lambda: not server.is_busy and counted(server) == 0)


async def test_line_without_room_in_memory_is_dropped_and_others_are_served(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await servers(limits=msgspec.structs.replace(Limits(), max_total_body_bytes=1_000_000))
    gate = Gate(server.app, "commit", monkeypatch)
    produce = raw.request(raw.PRODUCE, raw.encoded(raw.BODIES[raw.PRODUCE]))
    connections = [await server.connect() for _ in range(8)]
    for connection in connections:
        await sock_send(connection, produce + SMALL * 3000)
    await until(lambda: len(server.app.direct_requests) + len(server.runner.server_state.tasks) == 8)
    for _ in range(100):
        await asyncio.sleep(0)
    assert counted(server) <= 500_000, "they leave as much for others"
    other = await server.connect()
    many_lines = raw.request(raw.PRODUCE, raw.encoded(raw.BODIES[raw.PRODUCE]).replace(b"{", b"{" + b"\n" * 20_000, 1))
    await sock_send(other, many_lines)
    gate.open.set()
    assert (await sock_read(other, lambda so_far: b"}" in so_far)).startswith(b"HTTP/1.1 200")
    answers = await asyncio.gather(
        *(sock_read(each, lambda so_far: so_far.count(b"404") > 999) for each in connections)
    )
    dropped = [answer for answer in answers if b"connection: close" in answer]
    assert 4 <= len(dropped) < 8
    assert {answer.count(b"HTTP/1.1 ") for answer in dropped} == {1}, "one that is not executed has no answer"
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    for connection in (*connections, other):
        reset(connection)
    await until(lambda: counted(server) == 0)


async def test_requests_are_not_read_while_their_answers_are_not(servers: Any, parsed: list[int]) -> None:
    server = await servers(limits=WITHOUT_READING)
    connection = await unread_connection(server)
    ours = connection_of(server)
    sending = asyncio.ensure_future(sock_send(connection, HEALTH * 4000))
    await until(lambda: bool(ours.flow.write_paused))
    for _ in range(1000):
        await asyncio.sleep(0)
    so_far = sum(parsed)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert sum(parsed) == so_far < 4000
    assert ours.flow.read_paused
    assert ours.transport.get_write_buffer_size() < 2 * 64 * 1024
    received = await sock_read(connection, lambda answers: answers.count(b"HTTP/1.1 200") == 4000)
    await sending
    assert received.count(b"HTTP/1.1 200") == 4000
    assert sum(parsed) == 4000
    connection.close()


# LineTurns.


async def test_a_few_have_their_turn_in_each_cycle_of_the_loop_first_come_first_served() -> None:
    turns, taken = LineTurns(), list[int]()

    def member(number: int) -> Callable[[], None]:
        return lambda: taken.append(number)

    members = [member(number) for number in range(3 * TURNS)]
    for each in (*members, *members):
        turns.join(each)
    for cycle in range(1, 4):
        await asyncio.sleep(0)
        assert taken == list(range(cycle * TURNS))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(taken) == 3 * TURNS, "each once"
    turns.join(members[0])
    await asyncio.sleep(0)
    assert taken[-1] == 0


async def test_turn_that_fails_takes_no_other_along() -> None:
    turns, taken, failed = LineTurns(), list[int](), list[Any]()

    def fail() -> None:
        raise LookupError

    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
    turns.join(fail)
    turns.join(lambda: taken.append(1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert taken == [1]
    assert [type(error) for error in failed] == [LookupError]


async def test_other_client_is_answered_within_a_few_cycles_of_the_loop(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await servers(limits=WITHOUT_READING)
    started: list[int] = []
    start = Connection._start_asgi_task
    cycles = [0]

    def starting(connection: Connection, cycle: Any, app: Any) -> None:
        started.append(cycles[0])
        start(connection, cycle, app)

    def count() -> None:
        cycles[0] += 1
        counting[0] = asyncio.get_running_loop().call_soon(count)

    monkeypatch.setattr(Connection, "_start_asgi_task", starting)
    counting = [asyncio.get_running_loop().call_soon(count)]
    connections = [await server.connect() for _ in range(40)]
    for connection in connections:
        await sock_send(connection, SMALL * 3000)
    await until(lambda: len(started) > 100)
    with contextlib.closing(await server.connect()) as other:
        took: list[int] = []
        for _ in range(20):
            began = cycles[0]
            await sock_send(other, HEALTH)
            assert (await sock_read(other, lambda so_far: b"}" in so_far)).startswith(b"HTTP/1.1 200")
            took.append(cycles[0] - began)
    assert any(each.pipeline for each in server.runner.server_state.connections), "the others still have requests"
    counting[0].cancel()
    assert max(took) < 12
    assert max(map(started.count, set(started))) <= TURNS + 1
    for connection in connections:
        reset(connection)
    await until(lambda: counted(server) == 0)


# A client that has sent everything.


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    "request_bytes",
    [HEALTH, raw.request(raw.PRODUCE, raw.encoded(raw.BODIES[raw.PRODUCE])), raw.request("/v1/queues.list", b"{}")],
)
async def test_client_that_half_closes_gets_all_its_answers(servers: Any, direct: bool, request_bytes: bytes) -> None:
    server = await servers(direct=direct)
    for count in (1, 3, 100):
        for rest in (b"", request_bytes[:20]):
            with contextlib.closing(await server.connect()) as connection:
                await sock_send(connection, request_bytes * count + rest)
                connection.shutdown(socket.SHUT_WR)
                received = await sock_read(connection, lambda so_far: False)
                assert received.count(b"HTTP/1.1 200") == received.count(b"HTTP/1.1 ") == count
    await until(lambda: not server.runner.server_state.connections)


@pytest.mark.parametrize("rest", [b"GET /heal", raw.request(raw.PRODUCE, b"{}")[:-1], b""])
async def test_client_that_half_closes_within_a_request_gets_no_answer(servers: Any, rest: bytes) -> None:
    server = await servers()
    with contextlib.closing(await server.connect()) as connection:
        await sock_send(connection, rest)
        connection.shutdown(socket.SHUT_WR)
        assert await sock_read(connection, lambda so_far: False) == b""
    await until(lambda: not server.runner.server_state.connections)


@pytest.mark.parametrize("direct", [True, False])
async def test_client_that_half_closes_is_leased_nothing_and_told_so(
    servers: Any, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    """Who is gone has sent the same."""
    server = await servers(direct=direct)
    await server.broker.put("own-jobs", 1)
    gate = Gate(server.app, "commit", monkeypatch)
    with contextlib.closing(await server.connect()) as connection:
        await sock_send(connection, raw.request(raw.TAKE, raw.encoded(raw.BODIES[raw.TAKE])))
        await until(lambda: gate.came == 1)
        connection.shutdown(socket.SHUT_WR)
        gate.open.set()
        received = await sock_read(connection, lambda so_far: False)
    assert received.startswith(b"HTTP/1.1 400")
    assert b'"code":"half_closed"' in received
    (item,) = await server.broker.lease("own-jobs")
    assert item.attempts == 1
    await until(lambda: not server.runner.server_state.connections)


async def test_long_poll_of_a_client_that_half_closes_ends(servers: Any) -> None:
    server = await servers(limits=msgspec.structs.replace(LIMITS, wait_seconds=3600.0))
    with contextlib.closing(await server.connect()) as connection:
        await sock_send(connection, raw.request(raw.TAKE, raw.encoded({"queue": "own-jobs", "wait": "1h"})))
        await until(lambda: len(server.app.waiting) == 1)
        connection.shutdown(socket.SHUT_WR)
        received = await sock_read(connection, lambda so_far: False)
    assert b'"code":"half_closed"' in received
    await until(lambda: not server.app.waiting and not server.runner.server_state.connections)


# A real server, and real sockets.


async def test_server_under_pipelined_requests_serves_others_and_stays_small(tmp_path: Path) -> None:
    """`benchmarks/pipelining_attack.py` is the same at full size, with the bars of latency and memory."""
    server = HttpServer(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    try:
        before = server.memory()
        attackers = []
        for _ in range(60):
            connection = socket.create_connection(("127.0.0.1", server.port))
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.send(SMALL * 14_000)
            attackers.append(connection)
        took: list[float] = []
        for _ in range(20):
            with Caller(server.port) as caller:
                began = time.monotonic()
                assert (await caller.call("queues.list"))[0] == 200
                took.append(time.monotonic() - began)
        grown = server.memory() - before
        assert sorted(took)[10] < 1.0, took
        assert grown < 64 * 1024 * 1024, f"{grown:,} bytes; all of the requests would be {60 * 14_000 * 3000:,}"
        for connection in attackers:
            reset(connection)
    finally:
        server.stop()
