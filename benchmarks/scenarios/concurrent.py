"""Concurrent async callers, one item per call, each awaiting its own durable result."""

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import watch
from benchmarks.harness import Bar, Case
from benchmarks.load import AsyncStep, Measurement, payload, rate, run_callers
from benchmarks.scenarios import peers
from benchmarks.subject import QUEUE, create_queue, fill, open_async_broker, open_broker, run_async

BACKLOG = {200: 200_000, 10_000: 30_000}
WORDS = {"put": "put", "lease_complete": "lease and complete", "cycle": "put, lease, complete"}


def put_step(broker: Any, size: int) -> AsyncStep:
    body = payload(size)

    async def step() -> int:
        await broker.put(QUEUE, body)
        return 1

    return step


def lease_complete_step(broker: Any, size: int) -> AsyncStep:
    async def step() -> int:
        leases = await broker.lease(QUEUE, limit=1)
        if not leases:
            return 0
        await broker.complete(leases[0])
        return 1

    return step


def cycle_step(broker: Any, size: int) -> AsyncStep:
    put, lease_complete = put_step(broker, size), lease_complete_step(broker, size)

    async def step() -> int:
        await put()
        finished = await lease_complete()
        assert finished, "an item was put, so one must be there to lease"
        return finished

    return step


STEPS = {"put": put_step, "lease_complete": lease_complete_step, "cycle": cycle_step}


async def _measure(scenario: str, size: int, callers: int, directory: Path) -> Measurement:
    with watch.connections() as opened:
        async with open_async_broker(directory) as broker:
            items, seconds = await run_callers(STEPS[scenario](broker, size), callers)
            return rate(items, seconds, callers=callers, synchronous=watch.require_full_sync(opened))


def measure(scenario: str, size: int, callers: int, directory: Path) -> Measurement:
    with open_broker(directory) as broker:
        create_queue(broker)
        if scenario == "lease_complete":
            fill(broker, BACKLOG[size], size)
    result: Measurement = run_async(_measure(scenario, size, callers, directory))
    return result


CASES = [
    Case(
        f"async.{scenario}.{size}B.callers{callers}",
        "Redrive, concurrent async callers, one item per call",
        f"{words}, {size:,} B, {callers} callers",
        partial(measure, scenario, size, callers),
    )
    for scenario, words in WORDS.items()
    for size, callers in ((200, 32), (200, 256), (10_000, 256))
]
BARS = [
    Bar(
        "256 async callers, put: at least 30 % of raw in batches of 1000",
        "async.put.200B.callers256",
        ("raw.put.200B.k1000",),
        at_least=0.3,
        why="the floor, which has no checks, no counts and no options, is 0.39",
    ),
    Bar(
        "256 async callers, lease and complete: at least 45 % of raw in batches of 100",
        "async.lease_complete.200B.callers256",
        ("raw.lease_complete.200B.k100",),
        at_least=0.45,
        why="the floor, which has no checks, no counts and no history, is 0.79",
    ),
    Bar(
        "256 async callers, put: at least 10 × the best peer",
        "async.put.200B.callers256",
        peers.keys("put"),
        at_least=10.0,
    ),
    Bar(
        "256 async callers, put, lease and complete: at least 10 × the best peer",
        "async.cycle.200B.callers256",
        peers.keys("cycle"),
        at_least=10.0,
    ),
    Bar("32 async callers, put, beside the best peer", "async.put.200B.callers32", peers.keys("put")),
    Bar(
        "32 async callers, put, lease and complete, beside the best peer",
        "async.cycle.200B.callers32",
        peers.keys("cycle"),
    ),
]
