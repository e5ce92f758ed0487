"""The cost of one lease must not grow with what else is in the database: its time."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, median_microseconds
from benchmarks.postgres import open_async_broker, open_broker, server
from benchmarks.scenarios.lease_cost import LARGE, LIMIT, MANY_QUEUES, REPEAT, SMALL, WARM_UP, WORDS
from benchmarks.subject import (
    FILL_BATCH,
    LONG_SECONDS,
    QUEUE,
    create_queue,
    fill,
    lease_many,
    raised,
    retry_settings,
    run_async,
)


async def _settle_all(url: str, count: int, settle: Callable[[Any, Any], Awaitable[Any]]) -> None:
    async with open_async_broker(url) as broker:
        for start in range(0, count, FILL_BATCH):
            leases = await broker.lease(QUEUE, limit=min(FILL_BATCH, count - start))
            await asyncio.gather(*(settle(broker, lease) for lease in leases))


def _fill(condition: str, url: str, count: int) -> None:
    with open_broker(url) as broker:
        match condition:
            case "pending":
                fill(broker, count)
            case "scheduled":
                fill(broker, count, delay=LONG_SECONDS, priority=9)
            case "active":
                fill(broker, count)
                lease_many(broker, count)
            case "queues":
                for number in range(count):
                    create_queue(broker, f"other-{number:05}")
                    broker.put(f"other-{number:05}", {"n": number})
            case _:
                fill(broker, count)
    if condition == "dead":
        run_async(_settle_all(url, count, lambda broker, lease: broker.bury(lease)))
    elif condition == "failed":
        error = raised(1)
        run_async(_settle_all(url, count, lambda broker, lease: broker.fail(lease, error)))


def prepare(condition: str, count: int, directory: Path) -> None:
    import psycopg

    with server(directory) as url:
        with open_broker(url) as broker:
            create_queue(broker, **retry_settings())
        _fill(condition, url, count)
        with psycopg.connect(url, autocommit=True) as connection:  # as the server would do by itself, and not later
            connection.execute("VACUUM ANALYZE")


def measure(directory: Path) -> Measurement:
    """The time of a lease. What its statements touch is in `tests/integration/test_postgres_marks.py`."""
    with server(directory) as url, open_broker(url, maintenance=False) as broker:
        fill(broker, REPEAT + WARM_UP)
        leases: list[Any] = []

        def lease() -> int:
            taken = broker.lease(QUEUE, limit=1)
            leases.extend(taken)
            return len(taken)

        microseconds = median_microseconds(lease, REPEAT, WARM_UP)
        for taken in leases:
            broker.complete(taken)
    return Measurement({"microseconds": microseconds})


CONDITIONS = ("pending", "dead", "failed", "active", "scheduled", "queues")
CASES = [
    Case(
        f"lease.{condition}.{count}",
        "The cost of one lease",
        f"{count:,} {WORDS[condition]}",
        measure,
        prepare=partial(prepare, condition, count),
    )
    for condition in CONDITIONS
    for count in ((MANY_QUEUES,) if condition == "queues" else (SMALL, LARGE))
]
BARS = [
    Bar(
        f"lease with {large:,} {WORDS[condition]}: median time at most 1.3 × with {against}",
        f"lease.{condition}.{large}",
        (small,),
        figure="microseconds",
        at_most=LIMIT,
    )
    for condition in CONDITIONS
    for large, small, against in (
        [(MANY_QUEUES, f"lease.pending.{SMALL}", "one queue of 1,000")]
        if condition == "queues"
        else [(LARGE, f"lease.{condition}.{SMALL}", "1,000")]
    )
]
