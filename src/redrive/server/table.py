"""Every call in JSON that there is."""

from __future__ import annotations

from redrive.server import dead, feed, importing, items, leasing, operations, producing, queues, settling
from redrive.server.access import routes as tokens
from redrive.server.brokers import Brokers
from redrive.server.routes import Route

ROUTES: tuple[Route, ...] = (
    *queues.ROUTES,
    *producing.ROUTES,
    *leasing.ROUTES,
    *settling.ROUTES,
    *items.ROUTES,
    *importing.ROUTES,
    *dead.ROUTES,
    *operations.ROUTES,
    *feed.ROUTES,
)
"""Those that need nothing but the broker of their namespace."""


def all_routes(brokers: Brokers) -> tuple[Route, ...]:
    """All of them, of a server with these brokers."""
    return (*ROUTES, *tokens.routes(brokers))
