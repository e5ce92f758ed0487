"""A proxy between a client and a server that delays, resets, swallows, and cuts at a statement."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Any

LISTENER = ("127.0.0.1", 0)
_COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
"""What the server says when it has committed."""
_FAREWELL = b"SFATAL\x00VFATAL\x00C57P01\x00Mterminating connection due to administrator command\x00\x00"
FAREWELL_SECONDS = 0.05
_PLEASE_ENCRYPT = (80877103, 80877104)
"""What a client may ask before its first message: TLS, or GSSAPI."""


class Proxy:
    """Forwards to a port of this machine, in a thread of its own, until it is closed. Speaks PostgreSQL.

    With `tls`, its clients speak TLS.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._server_port = port
        self.delay = 0.0
        """Seconds that whatever is sent takes longer, each way."""
        self._dark = False
        self._links: set[_Link] = set()
        self._cut_at: tuple[str, bool, bool] | None = None
        self.cuts = 0
        """How many connections were cut at a statement."""
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, *LISTENER, ssl=tls))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()

    def reset(self) -> int:
        """Cut every connection, on both sides, without a goodbye. Gives how many there were."""
        return self._in_loop(lambda: sum(link.cut() for link in tuple(self._links)))

    def go_dark(self) -> None:
        """Swallow everything, and tell nobody: neither side hears of the other again, not even that it is gone."""

        def swallow() -> None:
            self._dark = True
            for link in self._links:
                link.dark = True

        self._in_loop(swallow)

    def light_up(self) -> None:
        """New connections are served again. For those that were open it is too late."""
        self._dark = False

    def cut_at(self, statement: str, *, forward: bool = False, farewell: bool = False) -> None:
        """Cut the next connection that sends a statement which begins like this, once.

        With `forward` the server gets it, and the connection is cut when the server has committed: only the answer is
        lost. Without, the server gets what was sent before, and not this. With `farewell` the client hears as much as
        of a server that is told to stop in that moment: that it has committed, that it ends the connection, and no end
        of the transaction; and a moment later the connection is gone.
        """
        self._cut_at = (statement, forward or farewell, farewell)

    def close(self) -> None:
        """Cut what is open, and stop."""
        self._in_loop(self._server.close)
        self.reset()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _in_loop(self, work: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(120)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer, self.messages())
        link.dark = self._dark
        self._links.add(link)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            if link.dark:
                await self._forward(link, reader, writer)
                return
            try:
                server_reader, link.server = await asyncio.open_connection("127.0.0.1", self._server_port)
            except OSError:
                link.cut()
                return
            link.dark = self._dark
            await asyncio.gather(
                self._forward(link, reader, link.server), self._forward(link, server_reader, writer, answers=True)
            )
        if not link.dark:
            link.cut()
            self._links.discard(link)

    async def _forward(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        while data := await reader.read(65536):
            if self.delay:
                await asyncio.sleep(self.delay)
            if link.dark:
                continue
            writer.write(self._answered(link, data) if answers else self._asked(link, data))
            await writer.drain()
            if link.over:
                self.cuts += not link.ending
                link.ending = True
                self._loop.call_later(FAREWELL_SECONDS if link.farewell else 0, link.cut)
                return
        if not link.dark and writer.can_write_eof():
            writer.write_eof()

    def _asked(self, link: _Link, data: bytes) -> bytes:
        """What of a client's messages the server gets now: whole ones."""
        forwarded = b""
        for message, statement in link.messages.read(data):
            if not link.over and self._cut_at is not None and statement.startswith(self._cut_at[0]):
                (_, link.deaf, link.farewell), self._cut_at = self._cut_at, None
                link.over = not link.deaf
            if not link.over:
                forwarded += message
        return forwarded

    def _answered(self, link: _Link, data: bytes) -> bytes:
        if not link.deaf:
            return data
        link.unheard += data
        link.over = self.has_happened(link.unheard)
        if link.over and link.farewell:
            heard, _, _ = link.unheard.partition(_COMMITTED)
            return heard + _COMMITTED + b"E" + struct.pack("!I", len(_FAREWELL) + 4) + _FAREWELL
        return b""

    def messages(self) -> Any:
        """What finds the messages of one client."""
        return _Messages()

    def has_happened(self, answers: bytes) -> bool:
        """Whether the server says that it did what it was asked for."""
        return _COMMITTED in answers


class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, client: asyncio.StreamWriter, messages: Any) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.messages = messages
        self.dark = False
        self.deaf = False
        """Whether the client no longer gets answers."""
        self.farewell = False
        self.unheard = b""
        self.over = False
        self.ending = False

    def cut(self) -> bool:
        for writer in (self.client, self.server):
            if writer is not None and not writer.transport.is_closing():
                with contextlib.suppress(OSError):
                    found: socket.socket = writer.get_extra_info("socket")
                    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
        return True


class _Messages:
    """The messages of a client, each with the statement that it asks the server to run, if it does."""

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False
        self._statements: dict[bytes, bytes] = {}

    def read(self, data: bytes) -> list[tuple[bytes, str]]:
        self._rest += data
        found = []
        while (size := self._size()) and len(self._rest) >= size:
            message, self._rest = self._rest[:size], self._rest[size:]
            found.append((message, self._statement(message).decode(errors="replace").strip()))
        return found

    def _size(self) -> int:
        """The size of the next message; 0 where that cannot be known yet. The first ones have no letter in front."""
        letter = int(self._begun)
        if len(self._rest) < letter + 4:
            return 0
        size: int = struct.unpack_from("!I", self._rest, letter)[0]
        return letter + size

    def _statement(self, message: bytes) -> bytes:
        if not self._begun:
            self._begun = struct.unpack_from("!I", message, 4)[0] not in _PLEASE_ENCRYPT
            return b""
        match message[:1]:
            case b"P":  # parse: a name, a text
                name, text, _ = message[5:].split(b"\0", 2)
                self._statements[name] = text
            case b"B":  # bind: a portal, the name of a statement
                _, name, _ = message[5:].split(b"\0", 2)
                return self._statements.get(name, b"")
            case b"Q":
                return message[5:].rstrip(b"\0")
        return b""


class RedisProxy(Proxy):
    """The same for a client of Redis: a statement is a command, and any answer to it says that it happened."""

    def messages(self) -> Any:
        return _Commands()

    def has_happened(self, answers: bytes) -> bool:
        return bool(answers)


class _Commands:
    """The commands of a client, each as its first words."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> list[tuple[bytes, str]]:
        self._rest += data
        found = []
        while (command := self._next()) is not None:
            message, words = command
            self._rest = self._rest[len(message) :]
            found.append((message, b" ".join(words[:3]).decode(errors="replace")))
        return found

    def _next(self) -> tuple[bytes, list[bytes]] | None:
        """The next whole command: *COUNT, and each part as $SIZE and its bytes, all ended by CRLF."""
        count, position = self._number(0)
        words: list[bytes] = []
        while position and len(words) < count:
            size, position = self._number(position)
            end = position + size + 2
            if not position or len(self._rest) < end:
                return None
            words.append(self._rest[position : end - 2])
            position = end
        return (self._rest[:position], words) if position else None

    def _number(self, position: int) -> tuple[int, int]:
        """The number on the line that begins here, and where the next line begins; 0 where it is not whole yet."""
        end = self._rest.find(b"\r\n", position)
        return (int(self._rest[position + 1 : end]), end + 2) if end > 0 else (0, 0)


class HttpProxy(Proxy):
    """The same for a client of HTTP: a statement is the first line of a request, and a whole answer to it says that it
    happened."""

    def messages(self) -> Any:
        return _HttpMessages()

    def has_happened(self, answers: bytes) -> bool:
        return bool(_HttpMessages().read(answers))


class _HttpMessages:
    """Requests or answers, each with its first line."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> list[tuple[bytes, str]]:
        self._rest += data
        found = []
        while (message := self._next()) is not None:
            self._rest = self._rest[len(message) :]
            found.append((message, message.partition(b"\r\n")[0].decode(errors="replace")))
        return found

    def _next(self) -> bytes | None:
        head, end, _ = self._rest.partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        size = len(head) + len(end) + length
        return self._rest[:size] if end and len(self._rest) >= size else None
