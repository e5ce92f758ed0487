"""Requests that are one call of the store contract: from the parser to the committer, and back from there.

A request that goes this way has no task, no coroutine and no future. Only what is usual does: where a request needs
anything else before it is submitted, be it a refusal, the ASGI application gets it instead. So every error has one
author, and is the same whichever way a request took.

What is checked is checked by the functions that the application uses, in the same order. The answer is made by those
that the handler of the route uses.
"""

from __future__ import annotations

from collections.abc import Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Any

from redrive.auth.caller import Caller
from redrive.auth.flow_guard import signed_freely
from redrive.auth.principal import UNAUTHENTICATED_ADMIN, Principal
from redrive.auth.result_filter import filter_result
from redrive.broker.async_api.base import submit_to
from redrive.broker.async_broker import AsyncBroker
from redrive.contract import Call
from redrive.contract.item_calls import leases_of
from redrive.errors import RedriveError
from redrive.model.limits import KIB
from redrive.server.request import Response, namespace_of
from redrive.server.request_limits import RequestResources
from redrive.server.responses import response_of, usual_head
from redrive.server.served_route import ServedRoute

if TYPE_CHECKING:
    from redrive.server.asgi import Server
    from redrive.server.http_protocol import Connection

MAX_DIRECT_BYTES = 64 * KIB
"""Of a body. A larger one is left to the application, which reads it in parts and counts its values."""


class _NoEvent:
    def set(self) -> None:
        """Nothing waits for it."""


_NO_EVENT = _NoEvent()


class DirectRequest:
    """One request. A connection has it as the cycle of uvicorn that is not complete, the committer as a receiver."""

    __slots__ = (
        *("_connection", "_route", "body", "broker", "call", "caller", "disconnected", "headers", "hold", "keep_alive"),
        *("more_body", "response_complete", "response_started", "scope", "started_at", "store_call"),
        "waiting_for_100_continue",
    )
    message_event = _NO_EVENT

    broker: AsyncBroker
    call: Any
    """The request as it was decoded."""
    caller: Caller | None
    store_call: Call
    """What the committer has."""
    hold: RequestResources

    def __init__(self, connection: Connection, route: DirectRoute, scope: Any, headers: dict[bytes, bytes]) -> None:
        self._connection = connection
        self._route = route
        self.scope = scope
        self.headers = headers
        self.body = b""
        self.keep_alive = self.more_body = True
        self.disconnected = self.response_started = self.response_complete = False
        self.started_at = perf_counter()

    @property
    def path(self) -> str:
        """Of its route, without which it would not be here."""
        return self._route.path

    def hand_in(self) -> bool:
        """Hand the request, which has arrived whole, to the committer. False where that is left to the application:
        nothing has happened then."""
        self.more_body = False
        return self._route.hand_in(self)

    def done(self) -> bool:
        """Take the result in any case: what the request holds is released with it."""
        return False

    def set_result(self, result: Any) -> None:
        """Answer. The committer has others to notify, so that nothing is raised."""
        try:
            self._route.finish(self, result, self._connection)
        except Exception:
            self._route.log_failure()
            self._connection.transport.abort()

    set_exception = set_result
    """The error of a transaction is the result of each of its calls."""


class DirectRoute:
    """A route of a server whose requests may go the direct way."""

    __slots__ = ("_answer", "_make", "_max_bytes", "_served", "_server", "path")

    def __init__(self, server: Server, served: ServedRoute, path: str) -> None:
        assert served.route.direct is not None
        self._make = served.route.direct.make
        self._answer = served.route.direct.answer
        self._max_bytes = min(MAX_DIRECT_BYTES, server.limits.max_body_bytes)
        self._server = server
        self._served = served
        self.path = path

    def hand_in(self, request: DirectRequest) -> bool:
        """Hand a request to the committer, or leave it to the application."""
        server = self._server
        if len(request.body) > self._max_bytes or server.waiting.stopping:
            return False
        hold: RequestResources | None = None
        try:
            principal = _known_without_waiting(server.access.identify(request.headers))
            if principal is not None:
                hold = request.hold = RequestResources(server.bodies, principal.name)
                if self._submit(request, principal, hold):
                    server.direct_requests += 1
                    return True
        except Exception:  # the application meets the same, and answers it
            pass
        if hold is not None:
            hold.end()
        return False

    def _submit(self, request: DirectRequest, principal: Principal, hold: RequestResources) -> bool:
        """Authorize the call that the request is, and hand it in. Nothing may follow that can fail."""
        server, served, headers, body = self._server, self._served, request.headers, request.body
        server.check_headers(served, principal, headers)
        hold.take(len(body), server.limits.max_total_body_bytes)
        namespace = namespace_of(headers)
        request.call = server.decode_call(served, principal, namespace, body)
        broker = server.brokers.acquire_open(namespace, hold)
        call = self._make(request.call)
        if broker is None or call is None:
            return False
        request.caller = None
        if principal is not UNAUTHENTICATED_ADMIN:
            request.caller = Caller(principal, namespace, broker.core, server.leases)
            call = signed_freely(request.caller, call)
            if call is None:
                return False
        request.broker, request.store_call = broker, call
        return submit_to(broker, call, request)

    def finish(self, request: DirectRequest, result: Any, connection: Connection) -> None:
        """Answer a request whose call is durable, or refused. A lease whose client is gone is returned."""
        server = self._server
        server.direct_requests -= 1
        request.hold.end()
        if leases_of(result) and connection.is_gone(request):
            request.broker.core.committer.return_leases([result])
            connection.transport.abort()  # it may be closed on one side only, with answers that are never read
            return
        response = self._response(request, result)
        if response is None:
            connection.run_application(request)
            return
        self._served.tally.count(response.status, perf_counter() - request.started_at)
        head = usual_head(response)
        if head is None or not connection.answer(request, response.status, head, response.body):

            async def respond(scope: Any, receive: Any, send: Any) -> None:
                await server.respond(scope, send, response)

            connection.run_application(request, respond)

    def _response(self, request: DirectRequest, result: Any) -> Response | None:
        """As the application would make it; None where that has to execute the request."""
        try:
            if request.caller is not None:
                result = filter_result(request.caller, request.store_call, result)
            answer = self._answer(request.call, result)
            return None if answer is None else response_of(answer)
        except RedriveError as error:
            return self._server.refused(error)
        except Exception:
            return self.log_failure()

    def log_failure(self) -> Response:
        """An unexpected error: the log has it, and the response its id."""
        return self._server.broken(self.path)


def _known_without_waiting(identified: Coroutine[Any, Any, Principal]) -> Principal | None:
    """The caller; None where something has to be awaited to find out."""
    try:
        identified.send(None)
    except StopIteration as known:
        principal: Principal = known.value
        return principal
    identified.close()
    return None
