"""Redrive servers in a thread of the tests' own process: real HTTP over TCP, and a place of its own for each test."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn

from redrive import AsyncBroker
from redrive.clock import Clock, Instant
from redrive.server.asgi import Server
from redrive.server.broker_pool import BrokerPool
from redrive.server.routes import store_api

_SLICE_SECONDS = 0.005


class Mounts:
    """One listener. Servers are mounted below it, each under a path, and taken away again."""

    def __init__(self, **options: Any) -> None:
        """Options are those of uvicorn."""
        self._scheme = "https" if "ssl_certfile" in options else "http"
        self._mounted: dict[str, Server] = {}
        self._openers: dict[str, Callable[[str], AsyncBroker]] = {}
        self._numbers = itertools.count(1)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1, **options
        )
        self._uvicorn = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()
        self._ready = threading.Event()
        while not self._uvicorn.started and self._thread.is_alive():
            self._ready.wait(0.001)

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._uvicorn.serve(sockets=[self._socket])

        with asyncio.Runner(loop_factory=self._uvicorn.config.get_loop_factory()) as runner:
            runner.run(serve())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        place = scope["path"].split("/", 2)[1]
        server = self._mounted.get(place)
        if server is None:
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await server({**scope, "root_path": f"/{place}"}, receive, send)

    def mount(self, open_one: Callable[[str], AsyncBroker], *, trusts_clock: bool = True) -> str:
        """Serve brokers, opened by namespace. Gives the URL."""
        place = f"server{next(self._numbers)}"
        self._openers[place] = open_one
        self._mounted[place] = _server(open_one, trusts_clock)
        return f"{self._scheme}://127.0.0.1:{self.port}/{place}"

    def restart(self, url: str) -> None:
        """Another server takes the place of this one, and knows nothing of what it did."""
        self.unmount(url)
        place = url.rpartition("/")[2]
        self._mounted[place] = _server(self._openers[place], trusts_clock=True)

    def unmount(self, url: str) -> None:
        """Close a server and its brokers."""
        server = self._mounted.pop(url.rpartition("/")[2])
        assert self._loop is not None

        async def end() -> None:
            server.stop()
            await server.brokers.close()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(120)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._uvicorn.server_state.connections)

    def drop_connections(self) -> None:
        """Close those on which nothing is asked now, as a server does with idle ones."""
        assert self._loop is not None

        async def drop() -> None:
            for connection in tuple(self._uvicorn.server_state.connections):
                connection.timeout_keep_alive_handler()  # type: ignore[union-attr]

        asyncio.run_coroutine_threadsafe(drop(), self._loop).result(120)

    def close(self) -> None:
        """Stop listening."""
        for place in tuple(self._mounted):
            self.unmount(place)
        self._uvicorn.should_exit = True
        self._thread.join(120)
        self._socket.close()


def _server(open_one: Callable[[str], AsyncBroker], trusts_clock: bool) -> Server:
    return Server(BrokerPool(open_one), store_api.routes(trusts_clock=trusts_clock))


class Uncounted:
    """A clock of a test, for threads of a server: a test that waits until somebody waits does not mean those."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> Instant:
        return self._clock.now()

    def wait(self, event: threading.Event, until: Instant | None) -> None:
        while (until is None or self.now() < until) and not event.wait(_SLICE_SECONDS):
            pass
