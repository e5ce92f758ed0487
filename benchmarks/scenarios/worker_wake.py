"""How soon an idle worker in another process begins: from before the put to the first line of the handler.

The server's own round trip is what nobody can do without, by hand, on tables with nothing in them: one row put and
committed (PostgreSQL: an INSERT; Redis: an LPUSH), a notice heard by another process (NOTIFY; PUBLISH), one row leased
and committed (UPDATE … SKIP LOCKED … RETURNING; LMOVE). Their medians, added up. They are measured in turn with the
waking, on the same server, after pauses of the same length.
"""

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.drain import wait_for, workers
from benchmarks.harness import Bar, Case
from benchmarks.listener import CHANNEL
from benchmarks.load import Measurement, payload
from benchmarks.postgres import server as postgres
from benchmarks.redis import SYNCS
from benchmarks.redis import server as redis
from benchmarks.subject import url as sqlite_url

GROUP = "Waking: from put to the first line of the handler, in another process"
PUTS = 250
WARM_UP = 20
PAUSE_SECONDS = (0.01, 0.08)
TIMES, SQLITE_MS = 2.0, 25.0
TASKS = {"threads": ("note_start", "a function"), "awaited": ("note_start_awaited", "a coroutine")}
STATEMENTS = {
    "table": "CREATE TABLE raw (id bigserial PRIMARY KEY, state smallint NOT NULL, payload bytea NOT NULL)",
    "index": "CREATE INDEX raw_ready ON raw (id) WHERE state = 0",
    "put": "INSERT INTO raw (state, payload) VALUES (0, %s)",
    "lease": """
        UPDATE raw SET state = 1
        WHERE id = (SELECT id FROM raw WHERE state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING id, payload""",
}

Step = Callable[[], object]


class Notes:
    """A pipe with a name, into which others write a word and an instant per line."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / name
        os.mkfifo(self.path)
        self._end = os.open(self.path, os.O_RDWR)
        self._rest = b""

    def next(self) -> tuple[str, int]:
        """The next line, as soon as it is there."""
        while b"\n" not in self._rest:
            self._rest += os.read(self._end, 4096)
        line, _, self._rest = self._rest.partition(b"\n")
        word, _, instant = line.decode().partition(" ")
        return word, int(instant)


class RoundTrip:
    """The three parts, one after the other, timed one by one."""

    def __init__(self, put: Step, tell: Step, lease: Step, heard: Notes) -> None:
        self._put, self._tell, self._lease, self._heard = put, tell, lease, heard
        self.parts: dict[str, list[float]] = {"put": [], "told": [], "lease": []}

    def measure(self) -> None:
        began = time.monotonic_ns()
        self._put()
        done = time.monotonic_ns()
        self._tell()
        _, heard = self._heard.next()
        leasing = time.monotonic_ns()
        assert self._lease(), "there was nothing to lease"
        leased = time.monotonic_ns()
        for name, duration in (("put", done - began), ("told", heard - done), ("lease", leased - leasing)):
            self.parts[name].append(duration / 1e6)

    def medians(self) -> dict[str, float]:
        """In milliseconds, and their sum."""
        found = {f"{name}_ms": statistics.median(values[WARM_UP:]) for name, values in self.parts.items()}
        return {**found, "round_ms": sum(found.values())}


@contextmanager
def raw_postgres(url: str, directory: Path) -> Iterator[RoundTrip]:
    import psycopg

    body = str(payload()).encode()
    with psycopg.connect(url, autocommit=True) as connection, listening(url, directory) as heard:
        connection.execute(STATEMENTS["table"])
        connection.execute(STATEMENTS["index"])
        yield RoundTrip(
            lambda: connection.execute(STATEMENTS["put"], (body,), prepare=True),
            lambda: connection.execute(f"NOTIFY {CHANNEL}"),
            lambda: connection.execute(STATEMENTS["lease"], prepare=True).fetchone(),
            heard,
        )


@contextmanager
def raw_redis(url: str, directory: Path) -> Iterator[RoundTrip]:
    from redis import Redis

    body = str(payload()).encode()
    with Redis.from_url(url) as client, listening(url, directory) as heard:
        yield RoundTrip(
            lambda: client.lpush("raw", body),
            lambda: client.publish(CHANNEL, b""),
            lambda: client.lmove("raw", "leased", "RIGHT", "LEFT"),
            heard,
        )


@contextmanager
def listening(url: str, directory: Path) -> Iterator[Notes]:
    """A process that hears, and says when it is ready."""
    heard = Notes(directory, "heard")
    with workers([[sys.executable, "-m", "benchmarks.listener", url, str(heard.path)]], directory, {}):
        heard.next()
        yield heard


def wake(url: str, durability: str, kind: str, directory: Path, trip: RoundTrip | None = None) -> dict[str, float]:
    """Median and tail of single puts into an idle queue, in milliseconds."""
    notes = Notes(directory, "began")
    name, _ = TASKS[kind]
    took: list[float] = []
    with worker.tasks(url, durability, notes.path) as module:
        task: Any = getattr(module, name)
        task.app.open()
        with workers([worker.command()], directory, worker.environment(url, durability, notes.path)) as running:
            wait_for(lambda: bool(task.app.broker.workers()), "a worker that announces itself", running)
            for number in range(WARM_UP + PUTS):
                time.sleep(random.uniform(*PAUSE_SECONDS))
                put_at = time.monotonic_ns()
                task.put(number)
                seen, began = notes.next()
                assert seen == str(number), f"{seen} began, and {number} was put"
                took.append((began - put_at) / 1e6)
                if trip is not None:
                    time.sleep(random.uniform(*PAUSE_SECONDS))
                    trip.measure()
    took = took[WARM_UP:]
    return {"p50_ms": statistics.median(took), "p99_ms": statistics.quantiles(took, n=100)[98]}


def measure_sqlite(kind: str, directory: Path) -> Measurement:
    return Measurement(wake(sqlite_url(directory), "full", kind, directory), {"puts": PUTS})


def measure_postgres(kind: str, directory: Path) -> Measurement:
    with postgres(directory) as url, raw_postgres(url, directory) as trip:
        return _beside(wake(url, "full", kind, directory, trip), trip)


def measure_redis(sync: str, kind: str, directory: Path) -> Measurement:
    with redis(directory, sync) as running, raw_redis(running.url, directory) as trip:
        return _beside(wake(running.url, SYNCS[sync], kind, directory, trip), trip)


def _beside(woken: dict[str, float], trip: RoundTrip) -> Measurement:
    parts = trip.medians()
    return Measurement({**woken, **parts, "times": woken["p50_ms"] / parts["round_ms"]}, {"puts": PUTS})


STORES: dict[str, tuple[str, Callable[[str, Path], Measurement]]] = {
    "sqlite": ("SQLite", measure_sqlite),
    "postgres": ("PostgreSQL", measure_postgres),
    **{f"redis.{sync}": (f"Redis, appendfsync {sync}", partial(measure_redis, sync)) for sync in SYNCS},
}
CASES = [
    Case(f"wake.{store}.{kind}", GROUP, f"{name}: {words}", partial(measure, kind))
    for store, (name, measure) in STORES.items()
    for kind, (_, words) in TASKS.items()
]
BARS = [
    Bar(
        f"{name}: an idle worker begins {words} within 2 × the server's own put, notice and lease (median)",
        f"wake.{store}.{kind}",
        (),
        figure="times",
        at_most=TIMES,
    )
    for store, (name, _) in STORES.items()
    for kind, (_, words) in TASKS.items()
    if store != "sqlite"
] + [
    Bar(
        f"SQLite: an idle worker in another process begins {words} within 25 ms (median)",
        f"wake.sqlite.{kind}",
        (),
        figure="p50_ms",
        at_most=SQLITE_MS,
    )
    for kind, (_, words) in TASKS.items()
]
