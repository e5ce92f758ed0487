"""A complete server in one call: the store by its URL, all routes, and authentication.

from redrive.server.application import application

app = application("sqlite:///jobs.db")   # an ASGI application: run it with uvicorn, or mount it in yours
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Unpack

from redrive.broker.async_broker import AsyncBroker
from redrive.connect import connect_async
from redrive.model.limits import DEFAULT_URL
from redrive.model.options import BrokerOptions
from redrive.server.asgi import Server
from redrive.server.authentication import Authenticator, TokenAuthenticator
from redrive.server.broker_pool import BrokerPool
from redrive.server.host_check import AllowedHosts
from redrive.server.request_limits import Limits
from redrive.server.routes import store_api
from redrive.server.routes.system import PAGES
from redrive.server.routes.table import ROUTES


def application(
    url: str = DEFAULT_URL,
    *,
    access: Authenticator | None = None,
    limits: Limits | None = None,
    hosts: Collection[str] | None = (),
    max_dead: int | None = None,
    **options: Unpack[BrokerOptions],
) -> Server:
    """Return a server of all namespaces of a store; each opens when it is first used.

    access: authenticates callers. By default: the tokens in the store; without any token, every caller is admitted.
    hosts: host names to answer to besides addresses and localhost, while no token is required; None: any name.
    max_dead: with more dead letters in a namespace than this, health is degraded.
    The options are those of `connect`.

    If it is mounted in another application, call `close` when that one ends.
    """

    def open_one(namespace: str) -> AsyncBroker:
        broker = connect_async(url, namespace=namespace, **options)
        _ = broker.metrics  # creates them, so that counting starts now
        return broker

    brokers = BrokerPool(open_one)
    return Server(
        brokers,
        (*ROUTES, *store_api.routes()),
        access or TokenAuthenticator(brokers),
        limits,
        pages=PAGES,
        sites=AllowedHosts(hosts),
        max_dead=max_dead,
    )
