# /// script
# dependencies = ["taskiq-redis==1.2.4", "taskiq==0.13.0", "redis==8.1.0", "hiredis==3.5.0", "uvloop==0.22.1"]
# ///
"""taskiq: concurrent callers, one task each. The list broker takes a task out before it runs; the stream does not."""

from functools import partial

from taskiq_redis import ListQueueBroker, RedisStreamBroker

from benchmarks.load import payload
from benchmarks.peers.redis_peer import CONNECTIONS, Done, by_callers, main, run_async

PAYLOAD = payload()
BROKERS = {"list": ListQueueBroker, "stream": RedisStreamBroker}


async def put(kind: str, url: str) -> Done:
    broker = BROKERS[kind](url, queue_name="q", max_connection_pool_size=CONNECTIONS)

    @broker.task(task_name="work")
    async def work(value: object) -> None:
        """Never runs here."""

    await broker.startup()

    async def step() -> int:
        await work.kiq(PAYLOAD)
        return 1

    try:
        return await by_callers(step)
    finally:
        await broker.shutdown()


def run(kind: str, url: str) -> Done:
    return run_async(put(kind, url))


if __name__ == "__main__":
    main(
        "taskiq-redis",
        {kind: partial(run, kind) for kind in BROKERS},
        lambda client: client.xlen("q") if client.type("q") == b"stream" else client.llen("q"),
    )
