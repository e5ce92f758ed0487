"""The table of routes: every call in JSON that there is.

The OpenAPI document, the check of rights, and the tests of every route with every role are made from it.
"""

from __future__ import annotations

from redrive.server.broker_pool import BrokerPool
from redrive.server.route import Route
from redrive.server.routes import (
    activity,
    breakers,
    captured_tasks,
    dead_letters,
    items,
    leases,
    manual_changes,
    operations,
    produce,
    queues,
    settle,
    tokens,
)

ROUTES: tuple[Route, ...] = (
    *queues.ROUTES,
    *produce.ROUTES,
    *leases.ROUTES,
    *settle.ROUTES,
    *items.ROUTES,
    *manual_changes.ROUTES,
    *produce.IMPORT_ROUTES,
    *dead_letters.ROUTES,
    *operations.ROUTES,
    *breakers.ROUTES,
    *captured_tasks.ROUTES,
    *activity.ROUTES,
)
"""Those that need nothing but the broker of their namespace."""


def all_routes(brokers: BrokerPool) -> tuple[Route, ...]:
    """All of them, of a server with these brokers."""
    return (*ROUTES, *tokens.routes(brokers))
