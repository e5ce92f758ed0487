"""Failures that are kept per second, and what is kept of each, from the committed results in benchmarks/results."""

from __future__ import annotations

from docs.images.card import document, text
from docs.images.throughput import DARK, GAP, HEAD, LEFT, RIGHT, STYLE, WIDTH, Bar, drawn, rate, results

TITLE = "Failures that are kept per second on SQLite, PostgreSQL and Redis, and what is kept of each"
SUITE = "failures"
PEERS = {
    "sqlite": ("SQLite, synchronous=FULL", ("huey",)),
    "postgres": ("PostgreSQL, fsync on", ("pgqueuer", "SAQ", "procrastinate")),
    "redis": ("Redis protocol (Valkey), appendfsync always", ("Dramatiq", "huey", "SAQ", "Celery", "RQ")),
}
"""store → its title, and the libraries on it that keep their failures."""
ROW = 40


def bars(store: str) -> list[Bar]:
    """Redrive with one worker or two, whichever is faster, then the peers, which have two processes."""
    ours = [Bar("Redrive, 1 worker", f"{store}.die"), Bar("Redrive, 2 workers", f"{store}.redrive.fail")]
    peers = [Bar(f"{name}, 2 processes", f"{store}.{name.lower()}.fail") for name in PEERS[store][1]]
    return [max(ours, key=lambda bar: rate(SUITE, bar.case)), *peers]


def svg() -> str:
    """The chart as a picture. All panels have the same scale, which starts at 0."""
    largest = max(rate(SUITE, bar.case) for store in PEERS for bar in bars(store))
    measured = results(SUITE)
    parts: list[str] = []
    top = 6
    for store, (title, _) in PEERS.items():
        parts.append(text(20, top + 28, title, "strong"))
        top += HEAD
        for bar in bars(store):
            parts += drawn(bar, rate(SUITE, bar.case), top, (WIDTH - LEFT - RIGHT) / largest)
            parts.append(text(LEFT, top + 33, measured["cases"][bar.case]["facts"]["keeps"], "muted"))
            top += ROW
        top += GAP
    note = f"failures/s, medians of {measured['rounds']} rounds on one machine ({measured['machine']['processor']})"
    parts.append(text(20, top + 18, f"{note}; under each bar, what is kept of a failure", "muted"))
    return document(WIDTH, top + 34, TITLE, parts, style=STYLE, dark=DARK)
