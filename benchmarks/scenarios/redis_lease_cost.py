"""Redis: the cost of one lease must not grow with what else is there."""

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, median_microseconds
from benchmarks.redis import open_async_broker, open_broker, server
from benchmarks.scenarios.lease_cost import LARGE, LIMIT, REPEAT, SMALL, WARM_UP, WORDS
from benchmarks.subject import (
    FILL_BATCH,
    LONG_SECONDS,
    QUEUE,
    create_queue,
    fill,
    lease_many,
    retry_settings,
    run_async,
)

SYNC = "everysec"
"""A sync on disk takes longer than the script, and would hide what grows."""
CONDITIONS = {"pending": LARGE, "active": LARGE, "scheduled": LARGE, "dead": 100_000}
"""How many there are. A death takes its time, so there are fewer."""


async def _bury_all(url: str, count: int) -> None:
    import asyncio

    async with open_async_broker(url, SYNC) as broker:
        for start in range(0, count, FILL_BATCH):
            leases = await broker.lease(QUEUE, limit=min(FILL_BATCH, count - start))
            await asyncio.gather(*(broker.bury(lease) for lease in leases))


def prepare(condition: str, count: int, directory: Path) -> None:
    with server(directory, SYNC) as running:
        with open_broker(running.url, SYNC) as broker:
            create_queue(broker, **retry_settings())
            options: dict[str, Any] = {"delay": LONG_SECONDS, "priority": 9} if condition == "scheduled" else {}
            fill(broker, count, **options)
            if condition == "active":
                lease_many(broker, count)
        if condition == "dead":
            run_async(_bury_all(running.url, count))


def measure(directory: Path) -> Measurement:
    with server(directory, SYNC) as running, open_broker(running.url, SYNC) as broker:
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


CASES = [
    Case(
        f"lease.{condition}.{count}",
        "The cost of one lease",
        f"{count:,} {WORDS[condition]}",
        measure,
        prepare=partial(prepare, condition, count),
    )
    for condition, large in CONDITIONS.items()
    for count in (SMALL, large)
]
BARS = [
    Bar(
        f"lease with {large:,} {WORDS[condition]}: median time at most 1.3 × with 1,000",
        f"lease.{condition}.{large}",
        (f"lease.{condition}.{SMALL}",),
        figure="microseconds",
        at_most=LIMIT,
    )
    for condition, large in CONDITIONS.items()
]
