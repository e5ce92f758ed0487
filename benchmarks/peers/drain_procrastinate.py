# /// script
# dependencies = ["procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0"]
# ///
"""procrastinate with psycopg on uvloop: its worker; completed jobs are deleted, so that its table stays small."""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import TypeVar

import uvloop
from procrastinate import App, PsycopgConnector

from benchmarks.peers.drain import FAILS, PAYLOAD, URL, main
from benchmarks.peers.kept import MESSAGE, Kept

BULK = 500
FAILED_AT = "SELECT at FROM procrastinate_events WHERE type = 'failed' AND job_id = %(job)s"
T = TypeVar("T")
app = App(connector=PsycopgConnector(conninfo=URL, min_size=1, max_size=40))


@app.task(queue="q", name="no_operation")
async def no_operation(value: object) -> None:
    if FAILS:
        raise TimeoutError(MESSAGE)


async def fill(count: int) -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for _ in range(count // BULK):
            await no_operation.batch_defer_async(*({"value": PAYLOAD} for _ in range(BULK)))


async def work(concurrency: str) -> None:
    async with app.open_async():
        await app.run_worker_async(queues=["q"], concurrency=int(concurrency), delete_jobs="successful")


async def kept() -> Kept:
    """What its shell shows with `list_jobs status=failed details`, and does by `retry ID`."""
    async with app.open_async():
        jobs = list(await app.job_manager.list_jobs_async(status="failed"))
        job = jobs[0]
        (event,) = await app.connector.execute_query_all_async(FAILED_AT, job=job.id)
        await app.job_manager.retry_job_by_id_async(job.id, retry_at=datetime.now(UTC))
        (again,) = await app.job_manager.list_jobs_async(id=job.id)
        return Kept(len(jobs), repr(job), str(event["at"]), job.attempts, again.status == "todo")


def run(coroutine: Coroutine[object, object, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


if __name__ == "__main__":
    main(lambda count: run(fill(count)), lambda concurrency: run(work(concurrency)), lambda: run(kept()))
