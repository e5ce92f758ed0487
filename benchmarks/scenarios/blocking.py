"""Blocking callers, one item and one transaction per call: in the main thread, in another one, and in 8 threads.

A call from the main thread goes by another thread, which no signal handler interrupts; calls from others do not."""

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import watch
from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, Step, payload, rate, run_one, run_threads
from benchmarks.subject import QUEUE, create_queue, fill, open_broker

BACKLOG = {200: 40_000, 10_000: 10_000}


def put_step(broker: Any, size: int) -> Step:
    body = payload(size)

    def step() -> int:
        broker.put(QUEUE, body)
        return 1

    return step


def lease_complete_step(broker: Any, size: int) -> Step:
    def step() -> int:
        leases = broker.lease(QUEUE, limit=1)
        if not leases:
            return 0
        broker.complete(leases[0])
        return 1

    return step


STEPS = {"put": put_step, "lease_complete": lease_complete_step}


WAYS = {
    "threads1": (1, "1 blocking caller"),
    "other1": (1, "1 blocking caller, not in the main thread"),
    "threads8": (8, "8 blocking callers"),
}


def measure(scenario: str, size: int, way: str, directory: Path) -> Measurement:
    with watch.connections() as opened, open_broker(directory) as broker:
        create_queue(broker)
        if scenario == "lease_complete":
            fill(broker, BACKLOG[size], size)
        step = STEPS[scenario](broker, size)
        threads, _ = WAYS[way]
        items, seconds = run_one(step) if way == "threads1" else run_threads([step] * threads)
        return rate(items, seconds, threads=threads, synchronous=watch.require_full_sync(opened))


def _title(scenario: str, size: int, way: str) -> str:
    words = {"put": "put", "lease_complete": "lease and complete"}[scenario]
    return f"{words}, {size:,} B, {WAYS[way][1]}"


WHY = "beside the raw one, a transaction has the page of the counts, two calls of flock, and Python (ADR 9)"

CASES = [
    Case(
        f"blocking.{scenario}.{size}B.{way}",
        "Redrive, blocking callers",
        _title(scenario, size, way),
        partial(measure, scenario, size, way),
    )
    for scenario in STEPS
    for size, way in ((200, "threads1"), (200, "other1"), (200, "threads8"), (10_000, "threads1"))
]
BARS = [
    Bar(
        "one blocking caller, put: at least 80 % of raw, one item per transaction",
        "blocking.put.200B.other1",
        ("raw.put.200B.k1",),
        at_least=0.8,
        why=WHY,
    ),
    Bar(
        "one blocking caller, lease and complete: at least 75 % of raw, one item per transaction",
        "blocking.lease_complete.200B.other1",
        ("raw.lease_complete.200B.k1",),
        at_least=0.75,
        why=WHY,
    ),
    Bar(
        "one blocking caller in the main thread, put: at least 80 % of raw that is handed to another thread",
        "blocking.put.200B.threads1",
        ("raw.put.200B.k1.handed",),
        at_least=0.8,
        why=WHY,
    ),
    Bar(
        "one blocking caller in the main thread, lease and complete: at least 75 % of raw that is handed over",
        "blocking.lease_complete.200B.threads1",
        ("raw.lease_complete.200B.k1.handed",),
        at_least=0.75,
        why=WHY,
    ),
    Bar("one blocking caller in the main thread, put, beside raw", "blocking.put.200B.threads1", ("raw.put.200B.k1",)),
    Bar(
        "one blocking caller in the main thread, lease and complete, beside raw",
        "blocking.lease_complete.200B.threads1",
        ("raw.lease_complete.200B.k1",),
    ),
    Bar(
        "8 threads, put: at least 2 × one thread",
        "blocking.put.200B.threads8",
        ("blocking.put.200B.threads1",),
        at_least=2.0,
    ),
    Bar(
        "8 threads, lease and complete: at least 2 × one thread",
        "blocking.lease_complete.200B.threads8",
        ("blocking.lease_complete.200B.threads1",),
        at_least=2.0,
    ),
]
