"""taskiq on Redis: its own command works. In the environment of `redis_taskiq.py`.

The stream is acknowledged after the task ran. The list broker takes a task out before it runs: a crash loses it.
"""

import asyncio
import os

from taskiq_redis import ListQueueBroker, RedisStreamBroker

from benchmarks.peers.drain import PAYLOAD, URL, main

CALLERS = 32
CONNECTIONS = 128
"""At most: each of its concurrent tasks acknowledges on a connection of its own."""


def _broker() -> ListQueueBroker | RedisStreamBroker:
    if os.environ.get("BENCHMARK_BROKER") == "list":
        return ListQueueBroker(URL or "redis://", queue_name="q", max_connection_pool_size=CONNECTIONS)
    return RedisStreamBroker(URL or "redis://", queue_name="q", consumer_id="0", max_connection_pool_size=CONNECTIONS)


broker = _broker()


@broker.task(task_name="no_operation")
async def no_operation(value: object) -> None:
    """Does nothing."""


async def fill(count: int) -> None:
    await broker.startup()

    async def put(tasks: int) -> None:
        for _ in range(tasks):
            await no_operation.kiq(PAYLOAD)

    await asyncio.gather(*(put(count // CALLERS) for _ in range(CALLERS)))
    await broker.shutdown()


if __name__ == "__main__":
    main(lambda count: asyncio.run(fill(count)))
