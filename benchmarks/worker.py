"""Redrive's worker as the scenarios use it: an app in this process that fills, and workers in others that drain."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.drain import Left, watch, workers
from benchmarks.harness import NotReady
from benchmarks.load import Measurement, payload, rate

FILL_BATCH = 1_000
MODULE = "benchmarks.tasks:app"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run workers."""

    words: str
    task: str
    options: tuple[str, ...]
    processes: int = 1
    """How many commands are started."""


THREADS, CALLERS = 8, 100
WAYS = {
    "threads": Way(f"functions in {THREADS} threads, 1 worker", "nothing", ("--concurrency", str(THREADS))),
    "threads.x2": Way(f"functions in {THREADS} threads, 2 workers", "nothing", ("--concurrency", str(THREADS)), 2),
    "awaited": Way(f"{CALLERS} coroutines, 1 worker", "nothing_awaited", ("--concurrency", str(CALLERS))),
    "awaited.x2": Way(f"{CALLERS} coroutines, 2 workers", "nothing_awaited", ("--concurrency", str(CALLERS)), 2),
    "processes2": Way("functions in 2 processes of one worker, one at a time each", "nothing", ("--processes", "2")),
}


@contextmanager
def tasks(url: str, durability: str = "full", notes: Path | None = None) -> Iterator[Any]:
    """The module of tasks with its app on this URL, here and in workers; the app is closed at the end."""
    os.environ |= environment(url, durability, notes)
    try:
        from benchmarks import tasks as module
    except ImportError as error:
        raise NotReady(f"redrive: {error}") from error
    with module.app:
        yield module


def environment(url: str, durability: str = "full", notes: Path | None = None) -> dict[str, str]:
    """What tells a worker's process where it works."""
    told = {"BENCHMARK_URL": url, "BENCHMARK_DURABILITY": durability}
    return told if notes is None else {**told, "BENCHMARK_NOTES": str(notes)}


def command(*options: str) -> list[str]:
    """What a person types to start a worker."""
    return [sys.executable, "-m", "redrive", "work", MODULE, *options]


def put(task: Any, count: int, *args: object) -> None:
    """Puts so many calls of a task, in batches."""
    items = [task.item(*args)] * min(count, FILL_BATCH)
    for start in range(0, count, FILL_BATCH):
        task.put_many(items[: count - start])


def drain(
    way: Way, items: int, url: str, left: Left, directory: Path, durability: str = "full", **facts: str | int | float
) -> Measurement:
    """Fills, starts workers, and watches the store until everything is finished."""
    with tasks(url, durability) as module:
        put(getattr(module, way.task), items, payload())
    return run(way, items, url, left, directory, durability, **facts)


def run(
    way: Way, total: int, url: str, left: Left, directory: Path, durability: str = "full", **facts: str | int | float
) -> Measurement:
    """Starts workers, and watches the store until nothing of `total` is left."""
    told = environment(url, durability)
    if url.startswith("sqlite:"):
        told["BENCHMARK_SYNC_NOTES"] = str(directory)
    with workers([command(*way.options)] * way.processes, directory, told) as running:
        finished, seconds = watch(left, total, running)
    return rate(finished, seconds, **facts)
