"""A server that stops while requests are on the direct path: each is answered, and no lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from tests.acceptance import raw_requests as raw
from tests.acceptance.direct_server import SHORT_SECONDS, sock_read, sock_send, starting_servers, waiting_in_store
from tests.acceptance.test_server_hostile import Gate, until

from redrive.contract.item_calls import ReturnLease


@pytest.fixture
async def servers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """Starts servers, and stops them in the end."""
    async with starting_servers(monkeypatch) as start:
        yield start


async def test_lease_for_a_client_that_is_gone_is_returned_before_the_server_ends(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await servers()
    await server.broker.put("own-jobs", 1)
    connection, gate = await waiting_in_store(server, monkeypatch, raw.TAKE)
    store, committed = server.broker.core.store, list[Any]()
    commit = store.commit

    def recorded(calls: Any, *now: Any) -> Any:
        committed.extend(calls)
        return commit(calls, *now)

    monkeypatch.setattr(store, "commit", recorded)
    close, closing = server.app.close, list[None]()
    monkeypatch.setattr(server.app, "close", lambda: closing.append(None) or close())  # type: ignore[func-returns-value]
    connection.close()
    await until(lambda: not server.runner.server_state.connections)
    server.runner.should_exit = True
    await until(lambda: closing == [None])
    for _ in range(1000):  # what it does before it waits
        await asyncio.sleep(0)
    gate.open.set()
    assert await server.serving
    assert [type(call) for call in committed] == [ReturnLease]


async def test_server_that_stops_before_the_store_answers_says_that_the_outcome_is_unknown(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await servers(direct=False)
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
