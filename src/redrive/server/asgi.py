"""The ASGI application: from request bytes to a route, and back. It contains all that calls have in common."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from redrive.auth.bound_broker import BoundBroker
from redrive.auth.caller import Caller, KnownLeases
from redrive.auth.principal import UNAUTHENTICATED_ADMIN, Principal
from redrive.errors import (
    Forbidden,
    OutcomeUnknown,
    Overloaded,
    RedriveError,
    RequestTooLarge,
    StoreError,
    Unauthorized,
)
from redrive.server.authentication import Authenticator, NoAuthentication
from redrive.server.broker_pool import BrokerPool
from redrive.server.direct_path import DirectRequest, DirectRoute
from redrive.server.host_check import AllowedHosts
from redrive.server.long_poll import ClientDisconnected, LongPolls, start_eagerly
from redrive.server.request import Receive, Request, Response, namespace_of
from redrive.server.request_limits import DEFAULT_LIMITS, BodyBudget, Limits, LineTurns, RequestResources
from redrive.server.responses import (
    HALF_CLOSED,
    LARGE_ANSWER,
    SAFE_HEADERS,
    RequestTimeout,
    http_error,
    refusal,
    response_of,
    usual_head,
)
from redrive.server.route import Route
from redrive.server.served_route import RequestTally, ServedRoute
from redrive.telemetry import events
from redrive.telemetry import metrics as names
from redrive.telemetry.metrics import Metrics, Sample

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Page = Callable[["Server", Mapping[bytes, bytes]], Awaitable[Response]]
"""The handler of a path that is read with GET."""

PREFIX = "/v1/"
LOGGED_AGAIN_SECONDS = 10.0
"""Minimum seconds between two log entries about requests refused for the same reason."""
ANSWER = "redrive.answer"
"""The scope key of a function by which our own connection class writes a whole response with one call."""
ABORT = "redrive.abort"
"""The scope key of a function that aborts our own connection, regardless of pending output."""
IS_GONE = "redrive.is_gone"
"""The scope key of a function of our own connection that returns whether the client can no longer read a response."""
UNANSWERED_SECONDS = 5.0
"""Maximum seconds for which a server that closes waits for results of abandoned requests, to return their leases."""
_DRAIN_SECONDS = 0.01
_log = events.logger("redrive.server")


class Server:
    """An ASGI application that serves routes. Mount it in another application, or run it alone.

    `sites` are the host names that it answers to while it requires no token. With more than `max_dead` dead letters in
    a namespace, health is degraded.
    """

    def __init__(
        self,
        brokers: BrokerPool,
        routes: Iterable[Route],
        access: Authenticator | None = None,
        limits: Limits | None = None,
        *,
        pages: Mapping[str, Page] | None = None,
        sites: AllowedHosts | None = None,
        max_dead: int | None = None,
    ) -> None:
        self.brokers = brokers
        self.access: Authenticator = access or NoAuthentication()
        self.limits = limits or DEFAULT_LIMITS
        self.sites = sites or AllowedHosts()
        self.max_dead = max_dead
        self.stopping = asyncio.Event()
        """Set when no new work is handed out: pending long polls are answered."""
        self.waiting = LongPolls(self.limits.max_long_polls)
        self.metrics = Metrics()
        self.metrics.watch(self._counted)
        # Separate threads: health checks still reach the store while slow queries use all threads of the loop.
        self.health_threads = ThreadPoolExecutor(4, "redrive-health")
        self._pages = dict(pages or {})
        self.bodies = BodyBudget()
        self.turns = LineTurns()
        self.leases = KnownLeases()
        self._logged_at: dict[str, float] = {}
        self.routes = tuple(routes)
        self._served = {PREFIX + route.name: ServedRoute(route, self.metrics) for route in self.routes}
        self.direct_routes = {
            path.encode(): DirectRoute(self, served, path)
            for path, served in self._served.items()
            if served.route.direct
        }
        """Routes by path whose requests a connection may submit to the committer directly."""
        self.direct_requests: set[DirectRequest] = set()
        """Requests on the direct path whose results are not there yet."""
        self._pages_tally = RequestTally("", self.metrics.distribution(names.HTTP_SECONDS, ("",)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection: a request, or the lifespan of the server."""
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        began_at = perf_counter()
        path = _path_of(scope)
        served = self._served.get(path)
        try:
            if served is not None and scope["method"] == "POST":
                response = await self._called(served, scope, receive)
            else:
                response = await self._looked(path, served, scope)
        except RedriveError as error:
            response = self.refused(error)
        except ClientDisconnected:
            if IS_GONE in scope:  # our own connection: the client may have ended only what it sends
                await self.respond(scope, send, HALF_CLOSED)
            return
        except asyncio.CancelledError:
            if not self.stopping.is_set():
                raise
            response = self.outcome_unknown()
        except Exception:
            response = self.broken(path if served is not None or path in self._pages else None)
        tally = self._pages_tally if served is None else served.tally
        tally.count(response.status, perf_counter() - began_at)
        await self.respond(scope, send, response)

    def stop(self) -> None:
        """Hand out no new work and answer pending long polls. Running requests continue."""
        self.stopping.set()
        self.waiting.stop()

    def abandon_direct_requests(self) -> None:
        """Answer the requests on the direct path as those that uvicorn cancels: their outcome is unknown."""
        for request in tuple(self.direct_requests):
            request.abandon()

    async def close(self) -> None:
        """Answer what is pending and close the brokers: each finishes what it accepted. Idempotent."""
        self.stop()
        self.abandon_direct_requests()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNANSWERED_SECONDS):
                while self.direct_requests:  # they have no task that could be awaited
                    await asyncio.sleep(_DRAIN_SECONDS)
        await self.access.close()
        await self.brokers.close()
        self.health_threads.shutdown(wait=False, cancel_futures=True)

    async def _called(self, served: ServedRoute, scope: Scope, receive: Receive) -> Response:
        headers = dict(scope["headers"])
        principal = await self.access.identify(headers)
        self.check_headers(served, principal, headers)
        # Held until the response, which may take as long as the store takes.
        hold = RequestResources(self.bodies, principal.name)
        try:
            return await self._carried_out(served, headers, principal, receive, hold, scope.get(IS_GONE))
        finally:
            hold.end()

    def check_headers(self, served: ServedRoute, principal: Principal, headers: Mapping[bytes, bytes]) -> None:
        """Raise if a call from another site, or with another content type, must be refused before its body is read."""
        if principal.name is None:
            self.sites.check_call(headers)
        if headers.get(b"content-type") != served.content_type:
            served.check_content_type(headers)

    def decode_call(self, served: ServedRoute, principal: Principal, namespace: str, body: bytes) -> Any:
        """Return the call in a JSON body. Raises `InvalidInput`, `RequestTooLarge` and `Forbidden`."""
        call, permission = served.decode(body, self.limits.values), served.route.permission
        if principal is not UNAUTHENTICATED_ADMIN and not principal.may_somewhere(permission, namespace):
            raise Forbidden(permission, namespace)
        return call

    async def _carried_out(
        self,
        served: ServedRoute,
        headers: dict[bytes, bytes],
        principal: Principal,
        receive: Receive,
        hold: RequestResources,
        is_gone: Callable[[], bool] | None,
    ) -> Response:
        route, is_json = served.route, served.decoder is not None
        body = await self._body(headers, receive, hold)
        namespace = route.namespace or namespace_of(headers)
        call: Any = body
        if is_json:
            call = self.decode_call(served, principal, namespace, body)
            body = b""  # frees the memory; the call holds all that it needs
        elif not principal.may_enter(namespace):
            raise Forbidden(route.permission, namespace)
        unbound = await self.brokers.acquire(namespace, hold)
        broker = unbound
        if is_json and principal is not UNAUTHENTICATED_ADMIN:
            broker = BoundBroker(unbound, Caller(principal, namespace, unbound.core, self.leases))
        request = Request(
            broker,
            principal,
            namespace,
            headers,
            body,
            self.limits,
            receive,
            self.waiting,
            self.access,
            hold,
            self.leases,
            unbound,
            is_gone,
        )
        answer = await route.handler(request, call)
        return response_of(answer)

    async def _looked(self, path: str, served: ServedRoute | None, scope: Scope) -> Response:
        """Answer a request that is not a call: a page, or an error."""
        method = scope["method"]
        if served is not None:
            return http_error(405, "method_not_allowed", "calls are made with POST", ((b"allow", b"POST"),))
        page = self._pages.get(path)
        if page is None:
            return http_error(
                404, "route_not_found", "there is nothing at this path; GET /openapi.json says what there is"
            )
        if method not in ("GET", "HEAD"):
            return http_error(405, "method_not_allowed", "this is read with GET", ((b"allow", b"GET, HEAD"),))
        return await page(self, dict(scope["headers"]))

    async def asks_for_tokens(self) -> bool:
        """Return whether every caller needs a token."""
        try:
            await self.access.identify({})
        except Unauthorized:
            return True
        return False

    async def admitted(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Return the principal that requests a page. Raises `Unauthorized`; without tokens, `HostNotAllowed`."""
        principal = await self.access.identify(dict(headers))
        if principal.name is None:
            self.sites.check(headers)
        return principal

    async def _body(self, headers: dict[bytes, bytes], receive: Receive, hold: RequestResources) -> bytes:
        """Return the whole body. Raises `RequestTooLarge`, and `Busy` if all requests together use too much memory."""
        declared = headers.get(b"content-length")
        if declared is not None and not (declared.isdigit() and int(declared[:20]) <= self.limits.max_body_bytes):
            raise RequestTooLarge("the body of the request", self.limits.max_body_bytes)
        message, waiting = start_eagerly(receive())
        if waiting is None and message["type"] == "http.request" and not message.get("more_body"):
            body: bytes = message.get("body", b"")
            if len(body) > self.limits.max_body_bytes:
                raise RequestTooLarge("the body of the request", self.limits.max_body_bytes)
            hold.take(len(body), self.limits.max_total_body_bytes)
            return body
        return await self._slow_body(message, waiting, receive, hold)

    async def _slow_body(
        self, message: Any, waiting: Awaitable[Any] | None, receive: Receive, hold: RequestResources
    ) -> bytes:
        """Return the body of a request that has not arrived completely, within `body_seconds`."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                if waiting is not None:
                    message = await waiting
                while True:
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    part: bytes = message.get("body", b"")
                    size += len(part)
                    if size > self.limits.max_body_bytes:
                        raise RequestTooLarge("the body of the request", self.limits.max_body_bytes)
                    parts.append(part)
                    hold.take(len(part), self.limits.max_total_body_bytes)
                    if not message.get("more_body"):
                        return b"".join(parts)
                    message = await receive()
        except TimeoutError:
            raise RequestTimeout(self.limits.body_seconds) from None

    def refused(self, error: RedriveError) -> Response:
        """Return the response to a refused call. Log overload and store errors, but not more often than allowed."""
        if isinstance(error, Overloaded) and self._is_news("overloaded"):
            _log.warning("overloaded", error=str(error), waiting=len(self.waiting))
        elif isinstance(error, StoreError) and self._is_news("store_refused"):
            _log.warning("store_refused", error=str(error))
        return refusal(error)

    def outcome_unknown(self) -> Response:
        """Return the response to a call whose result the server does not wait for any longer."""
        return self.refused(OutcomeUnknown("of this server", "the server stopped before the store answered"))

    def _is_news(self, event: str) -> bool:
        """Return whether the log has no recent entry of that event; record that it has one now."""
        now = perf_counter()
        if now - self._logged_at.get(event, float("-inf")) < LOGGED_AGAIN_SECONDS:
            return False
        self._logged_at[event] = now
        return True

    def broken(self, path: str | None) -> Response:
        """Return the response to an unexpected error. It contains only an id; the log has the details under that id."""
        id = secrets.token_hex(8)
        _log.exception("request_internal_error", id=id, path=path)
        return http_error(500, "internal", "internal error", details={"id": id})

    async def respond(self, scope: Scope, send: Send, response: Response) -> None:
        """Send a response; with one call if it is a usual one."""
        body, head = response.body, usual_head(response)
        write = None if head is None or scope["method"] == "HEAD" else scope.get(ANSWER)
        if write is not None and write(response.status, head, body):
            return
        headers = [
            (b"content-type", response.content_type),
            (b"content-length", b"%d" % len(body)),
            *SAFE_HEADERS,
            *response.headers,
        ]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        if scope["method"] == "HEAD":
            body = b""
        if len(body) < LARGE_ANSWER:
            await send({"type": "http.response.body", "body": body})
            return
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                for start in range(0, len(body), LARGE_ANSWER):  # each send waits until earlier parts have been read
                    part = body[start : start + LARGE_ANSWER]
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:  # the client does not read
            abort = scope.get(ABORT)
            if abort is not None:
                abort()

    def _counted(self) -> Iterator[Sample]:
        """Yield the numbers of answered requests and of waiting ones, for metrics."""
        for tally in (*(served.tally for served in self._served.values()), self._pages_tally):
            for status, count in tuple(tally.statuses.items()):
                yield Sample(names.HTTP_REQUESTS, (tally.call, str(status)), count)
        yield Sample(names.HTTP_WAITING, (), len(self.waiting))

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _path_of(scope: Scope) -> str:
    """Return the path within this application, also if it is mounted below another one, without decoding.

    No path here needs percent-encoding. An encoded path is not decoded: a proxy in front of the server that filters
    paths may read it as another path than the decoded one.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    within = path[len(root) :] if root and path.startswith(root) else path
    raw: bytes | None = scope.get("raw_path")
    if raw is not None and not raw.partition(b"?")[0].endswith(within.encode("utf-8", "surrogatepass")):
        return raw.decode("latin-1")
    return within or "/"
