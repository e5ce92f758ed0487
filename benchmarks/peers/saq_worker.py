"""saq as its drains use it, whichever store it is on."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import TypeVar

import uvloop
from saq import Queue, Status, Worker

from benchmarks.peers import drain
from benchmarks.peers.kept import MESSAGE, Kept

CALLERS = 20
DELETED, KEPT = -1, 0
"""How long it keeps a job that has ended."""
SWEPT = (Status.ABORTING, Status.ABORTED)
"""On Redis, its sweep takes one or two of the first jobs for lost ones while they start. They are kept as well."""
T = TypeVar("T")


async def no_operation(context: object, *, value: object) -> None:
    if drain.FAILS:
        raise TimeoutError(MESSAGE)


async def fill(count: int) -> None:
    queue = Queue.from_url(drain.URL, name="q")
    await queue.connect()
    ttl = KEPT if drain.FAILS else DELETED

    async def put(jobs: int) -> None:
        for _ in range(jobs):
            await queue.enqueue("no_operation", value=drain.PAYLOAD, ttl=ttl)

    await asyncio.gather(*(put(count // CALLERS) for _ in range(CALLERS)))
    await queue.disconnect()


async def work(concurrency: str) -> None:
    queue = Queue.from_url(drain.URL, name="q")
    await queue.connect()
    await Worker(queue, functions=[no_operation], concurrency=int(concurrency)).start()


async def kept() -> Kept:
    """What its web page shows of a job, and does by its button."""
    queue = Queue.from_url(drain.URL, name="q")
    await queue.connect()
    jobs = [job async for job in queue.iter_jobs([Status.FAILED, *SWEPT])]
    job = next(job for job in jobs if job.status == Status.FAILED)
    found = Kept(len(jobs), job.info(full=True), str(job.completed or ""), job.attempts)
    await job.retry("once more")
    await job.refresh()
    await queue.disconnect()
    return replace(found, is_waiting=job.status == Status.QUEUED)


def run(coroutine: Coroutine[object, object, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


def main() -> None:
    drain.main(lambda count: run(fill(count)), lambda concurrency: run(work(concurrency)), lambda: run(kept()))
