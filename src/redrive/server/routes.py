"""The table of routes: every call in JSON that there is.

The OpenAPI document, the check of rights, and the tests of every route with every role are made from it.
"""

from __future__ import annotations

from redrive.server import (
    by_hand,
    dead,
    feed,
    importing,
    items,
    leasing,
    operations,
    producing,
    queues,
    settling,
    token_calls,
)
from redrive.server.brokers import Brokers
from redrive.server.route import Route

ROUTES: tuple[Route, ...] = (
    *queues.ROUTES,
    *producing.ROUTES,
    *leasing.ROUTES,
    *settling.ROUTES,
    *items.ROUTES,
    *by_hand.ROUTES,
    *importing.IMPORT_ROUTES,
    *dead.ROUTES,
    *operations.ROUTES,
    *feed.ROUTES,
)
"""Those that need nothing but the broker of their namespace."""


def all_routes(brokers: Brokers) -> tuple[Route, ...]:
    """All of them, of a server with these brokers."""
    return (*ROUTES, *token_calls.routes(brokers))
