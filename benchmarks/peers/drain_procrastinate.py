# /// script
# dependencies = ["procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0"]
# ///
"""procrastinate with psycopg on uvloop: its worker; finished jobs are deleted, so that its table stays small."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop
from procrastinate import App, PsycopgConnector

from benchmarks.peers.drain import PAYLOAD, URL, main

BULK = 500
app = App(connector=PsycopgConnector(conninfo=URL, min_size=1, max_size=40))


@app.task(queue="q", name="no_operation")
async def no_operation(value: object) -> None:
    """Does nothing."""


async def fill(count: int) -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for _ in range(count // BULK):
            await no_operation.batch_defer_async(*({"value": PAYLOAD} for _ in range(BULK)))


async def work(concurrency: str) -> None:
    async with app.open_async():
        await app.run_worker_async(queues=["q"], concurrency=int(concurrency), delete_jobs="always")


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


if __name__ == "__main__":
    main(lambda count: run(fill(count)), lambda concurrency: run(work(concurrency)))
