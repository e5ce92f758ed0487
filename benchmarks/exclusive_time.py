"""Compare the PostgreSQL stores of two checkouts: the share of time that the namespace is locked exclusively.

    git worktree add /tmp/before f7986d8
    .venv/bin/python -m benchmarks.exclusive_time /tmp/before               # a server of its own, in memory
    .venv/bin/python -m benchmarks.exclusive_time .                         # the noise: this checkout against itself

Four processes put, lease, complete, retry, fail for good, redrive and drop, and one of them redrives all that is dead
now and then. Another connection looks at `pg_locks` every 2 ms. Both checkouts run in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 4
LOOK_SECONDS = 0.002
WARM_UP_SECONDS = 1.0
ITEMS = 10
"""Items of one turn: 7 are completed, 1 is retried, 2 die."""
MANUAL_EVERY = 5
"""Turns between manual changes: a redrive and a drop."""
BULK_EVERY = 50
"""Turns of one process between operations that redrive everything."""
_LOCKS = """
    SELECT count(*) FILTER (WHERE granted), count(*) FILTER (WHERE NOT granted) FROM pg_locks
    WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND objsubid = 1 AND classid = %s"""


class Found(NamedTuple):
    """One run of one checkout."""

    share: float
    """Of the looks, those that met an exclusive lock."""
    waiting: float
    """Transactions that waited to hold it exclusively, on average."""
    items: float
    """Items per second that came to an end of a turn."""


def main() -> None:
    """Run both in turns, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exclusive_time", description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path, help="another checkout")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one run (default 5)")
    parser.add_argument("--rounds", type=int, default=5, help="medians are over this many (default 5)")
    parser.add_argument("--work", nargs=2, metavar=("URL", "NUMBER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        url, number = arguments.work
        print(json.dumps(work(url, int(number), arguments.seconds)))
        return
    from tests.servers.postgres import Server

    server = Server()
    try:
        names = itertools.count()
        rounds = [
            [measure(source, server.url, f"bench_{next(names)}", arguments.seconds) for source in sides]
            for sides in [(arguments.before, ROOT)] * arguments.rounds
        ]
    finally:
        server.destroy()
    for side, name in enumerate(("before", "after")):
        runs = [each[side] for each in rounds]
        shares = [run.share for run in runs]
        share, waiting, items = (statistics.median(values) for values in zip(*runs, strict=True))
        print(
            f"{name:6}  exclusive {share:6.1%} ({min(shares):.1%} to {max(shares):.1%}), {waiting:.2f} waiting, "
            f"{items:6,.0f} items/s, {share / items * 1e6:5.0f} µs exclusive per item"
        )


def measure(source: Path, url: str, schema: str, seconds: float) -> Found:
    """Let processes of a checkout work for some seconds, and look at the lock meanwhile."""
    environment = {**os.environ, "PYTHONPATH": str(source.resolve() / "src")}
    own = f"{url}?schema={schema}"
    command = [sys.executable, __file__, str(source), "--seconds", str(WARM_UP_SECONDS + seconds), "--work", own]
    prepare = "import sys, redrive; redrive.connect(sys.argv[1], maintenance=False).create_queue('jobs')"
    subprocess.run([sys.executable, "-c", prepare, own], env=environment, check=True, stdout=subprocess.DEVNULL)
    workers = [
        subprocess.Popen([*command, str(number)], env=environment, stdout=subprocess.PIPE)
        for number in range(PROCESSES)
    ]
    looks: list[tuple[int, int]] = []
    lock = (zlib.crc32(f"redrive/{schema}".encode()) << 31) >> 32
    with psycopg.connect(url, autocommit=True) as connection:
        time.sleep(WARM_UP_SECONDS)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            looks.append(connection.execute(_LOCKS, (lock,)).fetchone() or (0, 0))
            time.sleep(LOOK_SECONDS)
    items = sum(json.loads(worker.communicate()[0]) for worker in workers)
    share, waiting = (sum(column) / len(looks) for column in zip(*looks, strict=True))
    return Found(share, waiting, items / (WARM_UP_SECONDS + seconds))


def work(url: str, number: int, seconds: float) -> int:
    """One process: turns until the time is over. Returns the number of items that it settled."""
    from redrive import RetryVerdict, connect
    from redrive.errors import RedriveError

    def change(call: Any) -> None:
        if died:
            with contextlib.suppress(RedriveError):  # the operation was faster
                call(died.pop())

    died: list[str] = []
    settled = 0
    with connect(url, maintenance=False, actor="bench") as broker:
        until = time.monotonic() + seconds
        for turn in itertools.count():
            if time.monotonic() >= until:
                return settled
            for value in range(ITEMS):
                broker.put("jobs", value)
            leases = list(broker.lease("jobs", ITEMS))
            settled += len(leases)
            for at, lease in enumerate(leases):
                if at == 0:
                    broker.fail(lease, "boom", verdict=RetryVerdict.after("1ms"))
                elif at < 3:
                    broker.fail(lease, ValueError("boom"), final=True)
                    died.append(lease.id)
                else:
                    broker.complete(lease)
            if turn % MANUAL_EVERY == 0:
                change(broker.redrive)
                change(broker.drop)
            if number == 0 and turn % BULK_EVERY == BULK_EVERY - 1:
                broker.run_operation(broker.start_operation("redrive", queue="jobs", reason=None).id)
    return settled


if __name__ == "__main__":
    main()
