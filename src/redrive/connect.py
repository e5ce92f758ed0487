"""Selection of the store by URL. The only module that knows every store."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Unpack
from urllib.parse import unquote, urlsplit

from redrive.broker.async_broker import AsyncBroker
from redrive.broker.broker import Broker
from redrive.broker.core import Core
from redrive.broker.redaction import Redaction
from redrive.broker.signal_shield import claimed
from redrive.broker.store_registry import StoreRegistry
from redrive.clock import Clock, SystemClock
from redrive.errors import InvalidInput, StoreUnavailable, short_repr
from redrive.model.caller_input import checking_input, exact_str, table
from redrive.model.declaration import lists_options
from redrive.model.limits import DEFAULT_URL, MAX_BATCH, check_name
from redrive.model.options import ConnectOptions
from redrive.model.redact import RedactOption
from redrive.model.retry_policy import DelayFunction
from redrive.model.sqlite_url import parse_sqlite_url
from redrive.model.url import ENCODED, SERVER_SCHEMES, redact_url
from redrive.store import Store

_URLS = "memory://, sqlite:///FILE, postgresql://USER@HOST/DATABASE, redis://HOST and http://HOST:7272"
TOKEN_VARIABLE = "REDRIVE_TOKEN"
"""The environment variable with the default access token for a server."""


@lists_options(ConnectOptions)
def connect(url: str = DEFAULT_URL, **options: Unpack[ConnectOptions]) -> Broker:
    """Open a broker on the store that the URL names.

    `memory://` ends with this broker; `sqlite:///jobs.db` is a file in the working directory and
    `sqlite:////var/lib/jobs.db` an absolute path, for its owner only unless `?mode=0660` admits a group;
    `postgresql://user@host/database` keeps its tables in the schema `redrive`, or the one that `?schema=` names;
    `redis://host` and `redis+cluster://host` keep their keys under the prefix `redrive`, or the one that `?prefix=`
    names, and wait for `?wait_replicas=` replicas; `http://host:7272` and `https://host` are servers (`redrive serve`).
    """
    return Broker(_open_core(url, **options))


@lists_options(ConnectOptions)
def connect_async(url: str = DEFAULT_URL, **options: Unpack[ConnectOptions]) -> AsyncBroker:
    """Open a broker for programs on an event loop: every method is awaited. Opening it does not need a running loop."""
    return AsyncBroker(_open_core(url, **options))


def token_for(url: str) -> str | None:
    """Return the value of REDRIVE_TOKEN if the URL is that of a server, else None: only servers take a token."""
    is_server = isinstance(url, str) and url.startswith(("http://", "https://"))
    return os.environ.get(TOKEN_VARIABLE) if is_server else None


def _open_core(
    url: str,
    *,
    namespace: str = "default",
    token: str | None = None,
    store_name: str | None = None,
    stores: Mapping[str, str] | None = None,
    actor: str | None = None,
    backoffs: Mapping[str, DelayFunction] | None = None,
    durability: str = "full",
    create_if_missing: bool = True,
    maintenance: bool = True,
    redact: RedactOption = None,
    clock: Clock | None = None,
) -> Core:
    with checking_input("durability"):
        is_level = isinstance(durability, str) and exact_str(durability) in ("full", "relaxed")
    if not is_level:
        raise InvalidInput(f"durability is 'full' or 'relaxed', not {short_repr(durability, 40)}")
    with checking_input("redact"):
        redaction = Redaction(redact)
    with checking_input("backoffs"):
        named = _checked_backoffs(backoffs or {})
    namespace = check_name("namespace", namespace)
    name = None if store_name is None else check_name("store", store_name)
    with checking_input("stores"):
        others = _checked_stores(name, stores or {})
    with checking_input("url"):
        url = exact_str(url) if isinstance(url, str) else url

    def open_one(where: str, called: str | None, table: StoreRegistry, token: str | None = None) -> Core:
        store = _open(where, namespace, durability == "relaxed", create_if_missing, clock, called, token)
        runs = maintenance and urlsplit(where).scheme not in SERVER_SCHEMES
        return Core(store, actor=actor, backoffs=named, maintenance=runs, redaction=redaction, stores=table)

    openers = {called: partial(open_one, where, called) for called, where in others.items()}
    return claimed(partial(open_one, url, name, StoreRegistry(openers), token), Core.close)


def _checked_stores(name: str | None, stores: Mapping[str, str]) -> Mapping[str, str]:
    """Return the names and URLs of other stores, checked. They are opened when they are first needed."""
    if not isinstance(stores, Mapping):
        raise InvalidInput(f"stores is a table from names to URLs, not {redact_url(stores)}")
    stores = table("stores", stores, MAX_BATCH)
    if stores and name is None:
        raise InvalidInput("stores= needs store_name=: other stores refer to this one by that name")
    for other, url in stores.items():
        check_name("store", other)
        if other == name:
            raise InvalidInput(f"'{name}' is the name of this store itself; give the other one another name")
        if not isinstance(url, str):
            raise InvalidInput(f"stores has no URL under '{other}', but {redact_url(url)}; there are {_URLS}")
    return stores


def _checked_backoffs(backoffs: Mapping[str, DelayFunction]) -> Mapping[str, DelayFunction]:
    if not isinstance(backoffs, Mapping):
        raise InvalidInput(f"backoffs is a table from names to functions, not {short_repr(backoffs, 60)}")
    backoffs = table("backoffs", backoffs, MAX_BATCH)
    for name, function in backoffs.items():
        check_name("delay function", name)
        if not callable(function):
            raise InvalidInput(f"backoffs has no function under '{name}': {short_repr(function, 60)} cannot be called")
    return backoffs


def _open(
    url: str,
    namespace: str,
    relaxed: bool,
    create: bool,
    clock: Clock | None,
    name: str | None = None,
    token: str | None = None,
) -> Store:
    if not isinstance(url, str):
        raise InvalidInput(f"a URL is a text, not {redact_url(url)}; there are {_URLS}")
    try:
        parts = urlsplit(url)
    except ValueError:  # the text of the error quotes the URL
        raise InvalidInput(f"{redact_url(url)!r} cannot be read as a URL; there are {_URLS}") from None
    if token is not None and parts.scheme not in SERVER_SCHEMES:
        raise InvalidInput("a token is for a server, http://HOST:7272; leave it out for a store that is opened here")
    named = {} if name is None else {"name": name}
    match parts.scheme:
        case "memory":
            from redrive.stores.memory import MemoryStore

            if url[len("memory:") :].strip("/"):
                raise InvalidInput(
                    f"{redact_url(url)!r} names something, and a store in memory has no name; write memory://"
                )
            if not create:
                raise InvalidInput(
                    "a store in memory always starts empty; leave create_if_missing=False out, or name a file"
                )
            return MemoryStore(clock or SystemClock(), namespace, **named)
        case "sqlite":
            from redrive.stores.sqlite import SQLiteStore

            file = parse_sqlite_url(url)
            if not create and not Path(file.path).exists():
                problem = (
                    "the file does not exist; correct the path, or leave create_if_missing=False out for an empty store"
                )
                raise StoreUnavailable(str(Path(file.path).absolute()), problem)
            return SQLiteStore(
                Path(file.path), mode=file.mode, namespace=namespace, relaxed=relaxed, clock=clock, **named
            )
        case "postgresql" | "postgres":
            return _open_postgres(url, namespace, relaxed, create, clock, named)
        case scheme if scheme.removesuffix("+cluster") in ("redis", "rediss", "valkey", "valkeys", "unix"):
            return _open_redis(url, namespace, relaxed, create, clock, named)
        case "http" | "https":
            return _open_server(url, namespace, relaxed, token, clock, name)
        case _:
            raise InvalidInput(f"{redact_url(url)!r} is not a URL of a store; there are {_URLS}")


def _open_postgres(
    url: str, namespace: str, relaxed: bool, create: bool, clock: Clock | None, named: Mapping[str, str]
) -> Store:
    """Open a PostgreSQL store. URL options belong to the driver, except `schema`."""
    try:
        from redrive.stores.postgres import PostgresStore
    except ImportError as error:
        raise InvalidInput(f"PostgreSQL needs psycopg: pip install 'redrive[postgres]' ({error})") from error
    _check_login(url.partition("?")[0], "@/")
    address, ours = _without(("schema",), url)
    return PostgresStore(
        address,
        namespace=namespace,
        schema_name=check_name("schema", ours.get("schema", "redrive")),
        relaxed=relaxed,
        create=create,
        clock=clock,
        **named,
    )


def _open_redis(
    url: str, namespace: str, relaxed: bool, create: bool, clock: Clock | None, named: Mapping[str, str]
) -> Store:
    """Open a Redis store. URL options belong to the driver, except `prefix` and `wait_replicas`."""
    try:
        from redrive.stores.redis import RedisStore
    except ImportError as error:
        raise InvalidInput(f"Redis needs redis-py: pip install 'redrive[redis]' ({error})") from error
    _check_login(url, "/?#")
    address, ours = _without(("prefix", "wait_replicas"), url)
    replicas = ours.get("wait_replicas", "0")
    if not replicas.isdecimal():
        raise InvalidInput(f"wait_replicas is a number of replicas, not {replicas!r:.40}")
    return RedisStore(
        address,
        namespace=namespace,
        prefix=check_name("prefix", ours.get("prefix", "redrive")),
        relaxed=relaxed,
        create=create,
        clock=clock,
        wait_replicas=int(replicas),
        **named,
    )


def _check_login(url: str, ends: str) -> None:
    """Refuse a password that makes the start of the host ambiguous: a driver would report its rest as the host.

    ends: the characters at which the driver ends user and password, besides the last `@`.
    """
    before, at, _ = url.partition("://")[2].rpartition("@")
    unexpected = ":" if before.startswith("/") else ends  # a path, without a user
    if at and any(character in before for character in unexpected):
        raise InvalidInput(f"{redact_url(url)!r} has characters that mean something else in a URL; {ENCODED}")


def _open_server(
    url: str, namespace: str, relaxed: bool, token: str | None, clock: Clock | None, name: str | None
) -> Store:
    """Open a client of a server. Nothing is created: the server created its store when it started."""
    try:
        from redrive.client import RemoteStore
    except ImportError as error:
        raise InvalidInput(f"a server needs urllib3: pip install 'redrive[client]' ({error})") from error
    if relaxed:
        raise InvalidInput("how durable a server is was decided when it was started; leave durability='relaxed' out")
    return RemoteStore(url, namespace=namespace, token=token, clock=clock, name=name)


def _without(names: Collection[str], url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without the options of these names, and those options. The rest of the URL is unchanged: drivers
    differ in what they treat as equal (`///` and `//`, `+` and a space)."""
    address, _, query = url.partition("?")
    found: dict[str, str] = {}
    others = []
    for option in query.split("&"):
        name, _, value = option.partition("=")
        if name not in names:
            others.append(option)
        elif name in found:
            raise InvalidInput(f"the URL has more than one {name}; leave one")
        else:
            found[name] = unquote(value)
    rest = "&".join(filter(None, others))
    return f"{address}?{rest}" if rest else address, found
