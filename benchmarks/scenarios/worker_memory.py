"""The memory of a worker does not grow with what it has done: after 1,000,000 items beside after 100,000."""

import os
from pathlib import Path

from benchmarks import worker
from benchmarks.drain import wait_for, workers
from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, payload
from benchmarks.scenarios.worker_sqlite import LEFT, counter
from benchmarks.subject import url

ITEMS = int(os.environ.get("REDRIVE_BENCH_MEMORY_ITEMS", "1000000"))
EARLY = ITEMS // 10
CHUNK = min(10_000, EARLY)
TIMES = 1.1
SECONDS = 600.0


def measure(directory: Path) -> Measurement:
    """Items are put while it works, so that it always has some and never very many."""
    left = counter(directory / "redrive.db", LEFT)
    where = url(directory)
    with worker.tasks(where) as module:
        worker.put(module.nothing, CHUNK, payload())
        with workers([worker.command()], directory, worker.environment(where)) as running:
            (process,) = running.processes
            for done in range(CHUNK, ITEMS + 1, CHUNK):
                wait_for(lambda: left() <= CHUNK, "the worker to keep up", running, SECONDS)
                if done == EARLY:
                    wait_for(lambda: left() == 0, "the first tenth", running, SECONDS)
                    early = _largest_mib(process.pid)
                if done < ITEMS:
                    worker.put(module.nothing, CHUNK, payload())
            wait_for(lambda: left() == 0, "all items", running, SECONDS)
            late = _largest_mib(process.pid)
    return Measurement({"early_mib": early, "mib": late, "times": late / early}, {"items": ITEMS, "early": EARLY})


def _largest_mib(root: int) -> float:
    """The resident memory of the largest process below the one that was started: the worker itself."""
    return max(_resident_mib(process) for process in _descendants(root))


def _descendants(root: int) -> list[int]:
    found = [root]
    for process in found:
        for thread in Path(f"/proc/{process}/task").iterdir():
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def _resident_mib(process: int) -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


CASES = [
    Case("memory.sqlite", "Memory of a worker", f"after {EARLY:,} and after {ITEMS:,} items", measure, once=True),
]
BARS = [
    Bar(
        f"memory of a worker after {ITEMS:,} items: at most 1.1 × that after {EARLY:,}",
        "memory.sqlite",
        (),
        figure="times",
        at_most=TIMES,
    )
]
