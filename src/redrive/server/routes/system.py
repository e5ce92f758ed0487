"""Pages for GET: health, metrics, the OpenAPI document, and a short description for browsers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from redrive import __version__
from redrive.auth.principal import TOKENS_NAMESPACE, Permission, Principal
from redrive.broker.async_broker import AsyncBroker
from redrive.broker.broker import Broker
from redrive.broker.flows.health import Health
from redrive.contract.queries import ListRegistrations
from redrive.errors import Forbidden, InvalidInput, RedriveError
from redrive.model.text import pluralize
from redrive.server.asgi import Page, Server
from redrive.server.openapi import encoded
from redrive.server.request import Response
from redrive.server.responses import http_error
from redrive.telemetry.metrics import exposition

STORE_SECONDS = 5.0
"""Seconds after which a store that does not answer counts as failing."""
_OK, _DEGRADED, _FAILING = "ok", "degraded", "failing"
_encode = msgspec.json.Encoder().encode

Headers = Mapping[bytes, bytes]


async def root(server: Server, headers: Headers) -> Response:
    """Return a description of the server and the paths of its pages."""
    return _json(
        {
            "name": "redrive",
            "what": "durable queues with dead letters; every call is POST /v1/NAME with a JSON object",
            "calls": "/openapi.json",
            "health": "/health",
            "metrics": "/metrics",
        }
    )


async def live(server: Server, headers: Headers) -> Response:
    """Return ok: the process answers."""
    return _json({"status": _OK})


async def ready(server: Server, headers: Headers) -> Response:
    """Return whether calls can be served: every store answers, and the server is not stopping."""
    if server.stopping.is_set():
        return _json({"status": _FAILING, "problem": "the server is stopping"}, 503)
    for name, broker in _brokers(server).items():
        problem = await _problem(server, broker)
        if problem is not None and server.brokers.get(name) is broker:  # otherwise it was closed during the check
            return _json({"status": _FAILING, "problem": "the store does not answer"}, 503)
    return _json({"status": _OK})


async def health(server: Server, headers: Headers) -> Response:
    """Return the health in one word; to callers that may read, with the reasons."""
    principal = None
    if b"authorization" in headers or not await server.asks_for_tokens():
        principal = await server.admitted(headers)
    looked = [(name, broker, await _health(server, broker)) for name, broker in _brokers(server).items()]
    found = {name: each for name, broker, each in looked if server.brokers.get(name) is broker}
    words = [each["status"] for each in found.values()]
    status = next((word for word in (_FAILING, _DEGRADED) if word in words), _OK)
    if server.stopping.is_set():
        status = _FAILING
    answer: dict[str, Any] = {"status": status}
    shown = {
        name: each for name, each in found.items() if principal is not None and principal.may(Permission.READ, name)
    }
    if shown:
        answer |= {"version": __version__, "stopping": server.stopping.is_set(), "namespaces": shown}
    return _json(answer, 503 if status == _FAILING else 200)


async def _health(server: Server, broker: AsyncBroker) -> dict[str, Any]:
    store = broker.core.store.name
    problem = await _problem(server, broker)
    if problem is not None:
        return {"status": _FAILING, "store": store, "problem": problem}
    try:
        async with asyncio.timeout(STORE_SECONDS):
            loop = asyncio.get_running_loop()
            found, dead = await loop.run_in_executor(server.health_threads, _state, Broker(broker.core))
    except (RedriveError, TimeoutError) as error:
        return {"status": _FAILING, "store": store, "problem": str(error) or "the store does not answer in time"}
    warnings = list(found.warnings)
    if server.max_dead is not None and dead > server.max_dead:
        warnings.append(
            f"There are {pluralize(dead, 'dead letter')}, more than {server.max_dead:,}: dead.groups says of what"
        )
    return {
        "status": _DEGRADED if warnings else _OK,
        "store": store,
        "durability": found.durability,
        "warnings": warnings,
        "dead_letters": dead,
        "max_dead": server.max_dead,
    }


def _state(broker: Broker) -> tuple[Health, int]:
    return broker.health(), broker.count()


async def _problem(server: Server, broker: AsyncBroker) -> str | None:
    """Return the reason why a store does not answer; None if it answers."""
    query = ListRegistrations("health", "health")
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await asyncio.get_running_loop().run_in_executor(server.health_threads, broker.core.read, query)
    except RedriveError as error:
        return str(error)
    except TimeoutError:
        return f"no answer within {STORE_SECONDS:g} s"
    return None


async def metrics(server: Server, headers: Headers) -> Response:
    """Return the metrics in the format of Prometheus."""
    principal = await server.admitted(headers)
    _check_look(server, principal)
    counted = [broker.metrics for broker in server.brokers.open.values()]
    try:
        body, content_type = await asyncio.to_thread(exposition, server.metrics, *counted)
    except InvalidInput as error:
        return http_error(501, "not_installed", str(error))
    return Response(200, body, content_type.encode())


def _check_look(server: Server, principal: Principal) -> None:
    for name in _brokers(server):
        if not principal.may(Permission.READ, name):
            raise Forbidden(Permission.READ, name)


def _brokers(server: Server) -> dict[str, AsyncBroker]:
    return {name: broker for name, broker in server.brokers.open.items() if name != TOKENS_NAMESPACE}


async def openapi(server: Server, headers: Headers) -> Response:
    """Return the OpenAPI document."""
    return Response(200, _document(server))


@lru_cache(maxsize=1)
def _document(server: Server) -> bytes:
    return encoded(server.routes)


def _json(answer: Any, status: int = 200) -> Response:
    return Response(status, _encode(answer))


PAGES: dict[str, Page] = {
    "/": root,
    "/health": health,
    "/health/live": live,
    "/health/ready": ready,
    "/metrics": metrics,
    "/openapi.json": openapi,
}
