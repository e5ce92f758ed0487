"""A server that stops while requests are on the direct path: each is answered, and no lease is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from tests.acceptance import raw_requests as raw
from tests.acceptance.direct_server import (
    SHORT_SECONDS,
    Running,
    reset,
    sock_read,
    sock_send,
    starting_servers,
    waiting_in_store,
)
from tests.acceptance.test_server_hostile import PATIENCE_SECONDS, Gate, until

from redrive.contract.item_calls import ReturnLease
from redrive.server import asgi


@pytest.fixture
async def servers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """Starts servers, and stops them in the end."""
    async with starting_servers(monkeypatch) as start:
        yield start


def recorded(server: Running, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that reach the store from now on."""
    store, committed = server.broker.core.store, list[Any]()
    commit = store.commit

    def record(calls: Any, *now: Any) -> Any:
        committed.extend(calls)
        return commit(calls, *now)

    monkeypatch.setattr(store, "commit", record)
    return committed


async def test_lease_for_a_client_that_is_gone_is_returned_before_the_server_ends(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "UNANSWERED_SECONDS", PATIENCE_SECONDS)
    server = await servers()
    await server.broker.put("own-jobs", 1)
    connection, gate = await waiting_in_store(server, monkeypatch, raw.TAKE)
    committed = recorded(server, monkeypatch)
    close, closing = server.app.close, list[None]()
    monkeypatch.setattr(server.app, "close", lambda: closing.append(None) or close())  # type: ignore[func-returns-value]
    reset(connection)
    await until(lambda: not server.runner.server_state.connections)
    server.runner.should_exit = True
    await until(lambda: closing == [None])
    for _ in range(1000):  # what it does before it waits
        await asyncio.sleep(0)
    gate.open.set()
    assert await server.serving
    assert [type(call) for call in committed] == [ReturnLease]


@pytest.mark.parametrize("direct", [True, False])
async def test_server_that_stops_before_the_store_answers_says_that_the_outcome_is_unknown(
    servers: Any, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    server = await servers(direct=direct)
    server.runner.config.timeout_graceful_shutdown = SHORT_SECONDS
    gate = Gate(server.app, "commit", monkeypatch)
    connection = await server.connect()
    await sock_send(connection, raw.request(raw.PRODUCE, raw.encoded(raw.BODIES[raw.PRODUCE])))
    await until(lambda: gate.came == 1)
    server.runner.should_exit = True
    answer = await sock_read(connection, lambda received: False)
    connection.close()
    gate.open.set()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\ncontent-type: application/json\r\n" in head
    assert msgspec.json.decode(body)["code"] == "outcome_unknown"


async def test_requests_in_flight_are_answered_before_the_server_ends(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await servers()
    connection, gate = await waiting_in_store(server, monkeypatch, raw.PRODUCE)
    server.runner.should_exit = True
    await until(lambda: server.app.stopping.is_set())
    await asyncio.sleep(0)
    gate.open.set()
    answer = await sock_read(connection, lambda received: False)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"\r\nconnection: close\r\n" in answer
    assert await server.serving
    connection.close()


@pytest.mark.parametrize("path", [raw.PRODUCE, raw.TAKE])
async def test_no_request_behind_one_whose_outcome_is_unknown_is_carried_out(
    servers: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    server = await servers()
    await server.broker.put("own-jobs", 1)
    server.runner.config.timeout_graceful_shutdown = SHORT_SECONDS
    connection, gate = await waiting_in_store(server, monkeypatch, path)
    (protocol,) = server.runner.server_state.connections
    await sock_send(connection, raw.request(raw.PRODUCE, raw.encoded(raw.BODIES[raw.PRODUCE])))
    await until(lambda: protocol.flow.read_paused)
    server.runner.should_exit = True
    answer = await sock_read(connection, lambda received: False)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"outcome_unknown" in answer
    assert b"\r\nconnection: close\r\n" in answer
    assert gate.came == 1
    gate.open.set()
    connection.close()
    assert await server.serving
    assert vars(server.app.bodies)["_all"] == 0


async def test_lease_that_comes_after_its_request_was_answered_is_returned(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "UNANSWERED_SECONDS", PATIENCE_SECONDS)
    server = await servers()
    await server.broker.put("own-jobs", 1)
    server.runner.config.timeout_graceful_shutdown = SHORT_SECONDS
    connection, gate = await waiting_in_store(server, monkeypatch, raw.TAKE)
    committed = recorded(server, monkeypatch)
    server.runner.should_exit = True
    answer = await sock_read(connection, lambda received: False)
    connection.close()
    assert b"outcome_unknown" in answer
    gate.open.set()
    assert await server.serving
    assert [type(call) for call in committed] == [ReturnLease]


async def test_server_whose_store_hangs_waits_a_while_for_its_result_and_then_closes_the_brokers(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "UNANSWERED_SECONDS", SHORT_SECONDS)
    server = await servers()
    connection, gate = await waiting_in_store(server, monkeypatch, raw.PRODUCE)
    connection.close()
    close, closing = server.app.brokers.close, list[None]()
    monkeypatch.setattr(server.app.brokers, "close", lambda: closing.append(None) or close())
    server.runner.should_exit = True
    await until(lambda: closing == [None])
    gate.open.set()
    assert await server.serving


async def test_second_signal_ends_the_wait_for_a_store_that_hangs(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await servers()
    server.runner.config.timeout_graceful_shutdown = SHORT_SECONDS
    connection, gate = await waiting_in_store(server, monkeypatch, raw.PRODUCE)
    server.runner.handle_exit(signal.SIGTERM, None)
    assert b"outcome_unknown" in await sock_read(connection, lambda received: False)
    connection.close()
    server.runner.handle_exit(signal.SIGTERM, None)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert not await server.serving
    assert server.app.direct_requests
    gate.open.set()
    await server.app.close()
    assert not server.app.direct_requests


async def test_requests_are_answered_before_what_else_uses_the_brokers_has_ended(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with workers of redrive.toml, which may take longer than requests: the application is closed after them."""
    server = await servers(stopping=lambda: None)
    server.runner.config.timeout_graceful_shutdown = SHORT_SECONDS
    connection, gate = await waiting_in_store(server, monkeypatch, raw.PRODUCE)
    server.runner.should_exit = True
    assert b"outcome_unknown" in await sock_read(connection, lambda received: False)
    connection.close()
    assert await server.serving
    gate.open.set()
    await server.app.close()
    assert not server.app.direct_requests
