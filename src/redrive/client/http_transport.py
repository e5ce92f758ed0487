"""HTTP requests to one server, with certainty about each: whether it was sent, and whether it was answered.

The only module that imports urllib3. It keeps connections open and reuses them, for any thread.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec
import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError, LocationValueError, NewConnectionError, ProxyError

from redrive.errors import InvalidInput, InvalidName
from redrive.model.url import redact_url
from redrive.wire.messages import CONTENT_TYPE

CONNECT_SECONDS = 5.0
MAX_CONNECTIONS = 32
"""Connections that are kept open for concurrent requests; further ones are closed after use."""
MAX_PACKET_BYTES = 64 * 1024
"""Bytes up to which head and body are copied into one packet."""


class RequestNotSent(Exception):
    """The server cannot have received the request: there was no connection."""


class ResponseLost(Exception):
    """The request was sent, at least in part, and no response came: the server may have executed it."""


class HttpResponse(msgspec.Struct, frozen=True, gc=False):
    """The response of a server."""

    status: int
    body: bytes
    content_type: str


class Endpoint(msgspec.Struct, frozen=True):
    """The server, and the namespace and token of the client."""

    url: str
    """Without a trailing slash. Errors name the server by it."""
    namespace: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Endpoint(url={redact_url(self.url)!r}, namespace={self.namespace!r})"


def endpoint_of(url: str, namespace: str, token: str | None) -> Endpoint:
    """Return the endpoint of a URL. Raises `InvalidInput` if it is not the URL of a server."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # whose text would quote the URL
        raise InvalidInput(f"{redact_url(url)!r} is not a URL of a server; write http://host:7272") from None
    if "@" in url:
        raise InvalidInput("a server takes no user and password in its URL; give the token: connect(…, token='…')")
    if not host or parts.query or parts.fragment:
        raise InvalidInput(f"{redact_url(url)!r} names no server; write http://host:7272, and nothing behind it")
    if token is not None and (
        not isinstance(token, str) or not token or not token.isascii() or not token.isprintable()
    ):
        raise InvalidName("token", "…", "is not a text of ASCII characters; pass it on as you received it")
    return Endpoint(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", namespace, token)


class HttpTransport:
    """The connections to one server. Each opens when it is first needed."""

    def __init__(
        self, endpoint: Endpoint, *, most: int = MAX_CONNECTIONS, is_unwanted: Callable[[], bool] | None = None
    ) -> None:
        self._is_unwanted = is_unwanted
        self._root = f"{urlsplit(endpoint.url).path}/v1/"
        self._headers = {
            "Content-Type": CONTENT_TYPE,
            "Accept": CONTENT_TYPE,
            "Redrive-Namespace": endpoint.namespace,
            "User-Agent": f"redrive/{_release()}",
            **({} if endpoint.token is None else {"Authorization": f"Bearer {endpoint.token}"}),
        }
        self._lock = threading.Lock()
        self._connections: weakref.WeakSet[HTTPConnection] = weakref.WeakSet()
        try:
            self._pool = self._open(endpoint.url, most)
        except LocationValueError:
            raise InvalidInput(
                f"{redact_url(endpoint.url)!r} is not a URL of a server, or the variable of its proxy is none"
            ) from None

    def _open(self, url: str, most: int) -> urllib3.HTTPConnectionPool:
        options: dict[str, Any] = {"num_pools": 1, "maxsize": most, "retries": False}
        options["socket_options"] = HTTPConnection.default_socket_options  # no delay, also to a proxy
        proxy = _proxy_for(url)
        manager = urllib3.PoolManager(**options) if proxy is None else urllib3.ProxyManager(proxy, **options)
        if proxy is not None and url.startswith("http:"):
            self._root = url + "/v1/"  # a proxy for plain HTTP needs the full URL
        pool = manager.connection_from_url(url)
        make: Any = pool.ConnectionCls

        def make_one(*args: Any, **options: Any) -> Any:
            connection = make(*args, **options)
            with self._lock:
                self._connections.add(connection)
            connection.connect = partial(self._connect, connection.connect)
            if proxy is None:
                connection.send = _Whole(connection.send).send
            return connection

        pool.ConnectionCls = make_one  # type: ignore[assignment] # it is only ever called
        return pool

    def _connect(self, connect: Callable[[], None]) -> None:
        """Connect, through a proxy and with TLS if configured. No part of a request is sent before that succeeds.

        Abort immediately if the request has become unwanted in the meantime.
        """
        try:
            connect()
        except Exception as problem:  # urllib3 raises some of the same errors for a proxy after sending
            raise RequestNotSent(_in_words(problem)) from problem
        if self._is_unwanted is not None and self._is_unwanted():
            self.abort_requests()

    def post(self, route: str, body: bytes, seconds: float) -> HttpResponse:
        """Send a request and wait up to `seconds` for its response. Raises `RequestNotSent` or `ResponseLost`. It sends
        nothing twice.

        The body must not be empty.
        """
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=seconds)
        try:
            response = self._pool.urlopen(
                "POST",
                self._root + route,
                body,
                self._headers,
                retries=False,
                redirect=False,
                assert_same_host=False,  # the host of a proxy differs from the server's
                timeout=timeout,
            )
        except (HTTPError, OSError, ValueError, AttributeError) as problem:  # the last two after an abort
            raise ResponseLost(_in_words(problem)) from problem
        return HttpResponse(response.status, response.data, _content_type(response.headers))

    def abort_requests(self) -> None:
        """Abort all requests that wait for a response."""
        with self._lock:
            connections = tuple(self._connections)
        for connection in connections:
            line = connection.sock
            if line is not None:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close idle connections; those in use are closed after use."""
        self._pool.close()


class _Whole:
    """A sender that joins the head of a request and its body into one packet, which the server reads with one call."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._head: bytes | None = None

    def send(self, data: bytes) -> None:
        """Keep the head, which comes first, and send it together with the body."""
        if self._head is None:
            self._head = data
            return
        head, self._head = self._head, None
        if len(data) <= MAX_PACKET_BYTES:
            self._send(head + data)
        else:
            self._send(head)
            self._send(data)


@cache
def _release() -> str:
    try:
        return version("redrive")
    except PackageNotFoundError:
        return "0"


def _proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names; None for a loopback address."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host == "localhost" or _is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _content_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _in_words(problem: BaseException) -> str:
    """Return the text of the innermost cause, which is the one useful to people."""
    if isinstance(problem, ProxyError):  # raised for any failed connection through a proxy
        problem = problem.original_error
    cause = problem.__cause__ or problem.__context__
    if isinstance(problem, NewConnectionError) and cause is not None:
        return str(cause)
    return str(problem).rpartition("): ")[2] or type(problem).__name__
