"""What the kill of a worker costs the others: two workers that a program runs itself, of 32 slots each, at 80 % of what
they can do together. One is killed every 6 s, and started again immediately.

An item counts when its handler has ended, once. What a killed worker held is leased again when its lease has expired.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.drain import wait_for, workers
from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement
from benchmarks.postgres import server as postgres
from benchmarks.redis import server as redis
from benchmarks.subject import url as sqlite_url

WORKERS, SLOTS, SLOW_SECONDS, SHARE = 2, 32, 0.1, 0.8
KILLS, EVERY_SECONDS, RECOVERY_SECONDS = 3, 6.0, 2.0
WARM_UP_SECONDS, PUT_EVERY_SECONDS = 3.0, 0.02
AT_LEAST = 0.97
GROUP = f"Kills: {WORKERS} workers × {SLOTS} slots at {SHARE:.0%}, items of {SLOW_SECONDS * 1000:.0f} ms, leases of 3 s"
_EMBEDDED = f"""
from benchmarks.tasks import app
from redrive.worker import Worker
Worker(app, queues=["slow"], concurrency={SLOTS}).run()
"""


@contextmanager
def sqlite(directory: Path) -> Iterator[str]:
    yield sqlite_url(directory)


@contextmanager
def redis_url(directory: Path) -> Iterator[str]:
    with redis(directory, "always") as running:
        yield running.url


@contextmanager
def http(directory: Path) -> Iterator[str]:
    from tests.servers.http import HttpServer

    running = HttpServer(sqlite_url(directory), directory)
    try:
        yield running.url
    finally:
        running.stop()


def measure(store: Callable[[Path], Iterator[str]], directory: Path) -> Measurement:
    notes = directory / "notes"
    notes.touch()
    with store(directory) as url, worker.tasks(url, notes=notes) as module:
        module.app.open()
        command = [sys.executable, "-c", _EMBEDDED]
        with workers([command] * WORKERS, directory, worker.environment(url, notes=notes)) as running:
            wait_for(lambda: len(module.app.broker.workers()) == WORKERS, "workers that are registered", running)
            with _load(module.note_end):
                time.sleep(WARM_UP_SECONDS)
                began = time.monotonic_ns()
                killed: list[int] = []
                for number in range(KILLS):
                    time.sleep(EVERY_SECONDS)
                    process = running.processes[number % WORKERS]
                    os.killpg(process.pid, signal.SIGKILL)
                    killed.append(time.monotonic_ns())
                    process.wait()
                    running.start(number % WORKERS)
                time.sleep(EVERY_SECONDS)
    return _compare(_ends(notes), began, killed)


@contextmanager
def _load(task: Any) -> Iterator[None]:
    """Put items at the rate, each with a number of its own, in a thread."""
    rate = WORKERS * SLOTS / SLOW_SECONDS * SHARE
    over = threading.Event()

    def put() -> None:
        began, count = time.monotonic(), 0
        while not over.wait(PUT_EVERY_SECONDS):
            wanted = int((time.monotonic() - began) * rate)
            task.put_many(task.item(number, SLOW_SECONDS) for number in range(count, wanted))
            count = wanted

    thread = threading.Thread(target=put)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _ends(notes: Path) -> list[int]:
    """Return when each item ended for the first time."""
    ends: dict[str, int] = {}
    for line in notes.read_text().splitlines():
        number, instant = line.split()
        ends.setdefault(number, int(instant))
    return list(ends.values())


def _compare(ends: list[int], began: int, killed: list[int]) -> Measurement:
    def rate(start: float, end: float) -> float:
        return sum(start <= each < end for each in ends) / (end - start) * 1e9

    before = rate(began, killed[0])
    after = [rate(kill + RECOVERY_SECONDS * 1e9, kill + EVERY_SECONDS * 1e9) / before for kill in killed]
    return Measurement(
        {"rate": before, "recovered": sum(after) / len(after), "worst": min(after)},
        {"kills": len(killed), **{f"after_{number}": round(each, 3) for number, each in enumerate(after, 1)}},
    )


STORES = {
    "sqlite": ("SQLite", sqlite),
    "postgres": ("PostgreSQL", postgres),
    "redis": ("Redis", redis_url),
    "http": ("HTTP", http),
}
CASES = [
    Case(f"kills.{name}", GROUP, f"{title}: completions before the kills", partial(measure, store))
    for name, (title, store) in STORES.items()
]
BARS = [
    Bar(
        f"{title}: completions from {RECOVERY_SECONDS:.0f} s after a kill to the next, at least {AT_LEAST} of before",
        f"kills.{name}",
        (),
        figure="worst",
        at_least=AT_LEAST,
    )
    for name, (title, _) in STORES.items()
]
