"""Calls an ASGI application in this process, as a client over HTTP would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import quote, unquote

Message = MutableMapping[str, Any]


class Answer:
    """What came back."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"{self.status} {self.body[:500]!r}"


class Exchange:
    """One request that is under way. `leave` ends the connection from the client's side."""

    def __init__(
        self,
        app: Any,
        method: str,
        path: str,
        parts: Iterable[bytes],
        headers: Mapping[str, str],
        root: str = "",
        scope: Mapping[str, Any] | None = None,
    ) -> None:
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        chunks = list(parts)
        for number, part in enumerate(chunks, 1):
            self._incoming.put_nowait({"type": "http.request", "body": part, "more_body": number < len(chunks)})
        self._outgoing: list[Message] = []
        said = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": root + unquote(path),
            "raw_path": (quote(root) + path).encode(),
            "query_string": b"",
            "root_path": root,
            "scheme": "http",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
            **(scope or {}),
        }
        self.task = asyncio.ensure_future(app(said, self._incoming.get, self._send))

    async def _send(self, message: Message) -> None:
        self._outgoing.append(message)

    def send(self, part: bytes) -> None:
        """Some more of the body, and not the last of it."""
        self._incoming.put_nowait({"type": "http.request", "body": part, "more_body": True})

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def answer(self) -> Answer:
        await self.task
        start, *rest = self._outgoing
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], headers, b"".join(part.get("body", b"") for part in rest))

    @property
    def was_answered(self) -> bool:
        return bool(self._outgoing)


class Client:
    """Calls one application."""

    def __init__(self, app: Any, **headers: str) -> None:
        self.app = app
        self.headers = {"host": "127.0.0.1:7272", **headers}

    def begin(self, route: str, arguments: Mapping[str, Any]) -> Exchange:
        """Begin a call, and do not wait for its answer."""
        return Exchange(self.app, "POST", f"/v1/{route}", [json.dumps(arguments).encode()], self.headers)

    async def call(self, route: str, **arguments: Any) -> Answer:
        """POST /v1/ROUTE with JSON."""
        return await self.begin(route, arguments).answer()

    async def ok(self, route: str, **arguments: Any) -> Any:
        """The same, which must succeed."""
        answer = await self.call(route, **arguments)
        assert answer.status == 200, f"{route}: {answer}"
        return answer.json

    async def refused(self, route: str, status: int, code: str, **arguments: Any) -> Any:
        """The same, which must be refused like that."""
        answer = await self.call(route, **arguments)
        assert (answer.status, answer.json["code"]) == (status, code), f"{route}: {answer}"
        return answer.json

    async def send(
        self,
        method: str,
        path: str,
        *parts: bytes,
        root: str = "",
        scope: Mapping[str, Any] | None = None,
        **headers: str,
    ) -> Answer:
        """Any request. `scope` is what another server would say of it."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {name: value for name, value in {**self.headers, **named}.items() if value}
        return await Exchange(self.app, method, path, parts or (b"",), given, root, scope).answer()
