"""Queue rot: a steady load beside an old transaction of others, so that nothing that is dead can be cleaned up.

One process puts what is offered, leases it in small batches and completes it, as a worker would. First alone, then
beside the transaction, the last part of each is what counts. The transaction holds a snapshot; or it has an id, and so
does another in a second database of the server: neither ever put an item.
"""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, payload
from benchmarks.postgres import open_async_broker, open_broker, server
from benchmarks.subject import LONG_SECONDS, QUEUE, run_async

RATE = 1_000
"""Items offered each second."""
TICK_SECONDS = 0.02
LIMIT = 20
WORKERS = 4
BEFORE_SECONDS = 20.0
HELD_SECONDS = float(os.environ.get("REDRIVE_BENCH_ROT_SECONDS", "300"))
ID_SECONDS = float(os.environ.get("REDRIVE_BENCH_ROT_SECONDS", "600"))
LAST_SECONDS = 20.0
"""What is judged: the leases at the end, when most is dead."""
LEASE_SECONDS = 30
"""Shorter than the run, so that the deadlines of what was completed lie in the past."""


@dataclass(slots=True)
class Load:
    """What was offered and done, and how long each lease that gave something took."""

    offered: int = 0
    completed: int = 0
    leases: list[tuple[float, float]] = field(default_factory=list)

    def since(self, start: float) -> list[float]:
        return [seconds * 1000 for ended, seconds in self.leases if ended >= start]


async def _offer(broker: Any, load: Load, end: float) -> None:
    """The same number each tick, whether or not the queue keeps up."""
    body, batch = payload(), int(RATE * TICK_SECONDS)
    due = time.perf_counter()
    puts: set[asyncio.Task[Any]] = set()
    while due < end:
        for _ in range(batch):
            put = asyncio.create_task(broker.put(QUEUE, body))
            puts.add(put)
            put.add_done_callback(puts.discard)
        load.offered += batch
        due += TICK_SECONDS
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    await asyncio.gather(*puts)


async def _work(broker: Any, load: Load, end: float) -> None:
    while time.perf_counter() < end:
        started = time.perf_counter()
        leases = await broker.lease(QUEUE, limit=LIMIT)
        ended = time.perf_counter()
        if not leases:
            await asyncio.sleep(TICK_SECONDS / 2)
            continue
        load.leases.append((ended, ended - started))
        await asyncio.gather(*(broker.complete(lease) for lease in leases))
        load.completed += len(leases)


async def _run(broker: Any, seconds: float) -> tuple[Load, float]:
    load, end = Load(), time.perf_counter() + seconds
    await asyncio.gather(_offer(broker, load, end), *(_work(broker, load, end) for _ in range(WORKERS)))
    return load, end


@asynccontextmanager
async def _snapshot(url: str) -> AsyncIterator[None]:
    """An old snapshot, as of a backup or a report."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await other.execute("SELECT count(*) FROM redrive.redrive_item")
        yield
        await other.rollback()


@asynccontextmanager
async def _ids(url: str) -> AsyncIterator[None]:
    """Two transactions that wrote something, here and in another database, and forgot to commit."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as here:
        await here.execute("CREATE DATABASE elsewhere")
        async with await psycopg.AsyncConnection.connect(url, dbname="elsewhere") as elsewhere:
            for other in (here, elsewhere):
                await other.execute("BEGIN")
                await other.execute("SELECT pg_current_xact_id()")
            yield


Holder = Callable[[str], AbstractAsyncContextManager[None]]


async def _measure(url: str, holder: Holder, seconds: float) -> tuple[Load, float, Load, float]:
    async with open_async_broker(url) as broker:
        before, before_end = await _run(broker, BEFORE_SECONDS)
        async with holder(url):
            held, held_end = await _run(broker, seconds)
        return before, before_end, held, held_end


def measure(directory: Path, holder: Holder, seconds: float) -> Measurement:
    with server(directory) as url:
        with open_broker(url) as broker:
            broker.create_queue(QUEUE, lease_timeout=LEASE_SECONDS)
        before, before_end, held, held_end = run_async(_measure(url, holder, seconds))
    first = before.since(before_end - BEFORE_SECONDS / 2)
    last = held.since(held_end - LAST_SECONDS) or [LONG_SECONDS * 1000.0]
    return Measurement(
        {
            "completed_share": held.completed / held.offered,
            "p50_ms": statistics.median(last),
            "p99_ms": statistics.quantiles(last, n=100)[-1],
            "p50_times": statistics.median(last) / statistics.median(first),
            "p99_times": statistics.quantiles(last, n=100)[-1] / statistics.quantiles(first, n=100)[-1],
        },
        {
            "held_seconds": seconds,
            "offered": held.offered,
            "completed": held.completed,
            "p50_ms_before": statistics.median(first),
            "p99_ms_before": statistics.quantiles(first, n=100)[-1],
        },
    )


CASES = [
    Case(
        "rot.held",
        "Queue rot",
        f"{RATE:,} items/s offered, a snapshot held open for {HELD_SECONDS:g} s",
        partial(measure, holder=_snapshot, seconds=HELD_SECONDS),
    ),
    Case(
        "rot.id",
        "Queue rot",
        f"{RATE:,} items/s offered, transactions with ids in two databases held open for {ID_SECONDS:g} s",
        partial(measure, holder=_ids, seconds=ID_SECONDS),
    ),
]
BARS = [
    Bar(f"queue rot, {beside}: {words}", case, (), figure, **limit)
    for case, beside, tail in (("rot.held", "a snapshot", 3.0), ("rot.id", "transaction ids", 1.5))
    for words, figure, limit in (
        ("of what is offered, completed", "completed_share", {"at_least": 0.95}),
        ("median lease, times that before", "p50_times", {"at_most": 1.5}),
        ("p99 of leases, times that before", "p99_times", {"at_most": tail}),
    )
]
