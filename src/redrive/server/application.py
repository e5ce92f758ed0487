"""A server as one call makes it: a store by its URL, every route, and who may call.

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
    """A server of all namespaces of a store, each opened when it is first asked for.

    access: who may call; without, whoever has one of the tokens that are in the store, and anybody until there is one.
    hosts: names that it answers to beside addresses and localhost, where no token is asked for; None: to any.
    max_dead: with more dead letters in a namespace than this, health is degraded.
    The options are those of `connect`.

    Where it is mounted in another application, call `close` when that ends.
    """

    def open_one(namespace: str) -> AsyncBroker:
        broker = connect_async(url, namespace=namespace, **options)
        _ = broker.metrics  # from now on it counts
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
