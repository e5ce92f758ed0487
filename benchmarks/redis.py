"""Valkey as the scenarios use it: a server of its own for each case, on disk; its settings are read back."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import NotReady

SYNCS = {"always": "full", "everysec": "relaxed"}
"""When the server syncs its log, and what Redrive calls that."""


@contextmanager
def server(directory: Path, sync: str) -> Iterator[Any]:
    """A server whose data lies in the directory; stopped at the end, and the data kept. Ours, raw and peers alike."""
    try:
        from tests.servers.redis import Server
    except ImportError as error:
        raise NotReady(f"redis: {error}") from error
    # No rewriting of the log while something is measured: whom it hits would be chance.
    running = Server(directory, appendfsync=sync, auto_aof_rewrite_percentage="0")
    try:
        require_sync(running, sync)
        yield running
        require_sync(running, sync)
    finally:
        running.stop(signal.SIGTERM)


def require_sync(running: Any, sync: str) -> None:
    """What an acknowledgement rests on, as the server says it."""
    wanted = {"appendonly": "yes", "appendfsync": sync, "maxmemory-policy": "noeviction", "save": ""}
    with closing(running.client(decode_responses=True)) as client:
        found = {name: client.config_get(name)[name] for name in wanted}
    if found != wanted:
        raise RuntimeError(f"measured with {found}, not {wanted}")


@contextmanager
def open_broker(url: str, sync: str) -> Iterator[Any]:
    """A blocking Broker, closed at the end."""
    try:
        from redrive import connect
    except ImportError as error:
        raise NotReady(f"redrive: {error}") from error
    with connect(url, durability=SYNCS[sync]) as broker:
        yield broker


@asynccontextmanager
async def open_async_broker(url: str, sync: str) -> AsyncIterator[Any]:
    """An AsyncBroker, closed at the end."""
    from redrive import connect_async

    async with connect_async(url, durability=SYNCS[sync]) as broker:
        yield broker
