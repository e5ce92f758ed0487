"""The server on uvicorn, until a signal arrives. Without tokens it may listen on this machine only."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from ipaddress import ip_address
from types import FrameType

import uvicorn

from redrive.errors import InvalidInput
from redrive.server.asgi import Server
from redrive.server.http_protocol import Connection
from redrive.telemetry import events

KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle connection stays open. Longer than in clients and proxies, so that they close first."""
BACKLOG = 2048
_SIGNAL_SECONDS = 0.1
"""Seconds after which a second signal is noticed, as in uvicorn."""

_log = events.logger("redrive.server")


class HttpRunner(uvicorn.Server):
    """One server on one address.

    At the first signal it grants no new leases and answers long polls; running requests may end within `stop_seconds`.
    After that, requests whose results are missing are answered with `OutcomeUnknown`. At the second signal it stops
    immediately, and does not wait for the store.

    `stopping` is called at the first signal. With it, the caller closes the application after everything that uses its
    brokers has ended; without it, this class closes the application.
    """

    def __init__(
        self,
        app: Server,
        listener: socket.socket,
        stop_seconds: float,
        *,
        stopping: Callable[[], None] | None = None,
    ) -> None:
        self._app = app
        self._stopping = stopping
        self._listener = listener
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="on" if stopping is None else "off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=max(1, round(stop_seconds)),
            )
        )

    async def run_until_stopped(self) -> bool:
        """Serve until stopped. Returns whether everything finished."""
        await self.serve(sockets=[self._listener])
        _log.info("server_stopped", requests=self.server_state.total_requests)
        return not self.force_exit

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer pending long polls, then wait for connections."""
        running = len(self.server_state.tasks) + len(self._app.direct_requests)
        _log.info("server_stopping", waiting=len(self._app.waiting), requests=running)
        self._app.stop()
        if self._stopping is not None:
            self._stopping()
        ending = asyncio.ensure_future(super().shutdown(sockets))
        try:
            while not (ending.done() or self.force_exit):
                await asyncio.wait({ending}, timeout=_SIGNAL_SECONDS)
            if ending.done():
                await ending
        finally:
            ending.cancel()
            self._app.abandon_direct_requests()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: stop; at the second one, stop immediately."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket on that address. Raises `InvalidInput` with the cause if that fails."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
    except OSError as error:
        raise InvalidInput(f"{host!r:.80} is not an address of this machine: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidInput(_problem(error, host, port)) from None
    listener.setblocking(False)
    return listener


def _problem(error: OSError, host: str, port: int) -> str:
    where = f"{host or 'every address'}, port {port}"
    if error.errno == errno.EADDRINUSE:
        return f"another program listens on {where} already; stop it, or choose another with --port"
    if error.errno == errno.EACCES:
        return f"this user may not listen on {where}; choose a port from 1024 on with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine; 127.0.0.1 is for programs on it, 0.0.0.0 for all"
    return f"cannot listen on {where}: {error.strerror}"


def may_bind(host: str, *, has_tokens: bool, allow_anyone: bool = False) -> None:
    """Raise if everyone who can reach the machine could read and change everything."""
    if has_tokens or allow_anyone or is_loopback(host):
        return
    raise InvalidInput(
        f"on {host or 'every address'} everyone who can reach this machine could read and change everything; make a "
        f"token on its store first (redrive token create NAME --role admin, with the same --url), listen on 127.0.0.1, "
        f"or say --allow-anyone"
    )


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can connect to that address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
