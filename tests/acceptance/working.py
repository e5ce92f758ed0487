"""A worker process that puts, leases, completes and fails, and writes down everything it does."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from tests.acceptance.children import BEAT, Say
from tests.acceptance.histories import Journal, read_journal

from redrive import Broker, Lease, connect
from redrive.errors import LeaseLost

QUEUE = "jobs"
MAX_ATTEMPTS = 6
SETTINGS: dict[str, Any] = {
    "retry": {"attempts": 4},
    "max_attempts": MAX_ATTEMPTS,
    "max_losses": 0,
    "lease_timeout": "300ms",
    "dead_queue": "morgue",
}
PUT_AT_ONCE = 10
LEASE_AT_ONCE = 5
LATE_AT_ONCE = 3
"""Leases that a worker sits on while it works on others."""


def create_queues(url: str) -> None:
    """The queues that workers use."""
    with connect(url, maintenance=False) as broker:
        broker.create_queue("morgue")
        broker.create_queue(QUEUE, **SETTINGS)


class Worker:
    """Puts `share` items of its own, and works on those of all, until nothing is left. Its journal is in `folder`."""

    def __init__(self, url: str, folder: Path, number: int, life: int, share: int) -> None:
        self._values = range(number * share, (number + 1) * share)
        self._random = random.Random(number * 1000 + life)
        journal = folder / f"{number}.journal"
        begun = {value for entry in read_journal(journal) if entry.call == "put" for value in entry.values}
        done = {value for entry in read_journal(journal) if entry.phase == "ok" for value in entry.values}
        # The outcome of a put is unknown where this worker was killed meanwhile. A key allows to repeat it.
        self._todo = [value for value in self._values if value not in begun or (_keyed(value) and value not in done)]
        self._late: list[Lease] = []
        self._journal = Journal(journal)
        self._broker = connect(url, maintenance=number == 0)

    def run(self, say: Say) -> None:
        """Rounds of puts, leases and settles. A beat after each, so that the test knows how far its workers are."""
        idle = 0
        while self._todo or idle < 3:
            batch, self._todo = self._todo[:PUT_AT_ONCE], self._todo[PUT_AT_ONCE:]
            self._put(batch)
            leases = self._lease()
            for lease in leases:
                self._settle(lease)
            idle = 0 if batch or leases else idle + 1
            say(BEAT)
        self._broker.close()

    def _put(self, values: list[int]) -> None:
        if plain := [value for value in values if not _keyed(value)]:
            self._journal.write("put", "invoke", values=plain)
            self._broker.put_many(QUEUE, plain)
            self._journal.write("put", "ok", values=plain)
        for value in filter(_keyed, values):
            self._journal.write("put", "invoke", values=[value])
            self._broker.put(QUEUE, value, idempotency_key=f"item {value}")
            self._journal.write("put", "ok", values=[value])

    def _lease(self) -> list[Lease]:
        leases = self._broker.lease(QUEUE, LEASE_AT_ONCE, wait="20ms")
        for lease in leases:
            self._write("lease", "ok", lease)
        return leases

    def _settle(self, lease: Lease) -> None:
        draw = self._random.random()
        if draw < 0.01:
            return  # its lease runs out
        if draw < 0.03:
            self._late.append(lease)  # settled when somebody else may have the item
            lease = self._late.pop(0) if len(self._late) > LATE_AT_ONCE else lease
            if lease is self._late[-1]:
                return
        call = "complete" if draw < 0.8 else "fail" if draw < 0.95 else "release"
        self._write(call, "invoke", lease)
        try:
            match call:
                case "complete":
                    self._broker.complete(lease)
                case "fail":
                    self._broker.fail(lease, ValueError("boom"))
                case _:
                    self._broker.release(lease)
        except LeaseLost as lost:
            self._write(call, "lost", lease, status=lost.status)
        else:
            self._write(call, "ok", lease)

    def _write(self, call: str, phase: str, lease: Lease, status: str | None = None) -> None:
        numbers = {"delivery": lease.deliveries, "attempts": lease.attempts}
        self._journal.write(call, phase, values=[lease.value], ids=[lease.id], status=status, **numbers)


def _keyed(value: int) -> bool:
    return value % 3 == 0


def share_fairly(broker: Broker, say: Say, seconds: float) -> None:
    """Put, lease and complete as fast as it goes; say how often, and the longest wait for a call in milliseconds."""
    longest, rounds = 0.0, 0
    end = time.monotonic() + seconds
    while (begun := time.monotonic()) < end:
        broker.put(QUEUE, rounds)
        middle = time.monotonic()
        leases = broker.lease(QUEUE, lease_timeout="10m")  # a busy machine loses none to a sweep
        later = time.monotonic()
        for lease in leases:
            broker.complete(lease)
        longest = max(longest, middle - begun, later - middle, time.monotonic() - later)
        rounds += 1
    say(f"{rounds} {longest * 1000:.1f}".encode())
