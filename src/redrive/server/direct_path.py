"""The direct path: requests that are one store call go from the parser to the committer and back.

Such a request has no task, no coroutine and no future. Only the usual case takes this path: if a request needs anything
else before it is submitted, even a refusal, the ASGI application handles it. So each error is created in one place,
and is the same on both paths.

The checks are the functions that the application uses, in the same order. The functions of the route's handler make
the response.
"""

from __future__ import annotations

import contextlib
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
from redrive.server.responses import HALF_CLOSED, response_of, usual_head
from redrive.server.served_route import ServedRoute

if TYPE_CHECKING:
    from redrive.server.asgi import Server
    from redrive.server.http_protocol import Connection

MAX_DIRECT_BYTES = 64 * KIB
"""Maximum bytes of a body. The application handles larger ones: it reads them in parts and counts their values."""


class _NoEvent:
    def set(self) -> None:
        """Do nothing: no task waits for this event."""


_NO_EVENT = _NoEvent()


class DirectRequest:
    """One request. The connection treats it as a pending uvicorn cycle, the committer as the receiver of the result."""

    __slots__ = (
        *("_connection", "_route", "body", "broker", "call", "caller", "disconnected", "headers", "hold", "keep_alive"),
        *("more_body", "response_complete", "response_started", "scope", "started_at", "store_call"),
        "waiting_for_100_continue",
    )
    message_event = _NO_EVENT

    broker: AsyncBroker
    call: Any
    """The decoded request."""
    caller: Caller | None
    store_call: Call
    """The call submitted to the committer."""
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
        """The path of its route."""
        return self._route.path

    def hand_in(self) -> bool:
        """Submit the complete request to the committer. Return False, without any effect, if the application must
        handle it."""
        self.more_body = False
        return self._route.hand_in(self)

    def done(self) -> bool:
        """Return False, so that the result is always delivered: it releases what the request holds."""
        return False

    def set_result(self, result: Any) -> None:
        """Send the response and drop the content of the request. Raises nothing: the committer has other receivers."""
        try:
            self._route.finish(self, result, self._connection)
        except Exception:
            self._break_off()
        # The connection keeps the object until the next request, and may be idle for long.
        self.body = b""
        del self.headers, self.call, self.store_call, self.caller, self.broker

    set_exception = set_result
    """The error of a transaction is delivered as the result of each of its calls."""

    def abandon(self) -> None:
        """Answer that the outcome is unknown. The result then only returns leases. Idempotent; raises nothing."""
        if self.response_complete:
            return
        self.keep_alive = False  # requests behind this one are not executed
        try:
            self._route.send(self, self._route.outcome_unknown(), self._connection)
        except Exception:
            self._break_off()
        self.response_complete = True

    def _break_off(self) -> None:
        """End the connection after an unexpected error, and log it if that is possible."""
        with contextlib.suppress(Exception):
            self._connection.transport.abort()
        with contextlib.suppress(Exception):
            self._route.log_failure()


class DirectRoute:
    """A route whose requests may take the direct path."""

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
        """Submit a request to the committer, or return False to leave it to the application."""
        server = self._server
        if len(request.body) > self._max_bytes or server.waiting.stopping:
            return False
        hold: RequestResources | None = None
        try:
            principal = server.access.known(request.headers)
            if principal is not None:
                hold = request.hold = RequestResources(server.bodies, principal.name)
                if self._submit(request, principal, hold):
                    server.direct_requests.add(request)
                    return True
        except Exception:  # the application fails in the same way and sends the error
            pass
        if hold is not None:
            hold.end()
        return False

    def _submit(self, request: DirectRequest, principal: Principal, hold: RequestResources) -> bool:
        """Authorize and submit the call of a request. Nothing that can fail may follow the submission."""
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
        """Answer a request whose call is durable or refused. Return a lease that its client cannot get any more."""
        self._server.direct_requests.discard(request)
        request.hold.end()
        if request.response_complete:  # by `abandon`
            request.broker.core.committer.return_leases([result])
            return
        if leases_of(result) and connection.is_gone(request):
            request.broker.core.committer.return_leases([result])
            connection.answer(request, HALF_CLOSED.status, usual_head(HALF_CLOSED) or b"", HALF_CLOSED.body)
            return
        response = self._response(request, result)
        if response is None:
            connection.run_application(request)
        else:
            self.send(request, response, connection)

    def send(self, request: DirectRequest, response: Response, connection: Connection) -> None:
        """Count and send a response, as a task if it is not a usual one."""
        server = self._server
        self._served.tally.count(response.status, perf_counter() - request.started_at)
        head = usual_head(response)
        if head is None or not connection.answer(request, response.status, head, response.body):
            request.body = b""

            async def respond(scope: Any, receive: Any, send: Any) -> None:
                await server.respond(scope, send, response)

            connection.run_application(request, respond)

    def _response(self, request: DirectRequest, result: Any) -> Response | None:
        """Return the response that the application would send; None if the application has to execute the request."""
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
        """Log an unexpected error and return a response with its id."""
        return self._server.broken(self.path)

    def outcome_unknown(self) -> Response:
        """Return the response to a request that the server does not wait for any longer."""
        return self._server.outcome_unknown()
