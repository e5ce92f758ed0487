"""Handlers that fail, beside those that complete: deaths and immediate retries through `redrive work`, 8 threads.

The store says how many deliveries have ended, by the counts of the queue. Dead letters are read back afterwards.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import postgres, redis, worker
from benchmarks.harness import Bar, Case
from benchmarks.load import Facts, Measurement, payload
from benchmarks.peer_drain import kept_facts
from benchmarks.peers.kept import Kept
from benchmarks.subject import url
from benchmarks.worker import THREADS
from redrive import QueueStats

GROUP = f"{{store}}: ends of deliveries, {THREADS} threads, 1 worker"


class End(NamedTuple):
    """How the deliveries of a case end."""

    words: str
    task: str
    ended: Callable[[QueueStats], int]
    at_least: float | None = None
    """Of completions per second."""
    deliveries_per_item: int = 1
    workers: int = 1


ENDS = {
    "complete": End("completions", "nothing", lambda stats: stats.completed_total),
    "die": End("deaths", "die", lambda stats: stats.dead_total, 0.33),
    "retry": End("immediate retries", "stumble", lambda stats: stats.failed_total, 0.35, 10),
}
STORES = {"sqlite": ("SQLite", 60_000), "postgres": ("PostgreSQL", 20_000), "redis": ("Redis", 20_000)}
"""The name of each, and how many deliveries end in a case."""


@contextmanager
def _place(store: str, directory: Path) -> Iterator[str]:
    match store:
        case "postgres":
            with postgres.server(directory) as address:
                yield address
        case "redis":
            with redis.server(directory, "always") as running:
                yield running.url
        case _:
            yield url(directory)


def measure(store: str, end: End, directory: Path) -> Measurement:
    total = STORES[store][1]
    way = worker.Way(end.words, end.task, ("--concurrency", str(THREADS)), end.workers)
    with _place(store, directory) as where, worker.tasks(where) as module:
        task = getattr(module, end.task)
        worker.put(task, total // end.deliveries_per_item, payload())
        broker = module.app.open()
        measured = worker.run(
            way, total, where, lambda: max(0, total - end.ended(broker.stats(task.queue.name))), directory
        )
        return replace(measured, facts=measured.facts | _kept(broker, total)) if end.task == "die" else measured


def _kept(broker: Any, failures: int) -> Facts:
    """What is kept of a dead letter, which is then redriven."""
    (found,) = broker.find(limit=1).items
    item = broker.get(found.id, redacted=False)
    death = item.deaths[-1]
    kept = Kept(broker.count(), repr(item), str(death.at), death.counters.attempts)
    is_waiting = broker.redrive(item.id).status == "pending"
    listed = "`redrive dead list`, `groups`, `search`"
    return kept_facts(replace(kept, is_waiting=is_waiting), failures, listed, "`redrive dead redrive`")


CASES = [
    Case(f"{store}.{name}", GROUP.format(store=words), end.words, partial(measure, store, end))
    for store, (words, _) in STORES.items()
    for name, end in ENDS.items()
]
BARS = [
    Bar(
        f"{words}: {end.words} at least {end.at_least} of completions",
        f"{store}.{name}",
        (f"{store}.complete",),
        at_least=end.at_least,
        why="beside a completion, an exception is described, a log line formed, and more written (ADR 25)",
    )
    for store, (words, _) in STORES.items()
    for name, end in ENDS.items()
    if end.at_least is not None
]
