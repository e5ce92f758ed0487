"""Drivers that keep a queue busy for a fixed time and count what was durably finished.

Standard library only: the peers' environments import it too.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier

# Long enough for several WAL checkpoints, short enough that 12 peer figures take less than 20 s.
SECONDS = 1.2

# One piece of work. Returns how many items it finished durably; 0 means that nothing is left to do.
Step = Callable[[], int]
AsyncStep = Callable[[], Awaitable[int]]

Facts = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures of one round of one case, and the facts that a reader needs to believe them."""

    figures: dict[str, float]
    facts: Facts = field(default_factory=dict)
    sync_microseconds: float = 0.0  # what the disk took just before: it tells a slow disk from a slow queue


def rate(items: int, seconds: float, **facts: str | int | float) -> Measurement:
    """Items per second, from the first call to the last commit."""
    if not items:
        raise RuntimeError("no item was finished: the case measured nothing")
    return Measurement({"rate": items / seconds}, {"items": items, "seconds": round(seconds, 4), **facts})


def payload(size: int = 200) -> dict[str, object]:
    """A value whose compact JSON has `size` bytes, like a small job: an id, a name, some text."""
    value: dict[str, object] = {"n": 123456, "user": "someone@example.com", "kind": "welcome", "text": ""}
    value["text"] = "x" * (size - len(json.dumps(value, separators=(",", ":"))))
    return value


def run_threads(steps: Sequence[Step], seconds: float = SECONDS) -> tuple[int, float]:
    """Each step in a thread of its own until time is up; returns items, and seconds until the last thread ended."""
    barrier = Barrier(len(steps) + 1)

    def loop(step: Step) -> tuple[int, float]:
        items = 0
        barrier.wait()
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            finished = step()
            if not finished:
                break
            items += finished
        return items, time.perf_counter()

    with ThreadPoolExecutor(len(steps)) as pool:
        futures = [pool.submit(loop, step) for step in steps]
        barrier.wait()
        started = time.perf_counter()
        results = [future.result() for future in futures]
    return sum(items for items, _ in results), max(ended for _, ended in results) - started


def run_one(step: Step, seconds: float = SECONDS) -> tuple[int, float]:
    """One caller in the calling thread, without the cost of a thread switch."""
    items, started = 0, time.perf_counter()
    deadline = started + seconds
    while time.perf_counter() < deadline:
        finished = step()
        if not finished:
            break
        items += finished
    return items, time.perf_counter() - started


async def run_callers(step: AsyncStep, callers: int, seconds: float = SECONDS) -> tuple[int, float]:
    """`callers` tasks on one event loop, each awaiting its own step before it makes the next."""

    async def loop() -> int:
        items = 0
        while time.perf_counter() < deadline:
            finished = await step()
            if not finished:
                break
            items += finished
        return items

    started = time.perf_counter()
    deadline = started + seconds
    items = sum(await asyncio.gather(*(loop() for _ in range(callers))))
    return items, time.perf_counter() - started


def median_microseconds(step: Step, repeat: int, warm_up: int) -> float:
    """The median duration of a single call."""
    durations = []
    for _ in range(warm_up + repeat):
        started = time.perf_counter()
        if not step():
            raise RuntimeError("the step found nothing to do")
        durations.append(time.perf_counter() - started)
    return statistics.median(durations[warm_up:]) * 1e6
