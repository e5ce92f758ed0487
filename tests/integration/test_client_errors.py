"""Status, codes, Retry-After and class are read from the errors of real client libraries, which Redrive never imports.

The libraries are in environments of their own, made once: `tests/clients` has what runs there, and their pins.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Server
from tests.servers.redis import Server as RedisServer

from benchmarks.peers.environment import interpreter

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".bench" / "clients"
IN_SECONDS, AT_A_DATE = 7.0, 120.0
"""What the servers ask for with 429 and with 503."""

STATUS_CLASSES = {429: ("transient", IN_SECONDS), 503: ("transient", AT_A_DATE), 500: ("transient", None),
                  403: ("permission", None)}  # fmt: skip


def read_by(script: str, *arguments: object) -> dict[str, Any]:
    """What is read from each error, by running a script of `tests/clients` in its environment."""
    python = interpreter(ROOT / "tests" / "clients" / f"{script}.py", ENVIRONMENTS)
    proxies = {name for name in os.environ if name.lower().endswith("_proxy")}
    done = subprocess.run(
        [python, "-m", f"tests.clients.{script}", *map(str, arguments)],
        cwd=ROOT,
        env={**{name: value for name, value in os.environ.items() if name not in proxies}, "PYTHONPATH": "src:."},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    read: dict[str, Any] = json.loads(done.stdout)
    return read


def answers(client: str, *types: str, waits: bool = True) -> Iterator[tuple[str, list[Any]]]:
    """What each status is read as. One type is that of all errors."""
    every = types if len(types) > 1 else types * len(STATUS_CLASSES)
    for type, (status, (error_class, wait)) in zip(every, STATUS_CLASSES.items(), strict=True):
        yield f"{client} {status}", [type, error_class, status, [], wait if waits else None]


def network(type: str, *codes: str) -> list[Any]:
    return [type, "network", None, [*codes], None]


def coded(type: str, error_class: str, *codes: str, status: int | None = None, wait: float | None = None) -> list[Any]:
    return [type, error_class, status, sorted(codes), wait]


def grpc(error_class: str, code: str, wait: float | None = None, type: str = "grpc._channel._InactiveRpcError") -> Any:
    return coded(type, error_class, code, wait=wait)


HTTP = {
    **dict(answers("requests", "requests.exceptions.HTTPError")),
    "requests closed": network("requests.exceptions.ConnectionError"),
    "requests refused": network("requests.exceptions.ConnectionError"),
    "requests retries": coded("requests.exceptions.RetryError", "transient", status=429),
    **dict(answers("httpx", "httpx.HTTPStatusError")),
    "httpx closed": network("httpx.RemoteProtocolError"),
    "httpx refused": network("httpx.ConnectError"),
    "httpx wrapped": coded("LookupError", "transient", wait=IN_SECONDS),
    **dict(answers("urllib", "urllib.error.HTTPError")),
    "urllib refused": network("urllib.error.URLError", "ECONNREFUSED"),
    **dict(answers("urllib3", "urllib3.exceptions.MaxRetryError", waits=False)),
    "urllib3 closed": network("urllib3.exceptions.MaxRetryError"),
    "urllib3 refused": network("urllib3.exceptions.MaxRetryError"),
    **dict(answers("aiohttp", "aiohttp.client_exceptions.ClientResponseError")),
    "aiohttp closed": coded("aiohttp.client_exceptions.ServerDisconnectedError", "transient"),
    "aiohttp refused": network("aiohttp.client_exceptions.ClientConnectorError", "ECONNREFUSED"),
    "botocore 400/ThrottlingException": coded(
        "botocore.errorfactory.ThrottlingException", "transient", "ThrottlingException", status=400
    ),
    "botocore 429/SlowDown": coded(
        "botocore.exceptions.ClientError", "transient", "SlowDown", status=429, wait=IN_SECONDS
    ),
    "botocore 503/Unheard": coded(
        "botocore.exceptions.ClientError", "transient", "Unheard", status=503, wait=AT_A_DATE
    ),
    "botocore 500/Unheard": coded("botocore.exceptions.ClientError", "transient", "Unheard", status=500),
    "botocore 403/AccessDenied": coded("botocore.exceptions.ClientError", "permission", "AccessDenied", status=403),
    "botocore closed": network("botocore.exceptions.ConnectionClosedError"),
    "botocore refused": network("botocore.exceptions.EndpointConnectionError"),
    "openai 429/rate_limit_exceeded": coded(
        "openai.RateLimitError", "transient", "rate_limit_exceeded", status=429, wait=IN_SECONDS
    ),
    "openai 429/insufficient_quota": coded(
        "openai.RateLimitError", "resource", "insufficient_quota", status=429, wait=IN_SECONDS
    ),
    "openai 503/x": coded("openai.InternalServerError", "transient", "x", status=503, wait=AT_A_DATE),
    "openai 500/x": coded("openai.InternalServerError", "transient", "x", status=500),
    "openai 403/x": coded("openai.PermissionDeniedError", "permission", "x", status=403),
    "openai closed": network("openai.APIConnectionError"),
    "openai refused": network("openai.APIConnectionError"),
    "anthropic 429/rate_limit_error": coded(
        "anthropic.RateLimitError", "transient", "rate_limit_error", status=429, wait=IN_SECONDS
    ),
    "anthropic 529/overloaded_error": coded("anthropic.OverloadedError", "transient", "overloaded_error", status=529),
    "anthropic 501/x": coded("anthropic.HTTPNotImplementedError", "permanent", "x", status=501),
    "anthropic 503/x": coded("anthropic.ServiceUnavailableError", "transient", "x", status=503, wait=AT_A_DATE),
    "anthropic 500/x": coded("anthropic.InternalServerError", "transient", "x", status=500),
    "anthropic 403/x": coded("anthropic.PermissionDeniedError", "permission", "x", status=403),
    "anthropic closed": network("anthropic.APIConnectionError"),
    "anthropic refused": network("anthropic.APIConnectionError"),
    "grpc UNAVAILABLE": grpc("transient", "UNAVAILABLE"),
    "grpc UNAVAILABLE retry-after=7": grpc("transient", "UNAVAILABLE", IN_SECONDS),
    "grpc RESOURCE_EXHAUSTED grpc-retry-pushback-ms=250": grpc("resource", "RESOURCE_EXHAUSTED", 0.25),
    "grpc PERMISSION_DENIED": grpc("permission", "PERMISSION_DENIED"),
    "grpc INVALID_ARGUMENT": grpc("validation", "INVALID_ARGUMENT"),
    "grpc NOT_FOUND": grpc("permanent", "NOT_FOUND"),
    "grpc INTERNAL": grpc("transient", "INTERNAL"),
    "grpc too late": grpc("network", "DEADLINE_EXCEEDED"),
    "grpc refused": grpc("transient", "UNAVAILABLE"),
    "grpc.aio": grpc("transient", "UNAVAILABLE", IN_SECONDS, "grpc.aio._call.AioRpcError"),
    "smtplib busy": coded("smtplib.SMTPConnectError", "transient", "SMTP_421"),
    "smtplib login": coded("smtplib.SMTPAuthenticationError", "permission", "SMTP_535"),
    "smtplib later": coded("smtplib.SMTPRecipientsRefused", "transient", "SMTP_450"),
    "smtplib unknown": coded("smtplib.SMTPRecipientsRefused", "permanent", "SMTP_550"),
    "smtplib some later": coded("smtplib.SMTPRecipientsRefused", "transient", "SMTP_450", "SMTP_550"),
    "smtplib full": coded("smtplib.SMTPDataError", "resource", "SMTP_452"),
    "smtplib spam": coded("smtplib.SMTPDataError", "permanent", "SMTP_554"),
    "smtplib closed": network("smtplib.SMTPServerDisconnected"),
    "smtplib refused": network("ConnectionRefusedError", "ECONNREFUSED"),
}

SQL = {
    # what happens: class, SQLSTATE, and the names that psycopg, asyncpg and SQLAlchemy have for it
    "unique": ("validation", "23505", "UniqueViolation", "UniqueViolationError", "IntegrityError"),
    "too long": ("validation", "22001", "StringDataRightTruncation", "StringDataRightTruncationError", "DataError"),
    "denied": ("permission", "42501", "InsufficientPrivilege", "InsufficientPrivilegeError", "ProgrammingError"),
    "cancelled": ("transient", "57014", "QueryCanceled", "QueryCanceledError", "OperationalError"),
    "no table": ("permanent", "42P01", "UndefinedTable", "UndefinedTableError", "ProgrammingError"),
    "disk full": ("resource", "53100", "DiskFull", "DiskFullError", "OperationalError"),
    "deadlock": ("transient", "40P01", "DeadlockDetected", "DeadlockDetectedError", "OperationalError"),
    "serialization": ("transient", "40001", "SerializationFailure", "SerializationError", "OperationalError"),
    "system": ("resource", "58030", "IoError", "PostgresIOError", "OperationalError"),
}
SQLALCHEMY_CODES = {
    "IntegrityError": "gkpj",
    "DataError": "9h9h",
    "ProgrammingError": "f405",
    "OperationalError": "e3q8",
}
"""Of its documentation."""

DATABASES = {
    **{f"psycopg {what}": coded(f"psycopg.errors.{own}", kind, state) for what, (kind, state, own, *_) in SQL.items()},
    "psycopg terminated": coded("psycopg.errors.AdminShutdown", "transient", "57P01"),
    "psycopg locked": coded("psycopg.errors.LockNotAvailable", "transient", "55P03"),
    "psycopg refused": network("psycopg.OperationalError"),
    **{
        f"asyncpg {what}": coded(f"asyncpg.exceptions.{own}", kind, state)
        for what, (kind, state, _, own, _) in SQL.items()
    },
    "asyncpg terminated": network("asyncpg.exceptions._base.InterfaceError"),
    "asyncpg locked": coded("asyncpg.exceptions.LockNotAvailableError", "transient", "55P03"),
    "asyncpg full_up": coded("asyncpg.exceptions.TooManyConnectionsError", "resource", "53300"),
    "asyncpg unknown": coded("asyncpg.exceptions.InvalidAuthorizationSpecificationError", "permission", "28000"),
    "asyncpg refused": network("ConnectionRefusedError", "ECONNREFUSED"),
    **{
        f"sqlalchemy {what}": coded(f"sqlalchemy.exc.{own}", kind, state, SQLALCHEMY_CODES[own])
        for what, (kind, state, *_, own) in SQL.items()
    },
    "sqlalchemy terminated": coded("sqlalchemy.exc.OperationalError", "transient", "57P01", "e3q8"),
    "sqlalchemy refused": coded("sqlalchemy.exc.OperationalError", "transient", "e3q8"),
    "sqlalchemy locked": coded("sqlalchemy.exc.OperationalError", "transient", "SQLITE_BUSY", "e3q8"),
    "sqlite3 locked": coded("sqlite3.OperationalError", "transient", "SQLITE_BUSY"),
    "sqlite3 unique": coded("sqlite3.IntegrityError", "validation", "SQLITE_CONSTRAINT_PRIMARYKEY"),
    "sqlite3 full": coded("sqlite3.OperationalError", "resource", "SQLITE_FULL"),
    "sqlite3 read-only": coded("sqlite3.OperationalError", "permission", "SQLITE_READONLY"),
    "sqlite3 no table": coded("sqlite3.OperationalError", "permanent", "SQLITE_ERROR"),
    "sqlite3 nowhere": coded("sqlite3.OperationalError", "permanent", "SQLITE_CANTOPEN"),
    "sqlite3 text": coded("sqlite3.DatabaseError", "permanent", "SQLITE_NOTADB"),
    "redis wrong type": coded("redis.exceptions.ResponseError", "permanent"),
    "redis watch": coded("redis.exceptions.WatchError", "transient"),
    "redis memory": coded("redis.exceptions.OutOfMemoryError", "resource", "OOM"),
    "redis denied": coded("redis.exceptions.NoPermissionError", "permission", "NOPERM"),
    "redis password": coded("redis.exceptions.AuthenticationError", "permission", "WRONGPASS"),
    "redis slow": network("redis.exceptions.TimeoutError"),
    "redis refused": network("redis.exceptions.ConnectionError"),
    "redis replica": coded("redis.exceptions.ReadOnlyError", "transient", "READONLY"),
}


def test_errors_of_http_grpc_and_smtp_clients_are_read() -> None:
    assert read_by("http_errors") == HTTP


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A server that the test may leave without memory, and as a replica of nothing."""
    server = RedisServer()
    yield server
    server.destroy()


def test_errors_of_database_clients_are_read(postgres: Server, own_redis: RedisServer, tmp_path: Path) -> None:
    assert read_by("database_errors", postgres.url, own_redis.port, tmp_path) == DATABASES
