"""Requests to one server over HTTP, of each of which is known whether it left and whether it was answered.

The only module that imports urllib3. It keeps connections open and uses them again, for any thread.
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
"""That are kept open for those who ask at once; more are closed after use."""
MAX_PACKET_BYTES = 64 * 1024
"""What is larger is not copied to be sent at once."""


class RequestNotSent(Exception):
    """The server cannot have got it: there is no connection."""


class ResponseLost(Exception):
    """It left, or a part of it, and no answer came: the server may have carried it out."""


class HttpResponse(msgspec.Struct, frozen=True, gc=False):
    """What a server answered."""

    status: int
    body: bytes
    content_type: str


class Endpoint(msgspec.Struct, frozen=True):
    """Which server, and who asks."""

    url: str
    """Without a slash at the end. The name of the server in errors."""
    namespace: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Endpoint(url={redact_url(self.url)!r}, namespace={self.namespace!r})"


def endpoint_of(url: str, namespace: str, token: str | None) -> Endpoint:
    """What a URL says. Raises `InvalidInput` where it is none of a server."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # whose text quotes it
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
    """Connections to one server. Opens nothing until it is needed."""

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
            self._root = url + "/v1/"  # a proxy for plain HTTP is told the whole address
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
        """Connect, through a proxy and with TLS where these are. Until that is done nothing of a request has left.

        Break off at once where somebody hung up meanwhile.
        """
        try:
            connect()
        except Exception as problem:  # of urllib3's own errors some that come later say the same of a proxy
            raise RequestNotSent(_in_words(problem)) from problem
        if self._is_unwanted is not None and self._is_unwanted():
            self.abort_requests()

    def post(self, route: str, body: bytes, seconds: float) -> HttpResponse:
        """Send a request and wait for its answer, so many seconds. Raises `RequestNotSent` or `ResponseLost`. Nothing
        is sent twice.

        The body is not empty.
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
                assert_same_host=False,  # a proxy is another one than the server
                timeout=timeout,
            )
        except (HTTPError, OSError, ValueError, AttributeError) as problem:  # the last two where it was hung up on
            raise ResponseLost(_in_words(problem)) from problem
        return HttpResponse(response.status, response.data, _content_type(response.headers))

    def abort_requests(self) -> None:
        """Break off whatever waits for an answer now."""
        with self._lock:
            connections = tuple(self._connections)
        for connection in connections:
            line = connection.sock
            if line is not None:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close what is not in use; what is in use is closed after it."""
        self._pool.close()


class _Whole:
    """Sends the head of a request together with its body: one packet, which the server reads at once."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._head: bytes | None = None

    def send(self, data: bytes) -> None:
        """Called with the head first, and then with the body."""
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
    """The proxy that the environment names, but not for this machine itself."""
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
    """The innermost cause, which is what a person wants to read."""
    if isinstance(problem, ProxyError):  # it says that of any connection through one
        problem = problem.original_error
    cause = problem.__cause__ or problem.__context__
    if isinstance(problem, NewConnectionError) and cause is not None:
        return str(cause)
    return str(problem).rpartition("): ")[2] or type(problem).__name__
