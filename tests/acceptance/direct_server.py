"""Servers on memory for tests of the direct path, with and without it, and ways to send them bytes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.acceptance import raw_requests as raw
from tests.acceptance.test_server_hostile import Gate, until

from redrive.auth import token_store
from redrive.auth.principal import TOKENS_NAMESPACE
from redrive.server import authentication, http_protocol
from redrive.server.application import application
from redrive.server.http_server import HttpRunner, listen
from redrive.server.request_limits import Limits
from redrive.testing.fake_clock import FakeClock

ANSWER_SECONDS = 20.0
IDLE_SECONDS = 0.5
"""After a request that has no answer, or makes the parser ignore what comes behind it."""
SHORT_SECONDS = 0.1
"""For what does not arrive: longer than any of it takes here, and no longer."""
LIMITS = Limits(max_body_bytes=30_000, wait_seconds=SHORT_SECONDS, body_seconds=SHORT_SECONDS)
LAST = raw.request("/health/live", b"", b"connection: close", method=b"GET")
ROLES: dict[str, dict[str, Any]] = {
    "admin": {"given_roles": ["admin"]},
    "producer": {"given_roles": ["producer"]},
    "consumer": {"given_roles": ["consumer"]},
    "limited": {"given_roles": ["consumer"], "queues": ["own-*"]},
    "viewer": {"given_roles": ["viewer"]},
    "elsewhere": {"given_roles": ["admin"], "namespaces": ["team"]},
}


class Running:
    """A server on memory, with a way to send it bytes."""

    def __init__(
        self, *, direct: bool, clock: FakeClock | None, limits: Limits, stopping: Callable[[], None] | None
    ) -> None:
        self.app = application("memory://", limits=limits, maintenance=False, clock=clock)
        if not direct:
            self.app.direct_routes.clear()
        listener = listen("127.0.0.1", 0)
        self.address = listener.getsockname()
        self.runner = HttpRunner(self.app, listener, 5, stopping=stopping)
        self.runner.config.timeout_keep_alive = IDLE_SECONDS  # type: ignore[assignment]
        self.tokens: dict[bytes, bytes] = {}
        self.lease = raw.LEASE.encode()

    async def start(self, *, tokens: bool = False) -> None:
        self.broker = await self.app.brokers.at("default")
        for name in ("own-jobs", "own-next", "other"):
            await self.broker.create_queue(name, max_payload_size=4096)
        await self.broker.create_queue("own-full", max_size=1)
        await self.broker.put("own-full", 1)
        await self.broker.create_queue("own-paused")
        await self.broker.pause_queue("own-paused")
        if tokens:
            broker = await self.app.brokers.at(TOKENS_NAMESPACE)
            for role, given in ROLES.items():
                options = {key: value for key, value in given.items() if key != "given_roles"}
                made = await broker.run_flow(
                    token_store.create(broker.core.clock, role, given["given_roles"], created_by="test", **options)
                )
                self.tokens[raw.TOKENS[role].encode()] = made.text.encode()
        await self.app.asks_for_tokens()
        self.serving = asyncio.ensure_future(self.runner.run_until_stopped())
        await until(lambda: self.runner.started)

    async def stop(self) -> None:
        self.runner.should_exit = True
        assert await self.serving
        assert not self.app.direct_requests

    @property
    def is_busy(self) -> bool:
        """Whether a request is not done yet. One whose client is gone may have a lease to return."""
        return bool(self.runner.server_state.tasks or self.app.direct_requests)

    async def take_lease(self) -> None:
        """The lease that the next request may name."""
        await self.broker.put("own-jobs", 0)
        (lease,) = await self.broker.lease("own-jobs", worker="before")
        self.lease = lease.token.encode()

    async def connect(self) -> socket.socket:
        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, self.address)
        return connection

    async def answer(self, request: bytes) -> bytes:
        """All that a connection brings: the answer to a request, and to a last one that is sent after it."""
        for given, own in self.tokens.items():
            request = request.replace(given, own)
        # Only as a text of JSON: of a number, the error would depend on the digits.
        request = request.replace(b'"%b"' % raw.LEASE.encode(), b'"%b"' % self.lease)
        with contextlib.closing(await self.connect()) as connection:
            received = b""
            with contextlib.suppress(ConnectionError):
                await sock_send(connection, request)
                received = await sock_read(connection, has_head if request.startswith(b"HEAD") else has_answer)
                await until(lambda: not self.is_busy)  # those behind it are answered too
                await sock_send(connection, LAST)
                received += await sock_read(connection, lambda so_far: False)
            return received


async def sock_send(connection: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, data)


async def sock_read(connection: socket.socket, is_enough: Callable[[bytes], bool]) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(ANSWER_SECONDS):
            while not is_enough(received):
                part = await asyncio.get_running_loop().sock_recv(connection, 1 << 16)
                if not part:
                    break
                received += part
    return received


def has_head(received: bytes) -> bool:
    return b"\r\n\r\n" in received


def has_answer(received: bytes) -> bool:
    head, end, body = received.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    if not end:
        return False
    length = re.search(rb"content-length: (\d+)", head)
    return length is None or len(body) >= int(length[1])


@contextlib.asynccontextmanager
async def starting_servers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """A function that starts servers, which are stopped in the end."""
    # Two servers in one process do not restore the handlers of signals that both have set.
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", SHORT_SECONDS)
    monkeypatch.setattr(authentication, "PENALTY_SECONDS", 0.0)
    monkeypatch.setattr(authentication, "READ_AGAIN_SECONDS", 1e9)
    running: list[Running] = []

    async def start(
        *,
        direct: bool = True,
        tokens: bool = False,
        clock: FakeClock | None = None,
        limits: Limits = LIMITS,
        stopping: Callable[[], None] | None = None,
    ) -> Running:
        running.append(Running(direct=direct, clock=clock, limits=limits, stopping=stopping))
        await running[-1].start(tokens=tokens)
        return running[-1]

    yield start
    for each in running:
        if not each.serving.done():
            await each.stop()
    for number, handler in before.items():
        signal.signal(number, handler)


async def waiting_in_store(server: Running, monkeypatch: pytest.MonkeyPatch, path: str) -> tuple[socket.socket, Gate]:
    """A connection whose request the store is executing."""
    gate = Gate(server.app, "commit", monkeypatch)
    connection = await server.connect()
    await sock_send(connection, raw.request(path, raw.encoded(raw.BODIES[path])))
    await until(lambda: gate.came == 1)
    assert server.app.direct_requests
    return connection, gate


def reset(connection: socket.socket) -> None:
    """Leave without reading any response. After a plain close, the server may have a client that still reads."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


async def unread_connection(server: Running) -> socket.socket:
    """One whose answers soon find no room in the buffers of the machine."""
    server.runner._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, server.address)
    await until(lambda: len(server.runner.server_state.connections) == 1)
    return connection
