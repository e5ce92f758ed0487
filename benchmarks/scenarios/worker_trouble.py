"""What items in trouble cost those that are well: handlers that kill their process, and handlers that fail.

Time is taken from the store: until every healthy item is finished. All handlers of healthy items wait for 5 ms. A
killer comes back behind what waits already, so that at least its first death falls among the healthy. What fails is
tried again after the run.
"""

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.drain import watch, workers
from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement
from benchmarks.scenarios.worker_sqlite import counter
from benchmarks.subject import url
from benchmarks.worker import FILL_BATCH

KILLED, KILLERS, PROCESSES = 20_000, 20, 4
HEALTHY = 10_000
FAILING = HEALTHY // 10
DEATH_MS = 50.0
KILLERS_GROUP = f"{KILLED:,} items, {PROCESSES} processes, 5 ms each, 0.1 % of them kill their process"
FAILING_GROUP = f"{HEALTHY:,} items, 8 threads, 5 ms each, and 10 % more that fail"


def measure_killers(killers: int, directory: Path) -> Measurement:
    notes = directory / "notes"
    healthy = KILLED - killers
    measured = _drain("wait_and_note", healthy, "kill", killers, ("--processes", str(PROCESSES)), directory, notes)
    if not killers:
        return measured
    costs = death_costs(notes.read_text())
    if len(costs) < killers:
        raise RuntimeError(f"{len(costs)} deaths of {killers} killers are known")
    figures = {**measured.figures, "p50_ms": statistics.median(costs), "longest_ms": max(costs)}
    return Measurement(figures, {**measured.facts, "deaths": len(costs)})


def measure_failing(failing: str, directory: Path) -> Measurement:
    count = FAILING if failing else 0
    return _drain("wait", HEALTHY, failing or "fail", count, (), directory)


def _drain(
    task: str,
    healthy: int,
    other: str,
    others: int,
    options: tuple[str, ...],
    directory: Path,
    notes: Path | None = None,
) -> Measurement:
    where = url(directory)
    left = counter(directory / "redrive.db", f"""SELECT count(*) FROM redrive_item WHERE headers LIKE '%"{task}"%'""")
    with worker.tasks(where, notes=notes) as module:
        _put_mixed(module, getattr(module, task), healthy, getattr(module, other), others)
    assert left() == healthy, f"{left()} of {healthy} are there"
    with workers([worker.command(*options)], directory, worker.environment(where, notes=notes)) as running:
        items, seconds = watch(left, healthy, running, warm_up=0.05)
    return Measurement(
        {"rate": items / seconds, "seconds": healthy * seconds / items}, {"healthy": healthy, "others": others}
    )


def _put_mixed(module: Any, task: Any, healthy: int, other: Any, others: int) -> None:
    """The others come among the healthy ones, evenly."""
    broker = module.app.open()
    step = (healthy + others) // others if others else 0
    items = [
        (other if step and place % step == step // 2 and place // step < others else task).item().item
        for place in range(healthy + others)
    ]
    for start in range(0, len(items), FILL_BATCH):
        broker.put_many(task.queue.name, items[start : start + FILL_BATCH])


def death_costs(notes: str) -> list[float]:
    """Milliseconds from the last act of each process that died to the first handler in the one that follows it."""
    deaths: list[int] = []
    firsts: dict[str, int] = {}
    for line in notes.splitlines():
        word, process, instant = line.split()
        if word == "dying":
            deaths.append(int(instant))
        else:
            firsts.setdefault(process, int(instant))
    deaths.sort()
    followers = sorted(instant for instant in firsts.values() if instant > deaths[0])
    return [(follower - death) / 1e6 for death, follower in zip(deaths, followers, strict=False)]


CASES = [
    Case("killers.none", KILLERS_GROUP, "without them", partial(measure_killers, 0)),
    Case("killers.some", KILLERS_GROUP, "with them: healthy items, and one death", partial(measure_killers, KILLERS)),
    Case("failing.none", FAILING_GROUP, "without them", partial(measure_failing, "")),
    Case("failing.at_once", FAILING_GROUP, "they fail at once", partial(measure_failing, "fail")),
    Case("failing.after", FAILING_GROUP, "they fail after 5 ms", partial(measure_failing, "wait_and_fail")),
]
BARS = [
    Bar(
        "0.1 % killers: healthy items at least 85 % as fast as without them",
        "killers.some",
        ("killers.none",),
        at_least=0.85,
    ),
    Bar(
        "a death costs one slot at most 50 ms (median)",
        "killers.some",
        (),
        figure="p50_ms",
        at_most=DEATH_MS,
    ),
    Bar("the longest of a run", "killers.some", (), figure="longest_ms"),
    Bar(
        "10 % failing items added: time for the healthy ones at most 1.1 ×",
        "failing.at_once",
        ("failing.none",),
        figure="seconds",
        at_most=1.1,
    ),
    Bar(
        "… if they take 5 ms as well before they fail, of which 1.1 × is the work itself",
        "failing.after",
        ("failing.none",),
        figure="seconds",
    ),
]
