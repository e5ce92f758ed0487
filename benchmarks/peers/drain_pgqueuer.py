"""pgqueuer with asyncpg on uvloop: its queue manager, 200 jobs at a time. In the environment of `postgres_pgqueuer.py`.

Its tables are as it makes them, durable; ends of jobs are gathered, and written 200 at a time or after a moment. Failed
jobs are held in its queue, as `on_failure` asks for, with an entry in its log.
"""

import asyncio
import json
from collections.abc import Coroutine
from typing import TypeVar

import asyncpg
import uvloop
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from benchmarks.peers.drain import FAILS, PAYLOAD, URL, main
from benchmarks.peers.kept import MESSAGE, Kept

BULK = 1_000
BATCH = 200
BODY = json.dumps(PAYLOAD, separators=(",", ":")).encode()
T = TypeVar("T")


async def fill(count: int) -> None:
    connection = await asyncpg.connect(URL)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for _ in range(count // BULK):
        await queries.enqueue(["job"] * BULK, [BODY] * BULK, [0] * BULK)
    await connection.close()


async def work() -> None:
    manager = QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(URL))))

    @manager.entrypoint("job", on_failure="hold")
    async def no_operation(job: Job) -> None:
        if FAILS:
            raise TimeoutError(MESSAGE)

    await manager.run(batch_size=BATCH)


async def kept() -> Kept:
    """What its commands `failed` and `requeue` do."""
    connection = await asyncpg.connect(URL)
    queries = Queries(AsyncpgDriver(connection))
    count = await connection.fetchval("SELECT count(*) FROM pgqueuer WHERE status = 'failed'")
    (job,) = await queries.list_failed_jobs(limit=1)
    (entry,) = await connection.fetch(
        "SELECT created, traceback FROM pgqueuer_log WHERE status = 'failed' AND job_id = $1", job.id
    )
    await queries.requeue_jobs([job.id])
    status = await connection.fetchval("SELECT status FROM pgqueuer WHERE id = $1", job.id)
    await connection.close()
    return Kept(count, f"{job!r} {entry['traceback']}", str(entry["created"]), job.attempts, status == "queued")


def run(coroutine: Coroutine[object, object, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


if __name__ == "__main__":
    main(lambda count: run(fill(count)), lambda: run(work()), lambda: run(kept()))
