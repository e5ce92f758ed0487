"""A proxy of the kind that `http_proxy` and `https_proxy` name: it is told where to, in the request or by CONNECT."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from urllib.parse import urlsplit


class ForwardingProxy:
    """Takes everything to one port of this machine, whatever host it is told. Runs in a thread until it is closed."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.asked: list[str] = []
        """The first lines of what it was asked; of a tunnel only that of the CONNECT."""
        self.refuses = False
        """Whether it opens no tunnel."""
        self._cut: Callable[[], None] | None = None
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever, name="forwarding", daemon=True)
        self._thread.start()

    def cut_next_answer(self, then: Callable[[], None] = lambda: None) -> None:
        """Whoever is answered next is not: instead `then` happens, and the connection is closed."""
        self._cut = then

    def close(self) -> None:
        """Stop, and let go of whoever is connected."""

        async def end() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.partition(b"\r\n")[0].decode())
            is_tunnel = head.startswith(b"CONNECT ")
            if is_tunnel and self.refuses:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
            else:
                answers, server = await asyncio.open_connection("127.0.0.1", self._server_port)
                if is_tunnel:
                    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                else:
                    server.write(_without_host(head))
                asks = asyncio.ensure_future(self._ask(reader, server, is_tunnel))
                await self._answer(answers, writer)
                asks.cancel()
        for each in (writer, server):
            if each is not None:
                each.close()

    async def _ask(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, is_tunnel: bool) -> None:
        while data := await reader.read(65536):
            if not is_tunnel and data.startswith(b"POST "):
                self.asked.append(data.partition(b"\r\n")[0].decode())
                data = _without_host(data)
            server.write(data)
        server.close()

    async def _answer(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await answers.read(65536):
            if self._cut is not None:
                then, self._cut = self._cut, None
                await self._loop.run_in_executor(None, then)
                return
            writer.write(data)


def _without_host(head: bytes) -> bytes:
    """A request as a server gets it: a path where the proxy was told the whole address."""
    method, _, rest = head.partition(b" ")
    target, _, rest = rest.partition(b" ")
    return b"%b %b %b" % (method, urlsplit(target).path, rest)
