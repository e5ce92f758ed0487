"""The first page of what a person looks for must not cost more because more is dead; an export must not cost memory."""

import itertools
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import dead
from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, median_microseconds
from benchmarks.subject import QUEUE, open_broker

SMALL, MEDIUM, LARGE = 10_000, 100_000, 1_000_000
ID_DIGITS = 32
PAGE = 50
REPEAT, WARM_UP = 30, 5
TIMES = 3.0
EXPORT_TIMES = 1.5
LONGEST_PREFIX_MICROSECONDS = 30_000.0
MIB = 1024  # ru_maxrss is in KiB

LOOKS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "all": ("find, no filter", lambda broker, _: broker.find(limit=PAGE)),
    "error_type": (
        "find, one error type",
        lambda broker, _: broker.find(error_type=dead.ERROR_TYPE, limit=PAGE),
    ),
    "fingerprint": (
        "find, one fingerprint",
        lambda broker, fingerprint: broker.find(fingerprint=fingerprint, limit=PAGE),
    ),
    "words": ("find, two words", lambda broker, _: broker.find(words=dead.WORDS, limit=PAGE)),
    "header": ("find, a header", lambda broker, _: broker.find(headers=dead.HEADERS, limit=PAGE)),
    "groups": ("groups of the namespace", lambda broker, _: broker.groups()),
    "queue_groups": ("groups of one queue", lambda broker, _: broker.groups(QUEUE)),
}


def measure(look: Callable[[Any, str], Any], directory: Path) -> Measurement:
    with open_broker(directory) as broker:
        fingerprint = broker.groups(limit=1)[0].fingerprint
        found = look(broker, fingerprint)
        count = len(found.items if hasattr(found, "items") else found)
        assert count, "there is nothing to look at"
        microseconds = median_microseconds(lambda: bool(look(broker, fingerprint)), REPEAT, WARM_UP)
        return Measurement({"microseconds": microseconds}, {"found": count})


def measure_export(directory: Path) -> Measurement:
    """How far the memory of the process grows while every dead letter goes by."""
    with open_broker(directory) as broker:
        broker.find(limit=1000)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started, lines = time.perf_counter(), 0
        for _ in broker.export():
            lines += 1
        seconds = time.perf_counter() - started
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return Measurement({"rate": lines / seconds, "mib": (before + grown) / MIB}, {"lines": lines, "grown_kib": grown})


def measure_id(digits: int, directory: Path) -> Measurement:
    """`find` by the first digits of an id, for items all over the store."""
    with open_broker(directory) as broker:
        ids = itertools.cycle([item.id[:digits] for item in broker.find(limit=PAGE).items])
        microseconds = median_microseconds(
            lambda: len(broker.find(status="any", id_prefix=next(ids)).items) == 1, REPEAT, WARM_UP
        )
    return Measurement({"microseconds": microseconds}, {})


CASES = (
    [
        Case(
            f"looking.{count}.{name}",
            f"Looking at {count:,} dead letters",
            words,
            partial(measure, look),
            prepare=partial(dead.fill, count=count),
            shares=f"dead.{count}",
        )
        for count in (SMALL, LARGE)
        for name, (words, look) in LOOKS.items()
    ]
    + [
        Case(
            f"export.{count}",
            "Export",
            f"{count:,} dead letters",
            measure_export,
            prepare=partial(dead.fill, count=count),
            shares=f"dead.{count}",
        )
        for count in (SMALL, LARGE)
    ]
    + [
        Case(
            f"prefix.{digits}",
            "One of 100,000 dead letters",
            f"find by {digits} digits of its id",
            partial(measure_id, digits),
            prepare=partial(dead.fill, count=MEDIUM),
            shares=f"dead.{MEDIUM}",
        )
        for digits in (8, ID_DIGITS)
    ]
)
BARS = [
    Bar(
        f"{words}: first page of {LARGE:,} at most 3 × that of {SMALL:,}",
        f"looking.{LARGE}.{name}",
        (f"looking.{SMALL}.{name}",),
        figure="microseconds",
        at_most=TIMES,
    )
    for name, (words, _) in LOOKS.items()
] + [
    Bar(
        f"export of {LARGE:,}: memory of the process at most 1.5 × that with {SMALL:,}",
        f"export.{LARGE}",
        (f"export.{SMALL}",),
        figure="mib",
        at_most=EXPORT_TIMES,
    ),
    Bar(
        f"one item of {MEDIUM:,} by 8 digits of its id: at most 30 ms",
        "prefix.8",
        (),
        figure="microseconds",
        at_most=LONGEST_PREFIX_MICROSECONDS,
    ),
    Bar("… beside all 32 digits", "prefix.8", ("prefix.32",), figure="microseconds"),
]
