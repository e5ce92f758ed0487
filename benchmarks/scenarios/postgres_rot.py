"""Queue rot: a steady load while somebody holds an old snapshot open, so that nothing that is dead can be cleaned up.

One process puts what is offered, leases it in small batches and completes it, as a worker would. First without the
snapshot, then with it, the last part of each is what counts.
"""

import asyncio
import os
import statistics
import time
from dataclasses import dataclass, field
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


async def _measure(url: str) -> tuple[Load, float, Load, float]:
    import psycopg

    async with open_async_broker(url) as broker:
        before, before_end = await _run(broker, BEFORE_SECONDS)
        async with await psycopg.AsyncConnection.connect(url) as other:
            await other.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await other.execute("SELECT count(*) FROM redrive.redrive_item")
            held, held_end = await _run(broker, HELD_SECONDS)
            await other.rollback()
        return before, before_end, held, held_end


def measure(directory: Path) -> Measurement:
    with server(directory) as url:
        with open_broker(url) as broker:
            broker.create_queue(QUEUE, lease_timeout=LEASE_SECONDS)
        before, before_end, held, held_end = run_async(_measure(url))
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
            "held_seconds": HELD_SECONDS,
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
        measure,
    )
]
BARS = [
    Bar("queue rot: of what is offered, completed", "rot.held", (), "completed_share", at_least=0.95),
    Bar("queue rot: median lease, times that before", "rot.held", (), "p50_times", at_most=1.5),
    Bar("queue rot: p99 of leases, times that before", "rot.held", (), "p99_times", at_most=3.0),
]
