"""Trouble around requests on the direct path: clients that leave, a log that raises, wrong tokens, idle connections."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import uvloop
from tests.acceptance import raw_requests as raw
from tests.acceptance.direct_server import (
    LIMITS,
    has_answer,
    sock_read,
    sock_send,
    starting_servers,
    waiting_in_store,
)
from tests.acceptance.test_server_hostile import PATIENCE_SECONDS, Gate, until

from redrive.auth import token_store
from redrive.errors import StoreUnavailable
from redrive.server import asgi, http_protocol

PUT = raw.request(raw.PRODUCE, raw.encoded(raw.BODIES[raw.PRODUCE]))
TAKE = raw.request(raw.TAKE, raw.encoded(raw.BODIES[raw.TAKE]))
BAD_END = b"no request\r\n\r\n"


class LogTo:
    """A logger whose entries a function gets."""

    def __init__(self, log: Callable[..., None]) -> None:
        self.info = self.warning = self.exception = log


@pytest.fixture
async def servers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """Starts servers, and stops them in the end."""
    async with starting_servers(monkeypatch) as start:
        yield start


@pytest.mark.parametrize(
    ("path", "body", "token", "status"),
    [
        (raw.PRODUCE, raw.BODIES[raw.PRODUCE], "admin", b"200"),
        (raw.PRODUCE, {"queue": "own-none", "items": [{"payload": "x" * 1000}]}, "admin", b"404"),
        (raw.TAKE, {"queue": "large"}, "admin", b"200"),
        (raw.TAKE, {"queue": "own-jobs", "wait": 1}, "admin", b"200"),
        (raw.COMPLETE, raw.BODIES[raw.COMPLETE], "admin", b"409"),
        (raw.PRODUCE, raw.BODIES[raw.PRODUCE], "viewer", b"403"),
        (raw.PRODUCE, raw.BODIES[raw.PRODUCE], None, b"401"),
    ],
    ids=["answered", "refused", "large answer", "lease that waits", "lease that is lost", "no right", "no token"],
)
async def test_idle_connection_keeps_nothing_of_the_request_that_was_answered(
    servers: Any, path: str, body: Any, token: str | None, status: bytes
) -> None:
    server = await servers(tokens=True)
    server.runner.config.timeout_keep_alive = PATIENCE_SECONDS
    await server.broker.create_queue("large", max_payload_size=1_000_000)
    await server.broker.put("large", "x" * 300_000)
    request = raw.request(path, raw.encoded(body), token=token)
    for given, own in server.tokens.items():
        request = request.replace(given, own)
    connection = await server.connect()
    await sock_send(connection, request)
    assert (await sock_read(connection, has_answer)).startswith(b"HTTP/1.1 " + status)
    await until(lambda: not server.is_busy)
    (protocol,) = server.runner.server_state.connections
    names = ("body", "headers", "call", "store_call", "caller", "broker")
    assert [name for name in names if getattr(protocol.cycle, name, None)] == []
    assert vars(protocol)["_running"] is None
    connection.close()


async def test_wait_of_a_client_that_left_another_request_behind_it_ends(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await servers(limits=msgspec.structs.replace(LIMITS, wait_seconds=3600.0))
    gate = Gate(server.app, "commit", monkeypatch)
    connection = await server.connect()
    await sock_send(connection, raw.request(raw.TAKE, raw.encoded({"queue": "own-jobs", "wait": 3600})))
    await until(lambda: gate.came == 1)
    await sock_send(connection, PUT + BAD_END)
    await until(lambda: not server.runner.server_state.connections)
    gate.open.set()
    await until(lambda: not server.is_busy)
    assert (await server.broker.stats("own-jobs")).pending == 0
    connection.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_result_for_a_client_that_left_another_request_behind_it_is_no_error(
    monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(asgi, "_log", LogTo(lambda event, **fields: logged.append(event)))

    async def leave() -> None:
        async with starting_servers(monkeypatch) as servers:
            server = await servers()
            connection, gate = await waiting_in_store(server, monkeypatch, raw.PRODUCE)
            await sock_send(connection, PUT + BAD_END)
            await until(lambda: not server.runner.server_state.connections)
            gate.open.set()
            await until(lambda: not server.is_busy)
            assert (await server.broker.stats("own-jobs")).pending == 1
            connection.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(leave())
    assert logged == []


async def test_log_that_raises_breaks_one_request_and_no_other_of_its_transaction(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await servers()
    logged: list[str] = []

    def fail(*arguments: Any) -> Any:
        raise StoreUnavailable("sqlite", "gone")

    def log(event: str, **fields: Any) -> None:
        logged.append(event)
        if len(logged) in (2, 3):  # the second request, and the entry about that
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(server.broker.core.store, "commit", fail)
    monkeypatch.setattr(server.app, "_is_news", lambda event: True)
    monkeypatch.setattr(asgi, "_log", LogTo(log))
    first, gate = await waiting_in_store(server, monkeypatch, raw.PRODUCE)
    others = [await server.connect() for _ in range(3)]
    for connection in others:
        await sock_send(connection, PUT)
    await until(lambda: len(server.app.direct_requests) == 4)
    gate.open.set()
    answers = [await sock_read(connection, has_answer) for connection in (first, *others)]
    assert sorted(answer[:12] for answer in answers) == [b"", *[b"HTTP/1.1 503"] * 3]
    assert logged == ["store_refused"] * 2 + ["request_internal_error"] + ["store_refused"] * 2
    assert not server.is_busy
    for connection in (first, *others):
        connection.close()


@pytest.mark.parametrize("direct", [True, False])
async def test_client_whose_end_has_arrived_unread_gets_no_lease(
    servers: Any, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    server = await servers(direct=direct)
    await server.broker.put("own-jobs", 1)
    connection = await server.connect()
    is_gone = http_protocol.Connection.is_gone
    asked: list[bool] = []

    def leave_and_ask(protocol: http_protocol.Connection, cycle: Any) -> bool:
        """The loop reads nothing between the two."""
        connection.close()
        end = select.poll()
        end.register(protocol.transport.get_extra_info("socket"), select.POLLRDHUP)
        assert end.poll(PATIENCE_SECONDS * 1000)
        asked.append(is_gone(protocol, cycle))
        return asked[-1]

    monkeypatch.setattr(http_protocol.Connection, "is_gone", leave_and_ask)
    await sock_send(connection, TAKE)
    await until(lambda: len(asked) == 1 and not server.is_busy)
    assert asked == [True]
    (item,) = await server.broker.lease("own-jobs")
    assert item.attempts == 1


async def test_wrong_token_is_looked_up_once(servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await servers(tokens=True)
    read: list[None] = []
    list_all = token_store.list_all
    monkeypatch.setattr(token_store, "list_all", lambda: read.append(None) or list_all())  # type: ignore[func-returns-value]
    wrong = b"authorization: Bearer redrive_00000009_" + b"0" * 48
    answer = await server.answer(raw.request(raw.TAKE, raw.encoded(raw.BODIES[raw.TAKE]), wrong))
    assert answer.startswith(b"HTTP/1.1 401")
    assert len(read) == 1
