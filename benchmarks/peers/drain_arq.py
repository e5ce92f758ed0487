"""arq on Redis, on uvloop: its worker, without results. In the environment of `redis_arq.py`."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

from benchmarks.peers.drain import PAYLOAD, URL, main

CALLERS = 32


async def no_operation(context: object, value: object) -> None:
    """Does nothing."""


def _settings() -> RedisSettings:
    settings = RedisSettings.from_dsn(URL)
    settings.max_connections = 2 * CALLERS
    return settings


async def fill(count: int) -> None:
    pool = await create_pool(_settings())

    async def put(jobs: int) -> None:
        for _ in range(jobs):
            await pool.enqueue_job("no_operation", PAYLOAD)

    await asyncio.gather(*(put(count // CALLERS) for _ in range(CALLERS)))
    await pool.aclose()


async def work(jobs: str) -> None:
    worker = Worker(
        functions=[func(no_operation, name="no_operation", keep_result=0)],
        redis_settings=_settings(),
        max_jobs=int(jobs),
        keep_result=0,
        poll_delay=0.01,
        log_results=False,
    )
    await worker.async_run()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


if __name__ == "__main__":
    main(lambda count: run(fill(count)), lambda jobs: run(work(jobs)))
