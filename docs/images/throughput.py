"""Durable throughput beside other libraries, from the committed results in benchmarks/results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.images.card import document, text

TITLE = "Durable items per second on SQLite, PostgreSQL and Redis: Redrive beside other libraries"
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results"
SUITES = ("sqlite", "postgres", "redis")


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its label, and the case that was measured."""

    label: str
    case: str

    @property
    def is_ours(self) -> bool:
        """Whether it is Redrive's."""
        return self.label.startswith("Redrive")


PANELS: tuple[tuple[str, str, tuple[Bar, ...]], ...] = (
    (
        "sqlite",
        "SQLite, synchronous=FULL: put, lease and complete",
        (
            Bar("Redrive, 256 async callers", "async.cycle.200B.callers256"),
            Bar("huey, 1 thread", "huey.cycle.threads1"),
            Bar("litequeue, 1 thread", "litequeue.cycle.threads1"),
            Bar("persist-queue, 1 thread", "persist_queue.cycle.threads1"),
        ),
    ),
    (
        "postgres",
        "PostgreSQL, fsync on: put",
        (
            Bar("Redrive, put_many of 1,000", "hand.put"),
            Bar("pgqueuer, 1,000 at a time", "pgqueuer.bulk"),
            Bar("Redrive, 256 async callers, one each", "async.put.callers256"),
            Bar("pgqueuer, one by one", "pgqueuer.one"),
        ),
    ),
    (
        "redis",
        "Redis protocol (Valkey), appendfsync always: put",
        (
            Bar("Redrive, 256 async callers, one each", "async.put.callers256.always"),
            Bar("RQ, enqueue_many of 1,000", "rq.put.batch1000.always"),
            Bar("SAQ, 256 async callers", "saq.put.callers256.always"),
            Bar("Dramatiq, 8 threads", "dramatiq.put.threads8.always"),
            Bar("arq, 256 async callers", "arq.put.callers256.always"),
            Bar("taskiq, list, 256 async callers", "taskiq.put.list.always"),
            Bar("Celery, 8 threads", "celery.put.threads8.always"),
        ),
    ),
)
"""suite, title, bars: each library with the setting that was fastest for it."""

WIDTH, LEFT, RIGHT, ROW, HEAD, GAP = 840, 296, 80, 24, 44, 12
STYLE = """\
.ours { fill: #bc4c00 }
.peer { fill: #8c959f }
"""
DARK = """\
.ours { fill: #f0883e }
.peer { fill: #656c76 }
"""


def results(suite: str) -> Any:
    """What was measured."""
    return json.loads((RESULTS / f"{suite}.json").read_text())


def rate(suite: str, case: str) -> float:
    """Items per second, the median of all rounds."""
    median: float = results(suite)["cases"][case]["figures"]["rate"]["median"]
    return median


def verdicts() -> list[str]:
    """The verdict on each bar that the suites set themselves: pass or miss."""
    found = [bar["verdict"] for suite in SUITES for bar in results(suite)["bars"]]
    return [verdict for verdict in found if verdict in ("pass", "miss")]


def svg() -> str:
    """The chart as a picture. All panels have the same scale, which begins at 0."""
    largest = max(rate(suite, bar.case) for suite, _, bars in PANELS for bar in bars)
    parts: list[str] = []
    top = 6
    for suite, title, bars in PANELS:
        parts.append(text(20, top + 28, title, "strong"))
        parts += _bars(suite, bars, top + HEAD, (WIDTH - LEFT - RIGHT) / largest)
        top += HEAD + ROW * len(bars) + GAP
    machine = results("sqlite")["machine"]
    note = f"items/s of 200 B, medians of {results('sqlite')['rounds']} rounds on one machine ({machine['processor']})"
    parts.append(text(20, top + 18, note, "muted"))
    return document(WIDTH, top + 34, TITLE, parts, style=STYLE, dark=DARK)


def _bars(suite: str, bars: tuple[Bar, ...], top: int, scale: float) -> Iterator[str]:
    for row, bar in enumerate(bars):
        yield from drawn(bar, rate(suite, bar.case), top + row * ROW, scale)


def drawn(bar: Bar, median: float, y: int, scale: float) -> Iterator[str]:
    """One bar with its label and its figure."""
    yield text(LEFT - 12, y + 15, bar.label, "end")
    yield (
        f'<rect class="{"ours" if bar.is_ours else "peer"}" x="{LEFT}" y="{y + 3}" '
        f'width="{median * scale:.1f}" height="{ROW - 7}" rx="2"/>'
    )
    yield text(LEFT + median * scale + 8, y + 15, f"{median:,.0f}", "strong" if bar.is_ours else "")
