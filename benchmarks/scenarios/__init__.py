"""One file per scenario; each has CASES, what is measured, and BARS, what is promised about it."""

from dataclasses import replace
from itertools import chain
from types import ModuleType

from benchmarks.harness import Suite
from benchmarks.scenarios import (
    bare,
    blocking,
    capture,
    concurrent,
    death_cost,
    failure_cost,
    floor,
    guard_cost,
    happy_path,
    http,
    lease_cost,
    looking,
    mailbox,
    peer_failures,
    peers,
    postgres_calls,
    postgres_lease_cost,
    postgres_peers,
    postgres_raw,
    postgres_rot,
    raw,
    redis_concurrent,
    redis_lease_cost,
    redis_peers,
    redis_raw,
    redriving,
    worker_failures,
    worker_kills,
    worker_memory,
    worker_postgres,
    worker_redis,
    worker_sqlite,
    worker_trouble,
    worker_wake,
)


def _suite(name: str, *scenarios: ModuleType) -> Suite:
    cases, bars = ([getattr(scenario, kind) for scenario in scenarios] for kind in ("CASES", "BARS"))
    return Suite(name, list(chain.from_iterable(cases)), list(chain.from_iterable(bars)))


SUITES = {
    suite.name: suite
    for suite in (
        _suite("sqlite", peers, bare, raw, floor, blocking, concurrent, lease_cost, failure_cost, happy_path),
        replace(
            _suite("redis", redis_peers, redis_raw, redis_concurrent, redis_lease_cost),
            durable="The server keeps a log and syncs it as each case says, read back from it before and after.",
        ),
        replace(
            _suite("postgres", postgres_peers, postgres_raw, postgres_calls, postgres_lease_cost, postgres_rot),
            durable="A server on disk for each case; fsync, synchronous_commit and full_page_writes are on.",
        ),
        _suite("looking", looking, redriving, death_cost),
        _suite("http", http, guard_cost),
        _suite("capture", capture),
        replace(
            _suite("mailbox", mailbox),
            durable="Redis syncs its log at each write; SQLite runs with synchronous=FULL; memory keeps nothing.",
        ),
        replace(
            _suite("failures", worker_failures, peer_failures),
            durable="Equal durability for all: see the suite of workers.",
        ),
        replace(
            _suite(
                "workers",
                worker_sqlite,
                worker_postgres,
                worker_redis,
                worker_wake,
                worker_memory,
                worker_trouble,
                worker_kills,
            ),
            durable="Equal durability for all: SQLite synchronous=FULL, read back by each worker; PostgreSQL fsync,\n"
            "synchronous_commit and full_page_writes on; Redis syncs its log as each case says.",
        ),
    )
}
