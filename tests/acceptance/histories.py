"""The history of calls of many processes, and what must be true of every such history.

Each call is written down before it is made (`invoke`) and after it has returned (`ok`, or `lost` where the lease was).
A process that is killed in between leaves a call whose outcome is unknown: it happened or it did not.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from tests.acceptance.places import Broken, Standing


class Entry(msgspec.Struct, omit_defaults=True):
    """One line of a history."""

    at: int
    """Nanoseconds of a clock that all processes share."""
    call: str
    """put, lease, complete, fail, release."""
    phase: str
    """invoke, ok, lost."""
    values: list[int] = []
    ids: list[str] = []
    delivery: int = 0
    attempts: int = 0
    status: str | None = None


class Journal:
    """Writes the history of one process. What is written stays when the process is killed."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def write(self, call: str, phase: str, **fields: Any) -> None:
        """Append one entry."""
        entry = Entry(time.monotonic_ns(), call, phase, **fields)
        os.write(self._file, msgspec.json.encode(entry) + b"\n")


def read_journal(path: Path) -> list[Entry]:
    """What a process has written down so far."""
    return [msgspec.json.decode(line, type=Entry) for line in path.read_bytes().splitlines()] if path.exists() else []


class Tally(NamedTuple):
    """What a history came to. A run that did too little proves nothing."""

    put: int
    unknown: int
    deliveries: int
    completed: int
    failed: int
    late: int
    """Settles that were refused because the lease was lost."""
    dead: int


def check_history(entries: Iterable[Entry], left: Iterable[Standing], max_attempts: int) -> Tally:
    """Check a history together with what the file holds in the end, when nothing is pending or active any more."""
    ordered = sorted(entries, key=lambda entry: entry.at)
    left = list(left)
    _check_deliveries(ordered, max_attempts)
    _check_fence(ordered)
    put, unknown, completed = _check_conservation(ordered, left)
    count = Counter((entry.call, entry.phase) for entry in ordered)
    return Tally(
        put,
        unknown,
        count["lease", "ok"],
        completed,
        count["fail", "ok"],
        sum(count[call, "lost"] for call in ("complete", "fail", "release")),
        len(left),
    )


def _check_conservation(entries: list[Entry], left: list[Standing]) -> tuple[int, int, int]:
    """total-queue: what was acknowledged is done or still there, once; nothing is there that nobody put."""
    invoked = Counter(
        value for entry in entries if (entry.call, entry.phase) == ("put", "invoke") for value in entry.values
    )
    put = {value for entry in entries if (entry.call, entry.phase) == ("put", "ok") for value in entry.values}
    done = Counter(entry.values[0] for entry in entries if (entry.call, entry.phase) == ("complete", "ok"))
    tried = {entry.values[0] for entry in entries if (entry.call, entry.phase) == ("complete", "invoke")}
    delivered = {entry.values[0] for entry in entries if entry.call == "lease"}
    there = Counter(int(standing.payload) for standing in left)
    twice = [value for value, count in (done + there).items() if count > 1]
    if twice:
        raise Broken(f"{len(twice)} items were done or are there more than once: {twice[:5]}")
    lost = put - done.keys() - there.keys() - tried
    if lost:
        raise Broken(f"{len(lost)} acknowledged items are lost: {sorted(lost)[:5]}")
    unexpected = (delivered | there.keys()) - invoked.keys()
    if unexpected:
        raise Broken(f"{len(unexpected)} items that nobody put: {sorted(unexpected)[:5]}")
    return len(put), len(invoked.keys() - put), len(done)


def _check_deliveries(entries: list[Entry], max_attempts: int) -> None:
    """Deliveries of an item are numbered 1, 2, 3 … without a repetition, and attempts count them, up to the limit."""
    given: set[tuple[str, int]] = set()
    for entry in entries:
        if (entry.call, entry.phase) != ("lease", "ok"):
            continue
        key = (entry.ids[0], entry.delivery)
        if key in given:
            raise Broken(f"delivery {entry.delivery} of item {entry.ids[0]} was given twice")
        given.add(key)
        if entry.attempts != entry.delivery or entry.attempts > max_attempts:
            raise Broken(f"delivery {entry.delivery} of item {entry.ids[0]} counts {entry.attempts} attempts")


def _check_fence(entries: list[Entry]) -> None:
    """A settle is accepted once for each delivery, and never when a later delivery was given before it began.

    A lease is written down after it was given, on a busy machine long after: its number says which came first.
    """
    leased: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    begun: dict[tuple[str, int], int] = {}
    settled: set[tuple[str, int]] = set()
    completed: dict[str, int] = {}
    for entry in entries:
        if entry.call == "put":
            continue
        id, key = entry.ids[0], (entry.ids[0], entry.delivery)
        match entry.call, entry.phase:
            case "lease", _:
                leased[id].append((entry.at, entry.delivery))
            case _, "invoke":
                begun[key] = entry.at
            case call, "ok":
                if key in settled:
                    raise Broken(f"delivery {entry.delivery} of item {id} was settled twice")
                settled.add(key)
                if any(at < begun[key] and delivery > entry.delivery for at, delivery in leased[id]):
                    raise Broken(f"a stale settle of delivery {entry.delivery} of item {id} was accepted")
                if call == "complete":
                    completed[id] = entry.delivery
    for id, last in completed.items():
        if any(delivery > last for _, delivery in leased[id]):
            raise Broken(f"item {id} was delivered after its completion")
