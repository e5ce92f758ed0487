"""saq as its drains use it, whichever store it is on."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop
from saq import Queue, Worker

from benchmarks.peers import drain

CALLERS = 20
DELETE_AT_ONCE = -1


async def no_operation(context: object, *, value: object) -> None:
    """Does nothing."""


async def fill(count: int) -> None:
    queue = Queue.from_url(drain.URL, name="q")
    await queue.connect()

    async def put(jobs: int) -> None:
        for _ in range(jobs):
            await queue.enqueue("no_operation", value=drain.PAYLOAD, ttl=DELETE_AT_ONCE)

    await asyncio.gather(*(put(count // CALLERS) for _ in range(CALLERS)))
    await queue.disconnect()


async def work(concurrency: str) -> None:
    queue = Queue.from_url(drain.URL, name="q")
    await queue.connect()
    await Worker(queue, functions=[no_operation], concurrency=int(concurrency)).start()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


def main() -> None:
    drain.main(lambda count: run(fill(count)), lambda concurrency: run(work(concurrency)))
