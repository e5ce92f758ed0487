"""Opening and configuration of a connection to PostgreSQL: URL, timeouts, planner, durability."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from redrive.errors import EngineUnsupported, InvalidInput, StoreUnavailable
from redrive.model.url import ENCODED, redact_url
from redrive.stores.postgres.session import TimeoutConnection, adapt

OLDEST_SERVER = 140_000
SETTINGS = {
    "application_name": "redrive",
    "client_min_messages": "warning",
    "statement_timeout": "60s",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "10s",
}
"""Settings of every connection. The server notices a vanished client within a transaction, and releases its locks, by
default after two hours; it regards a transaction as idle only between pipelines, and ours is within one. Warnings are
enabled regardless of the role: a warning at COMMIT says that a synchronous standby may not have the commit."""
_PLANS = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
"""Planner settings that make every statement use an index. If a table was empty when it was last analyzed, the planner
would scan all of it, including dead rows."""
_WRITERS_PLANS = {"plan_cache_mode": "force_generic_plan", "enable_bitmapscan": "off"}
"""Planner settings of the writer. Statements are planned once, as their values do not matter. A bitmap scan would read
all entries to find one."""
TRANSACTION_TIMEOUT = "90s"
"""The limit for a client that is alive and silent within a transaction."""
_KNOWS_TRANSACTION_TIMEOUT = 170_000
CONNECT_OPTIONS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""Defaults that the URL overrides. tcp_user_timeout is in milliseconds."""


def connection_info(url: str) -> dict[str, Any]:
    """Return the connection parameters of a URL. The driver's error is not shown: it may quote a password."""
    try:
        info = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        info = None
    if info is None or not re.fullmatch(r"[\d,]*", str(info.get("port") or "")):
        raise InvalidInput(
            f"{redact_url(url)!r} cannot be read as a URL of PostgreSQL; {ENCODED}, followed by parameters of libpq"
        )
    return {**CONNECT_OPTIONS, **info}


def display_name(info: Mapping[str, Any], schema: str) -> str:
    """Return the name of a database in errors, without its password."""
    host, port = info.get("host") or "localhost", info.get("port") or 5432
    return f"postgresql://{host}:{port}/{info.get('dbname') or info.get('user') or ''} ({schema})"


def configure(connection: TimeoutConnection, name: str, *, relaxed: bool) -> None:
    """Check the server's version and durability, and set what a connection needs."""
    if connection.info.server_version < OLDEST_SERVER:
        found = f"{connection.info.server_version // 10_000}"
        raise EngineUnsupported("PostgreSQL", found, f"{OLDEST_SERVER // 10_000} or newer is needed")
    adapt(connection)
    connection.prepare_threshold = 1
    connection.prepared_max = 500
    settings = {**SETTINGS, **_PLANS, **({"synchronous_commit": "off"} if relaxed else {})}
    if connection.info.server_version >= _KNOWS_TRANSACTION_TIMEOUT:
        settings["transaction_timeout"] = TRANSACTION_TIMEOUT
    _set(connection, settings)
    if relaxed:
        return
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
    row = connection.execute("SELECT current_setting('fsync')").fetchone()
    if row is not None and row[0] != "on":
        problem = "its fsync is off: a power cut loses acknowledged work; enable it, or pass durability='relaxed'"
        raise StoreUnavailable(name, problem)


def configure_writer(connection: TimeoutConnection) -> None:
    """Set what only the writing connection needs."""
    _set(connection, _WRITERS_PLANS)


def _set(connection: TimeoutConnection, settings: dict[str, str]) -> None:
    connection.execute(
        "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS wanted(name, value)",
        (list(settings), list(settings.values())),
    )
