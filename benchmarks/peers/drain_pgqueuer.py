"""pgqueuer with asyncpg on uvloop: its queue manager, 200 jobs at a time. In the environment of `postgres_pgqueuer.py`.

Its tables are as it makes them, durable; ends of jobs are gathered, and written 200 at a time or after a moment.
"""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import asyncpg
import uvloop
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from benchmarks.peers.drain import PAYLOAD, URL, main

BULK = 1_000
BATCH = 200
BODY = json.dumps(PAYLOAD, separators=(",", ":")).encode()


async def fill(count: int) -> None:
    connection = await asyncpg.connect(URL)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for _ in range(count // BULK):
        await queries.enqueue(["job"] * BULK, [BODY] * BULK, [0] * BULK)
    await connection.close()


async def work() -> None:
    manager = QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(URL))))

    @manager.entrypoint("job")
    async def no_operation(job: Job) -> None:
        """Does nothing."""

    await manager.run(batch_size=BATCH)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


if __name__ == "__main__":
    main(lambda count: run(fill(count)), lambda: run(work()))
