"""Connections: what arrives slowly is not waited for, and what is there at once is not waited for either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redrive.server import http_protocol
from redrive.server.application import application
from redrive.server.http_server import HttpRunner, listen
from redrive.server.long_poll import start_eagerly

PATIENCE_SECONDS = 120.0
IDLE_SECONDS = 0.3


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(http_protocol, "MAX_CONNECTIONS", 5)
    listener = listen("127.0.0.1", 0)
    app = application("memory://", maintenance=False)
    runner = HttpRunner(app, listener, 5)
    runner.config.timeout_keep_alive = IDLE_SECONDS  # type: ignore[assignment]
    serving = asyncio.ensure_future(runner.run_until_stopped())
    while not runner.started:
        await asyncio.sleep(0.001)
    yield listener.getsockname()[1]
    runner.should_exit = True
    assert await serving


async def ended(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await reader.read()


@pytest.mark.parametrize("start", [b"", b"POST /v1/queues.list HTTP/1.1\r\nhost: 127"])
async def test_head_that_does_not_come_ends_the_connection(port: int, start: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(start)
    assert await ended(reader) == b""
    writer.close()


async def test_second_head_that_does_not_come_ends_the_connection_too(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    assert b"200" in await reader.readuntil(b"\r\n\r\n")
    writer.write(b"GET /health")
    await ended(reader)
    writer.close()


async def test_connection_that_is_idle_for_too_long_is_ended(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head
        await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
    assert await ended(reader) == b""
    writer.close()


async def test_connections_beyond_the_limit_are_ended(port: int) -> None:
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
    for _, writer in opened:
        writer.write(b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    for reader, _ in opened:
        await reader.readuntil(b"\r\n\r\n")
    reader, one_more = await asyncio.open_connection("127.0.0.1", port)
    one_more.write(b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readuntil(b"\r\n\r\n")
    for _, writer in [*opened, (reader, one_more)]:
        writer.close()


async def test_what_is_there_at_once_is_given_at_once() -> None:
    async def there() -> int:
        return 7

    assert start_eagerly(there()) == (7, None)


async def test_what_is_not_there_can_be_awaited() -> None:
    event = asyncio.Event()

    async def later() -> int:
        await event.wait()
        await asyncio.sleep(0)
        return 7

    nothing, rest = start_eagerly(later())
    assert nothing is None
    assert rest is not None
    asyncio.get_running_loop().call_soon(event.set)
    assert await rest == 7


async def test_what_is_awaited_hears_that_it_is_cancelled() -> None:
    heard: list[str] = []

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async def waits(rest: Any) -> None:
        await rest

    _, rest = start_eagerly(never())
    task = asyncio.ensure_future(waits(rest))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == ["cancelled"]


async def test_error_comes_through() -> None:
    async def wrong(soon: bool) -> None:
        if not soon:
            await asyncio.sleep(0)
        raise LookupError

    with pytest.raises(LookupError):
        start_eagerly(wrong(soon=True))
    _, rest = start_eagerly(wrong(soon=False))
    assert rest is not None
    with pytest.raises(LookupError):
        await rest


async def test_what_is_no_coroutine_is_awaited_as_it_is() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_result(7)
    nothing, rest = start_eagerly(future)
    assert nothing is None
    assert rest is not None
    assert await rest == 7
