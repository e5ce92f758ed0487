"""PostgreSQL as the scenarios use it: a server of its own for each case, on disk, with fsync on; read back."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import NotReady

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "15min"}
"""Ours, the raw cases and the peers run with the same ones."""


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """The URL of a server whose data lies in the directory; stopped at the end, and the data kept."""
    try:
        from tests.servers.postgres import Server
    except ImportError as error:
        raise NotReady(f"postgres: {error}") from error
    directory.chmod(0o755)  # a server that root starts runs as nobody
    folder = directory / "pg"
    folder.mkdir(exist_ok=True)
    running = Server(folder, **SETTINGS)
    try:
        require_durable(running.url)
        yield running.url
    finally:
        running.stop(signal.SIGINT)


def require_durable(url: str) -> None:
    """What an acknowledged commit rests on, as the server says it."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            row = connection.execute(f"SHOW {name}").fetchone()
            if row is None or row[0] != "on":
                raise RuntimeError(f"measured with {name}={row}, not on")


@contextmanager
def open_broker(url: str, **options: Any) -> Iterator[Any]:
    """A blocking Broker, closed at the end."""
    from redrive import connect

    with connect(url, **options) as broker:
        yield broker


@asynccontextmanager
async def open_async_broker(url: str, **options: Any) -> AsyncIterator[Any]:
    """An AsyncBroker, closed at the end."""
    from redrive import connect_async

    async with connect_async(url, **options) as broker:
        yield broker
