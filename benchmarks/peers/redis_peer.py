"""What the peers on Redis share: the URL they are given, ways to call them, and the JSON line they print."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping
from importlib.metadata import version
from typing import Any

import redis

from benchmarks.load import AsyncStep, Step, run_callers, run_one, run_threads

CALLERS = 256
CONNECTIONS = 32
"""Of a peer that has a pool for its callers: with 8 and with 256, none was faster."""
Done = tuple[int, float]
"""Items, and seconds."""


def in_threads(step: Step, threads: int) -> Done:
    """The same step in several threads, or in this one. Connections are made before."""
    step()
    return run_one(step) if threads == 1 else run_threads([step] * threads)


async def by_callers(step: AsyncStep) -> Done:
    """Tasks of one loop, each of which awaits its own call. Connections are made before."""
    await asyncio.gather(*(step() for _ in range(CALLERS)))
    return await run_callers(step, CALLERS)


def run_async(work: Coroutine[Any, Any, Done]) -> Done:
    """On uvloop, as ours."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def main(name: str, ways: Mapping[str, Callable[[str], Done]], count: Callable[[Any], int]) -> None:
    """Arguments: how to call it, the URL of an empty server. `count` tells how many jobs are there afterwards."""
    way, url = sys.argv[1:]
    items, seconds = ways[way](url)
    with redis.Redis.from_url(url) as client:
        found = count(client)
    if found < items:
        raise RuntimeError(f"{name} says that it put {items} jobs, and {found} are there")
    print(json.dumps({"peer": name, "version": version(name), "items": items, "seconds": seconds}))
