"""Compare stores with the frozen one: `python -m tests.simulation.frozen --seeds 1000`. Ends with 1 at a difference."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from tests.servers.postgres import Server as PostgresServer
from tests.servers.redis import Server as RedisServer
from tests.simulation.frozen.differences import compare
from tests.simulation.frozen.frozen_store import FrozenProcess

STORES = ("memory", "sqlite", "postgres", "redis")
NAME = "frozen"
"""Of the schema, and the prefix."""


def main() -> int:
    """Run, and report each difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.frozen", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many histories on each store")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--store", action="append", choices=STORES, help="several times for several; default: all")
    parser.add_argument("--keep-going", action="store_true", help="after a difference too")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failed = 0
    with ExitStack() as stack:
        process = stack.enter_context(closing(FrozenProcess()))
        for store in arguments.store or STORES:
            began, urls = time.monotonic(), _urls(stack, store)
            differences = 0
            for seed in range(arguments.first, arguments.first + arguments.seeds):
                try:
                    compare(process, seed, next(urls))
                except (pytest.fail.Exception, Exception) as difference:
                    differences += 1
                    print(f"{store}, seed {seed}: {type(difference).__name__}\n{difference}\n", flush=True)
                    if not arguments.keep_going:
                        break
            failed += differences
            seconds = time.monotonic() - began
            print(f"{store}: {seed - arguments.first + 1} histories, {differences} differ, {seconds:.0f} s", flush=True)
    return 1 if failed else 0


def _urls(stack: ExitStack, store: str) -> Iterator[str]:
    """The URL of an empty store, again and again; empty for a SQLite file, which `compare` makes."""
    if store == "postgres":
        postgres = PostgresServer()
        stack.callback(postgres.destroy)
        while True:
            postgres.empty(NAME)
            yield f"{postgres.url}?schema={NAME}"
    if store == "redis":
        redis = RedisServer()
        stack.callback(redis.destroy)
        while True:
            redis.remove(NAME)
            yield f"{redis.url}?prefix={NAME}"
    while True:
        yield "memory://" if store == "memory" else ""


if __name__ == "__main__":
    raise SystemExit(main())
