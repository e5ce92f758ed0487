"""The table of routes: every call in JSON that there is.

The OpenAPI document and the tests of every route with every role are made from it.
"""

from __future__ import annotations

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
    *tokens.ROUTES,
)
