"""The dead-letter machinery is free on the happy path: the same statements, the same rows, with it and without."""

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import watch
from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, payload
from benchmarks.subject import QUEUE, create_queue, every_setting, open_broker

ITEMS = 100
NOTHING = {"search": False, "feed": "none"}
FIGURES = {"statements": "statements", "rows": "rows written", "vm_steps": "SQLite VM steps"}


def measure(machinery: bool, directory: Path) -> Measurement:
    """What one put, lease and complete runs and writes: the median item, so that the maintenance's own work stays
    out."""
    with watch.statements() as seen, open_broker(directory) as broker:
        create_queue(broker, **(every_setting(broker) if machinery else NOTHING))
        _cycle(broker)  # what is done only once is done now
        items = []
        for _ in range(ITEMS):
            seen.clear()
            _cycle(broker)
            items.append((len(seen.texts), seen.rows, seen.vm_steps))
    return Measurement(dict(zip(FIGURES, map(statistics.median, zip(*items, strict=True)), strict=True)))


def _cycle(broker: Any) -> None:
    broker.put(QUEUE, payload())
    (lease,) = broker.lease(QUEUE, limit=1)
    broker.complete(lease)


CASES = [
    Case("happy.plain", "The happy path, traced", "a queue without any of it", partial(measure, False)),
    Case(
        "happy.machinery",
        "The happy path, traced",
        "a queue with retry, dead queue, words and feed",
        partial(measure, True),
    ),
]
BARS = [
    Bar(
        f"put, lease and complete with retry, dead queue, words and feed: no more {words} than without",
        "happy.machinery",
        ("happy.plain",),
        figure=figure,
        at_most=1.0,
    )
    for figure, words in FIGURES.items()
]
