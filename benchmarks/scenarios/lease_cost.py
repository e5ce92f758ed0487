"""The cost of one lease must not grow with what else is in the database: time, and SQLite VM steps."""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import watch
from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, median_microseconds
from benchmarks.subject import (
    LONG_SECONDS,
    QUEUE,
    create_queue,
    fill,
    lease_many,
    open_broker,
    raised,
    retry_settings,
    run_async,
    settle_all,
)

SMALL, LARGE, MANY_QUEUES = 1_000, 1_000_000, 10_000
REPEAT, WARM_UP = 300, 50
LIMIT = 1.3


def fill_pending(directory: Path, count: int) -> None:
    with open_broker(directory) as broker:
        fill(broker, count)


def fill_scheduled(directory: Path, count: int) -> None:
    with open_broker(directory) as broker:
        fill(broker, count, delay=LONG_SECONDS, priority=9)


def fill_active(directory: Path, count: int) -> None:
    with open_broker(directory) as broker:
        fill(broker, count)
        lease_many(broker, count)


def fill_dead(directory: Path, count: int) -> None:
    fill_pending(directory, count)
    run_async(settle_all(directory, count, lambda broker, lease: broker.bury(lease)))


def fill_failed(directory: Path, count: int) -> None:
    error = raised(1)
    fill_pending(directory, count)
    run_async(settle_all(directory, count, lambda broker, lease: broker.fail(lease, error)))


def fill_queues(directory: Path, count: int) -> None:
    with open_broker(directory) as broker:
        for number in range(count):
            name = f"other-{number:05}"
            create_queue(broker, name)
            broker.put(name, {"n": number})


FILLS: dict[str, Callable[[Path, int], None]] = {
    "pending": fill_pending,
    "dead": fill_dead,
    "failed": fill_failed,
    "active": fill_active,
    "scheduled": fill_scheduled,
    "queues": fill_queues,
}
WORDS = {
    "pending": "pending",
    "dead": "dead",
    "failed": "failed and waiting",
    "active": "active",
    "scheduled": "scheduled at a higher priority",
    "queues": "other queues",
}


def prepare(condition: str, count: int, directory: Path) -> None:
    with open_broker(directory) as broker:
        create_queue(broker, **retry_settings())
    FILLS[condition](directory, count)


def measure(directory: Path) -> Measurement:
    """The time of a lease first, with nothing attached; then its VM steps, on connections that are traced."""
    with open_broker(directory) as broker:
        fill(broker, REPEAT + WARM_UP)
        leases: list[Any] = []

        def lease() -> int:
            taken = broker.lease(QUEUE, limit=1)
            leases.extend(taken)
            return len(taken)

        microseconds = median_microseconds(lease, REPEAT, WARM_UP)
        for taken in leases:
            broker.complete(taken)
    return Measurement({"microseconds": microseconds, "vm_steps": _vm_steps(directory)})


def _vm_steps(directory: Path) -> float:
    steps = []
    with watch.statements() as seen, open_broker(directory) as broker:
        fill(broker, WARM_UP)
        for _ in range(WARM_UP):
            seen.clear()
            (lease,) = broker.lease(QUEUE, limit=1)
            steps.append(seen.vm_steps)
            broker.complete(lease)
    return statistics.median(steps)


CASES = [
    Case(
        f"lease.{condition}.{count}",
        "The cost of one lease",
        f"{count:,} {WORDS[condition]}",
        measure,
        prepare=partial(prepare, condition, count),
    )
    for condition in FILLS
    for count in ((MANY_QUEUES,) if condition == "queues" else (SMALL, LARGE))
]
BARS = [
    Bar(
        f"lease with {large:,} {WORDS[condition]}: {words} at most 1.3 × with {against}",
        f"lease.{condition}.{large}",
        (small,),
        figure=figure,
        at_most=LIMIT,
    )
    for condition in FILLS
    for large, small, against in (
        [(MANY_QUEUES, f"lease.pending.{SMALL}", "one queue of 1,000")]
        if condition == "queues"
        else [(LARGE, f"lease.{condition}.{SMALL}", "1,000")]
    )
    for figure, words in (("microseconds", "median time"), ("vm_steps", "SQLite VM steps"))
]
