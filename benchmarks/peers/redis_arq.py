# /// script
# dependencies = ["arq==0.28.0", "redis[hiredis]==5.3.1", "hiredis==3.5.0", "uvloop==0.22.1"]
# ///
"""arq: concurrent callers, one job each, over a pool of connections; it has no way to enqueue many at once."""

from arq import create_pool
from arq.connections import RedisSettings

from benchmarks.load import payload
from benchmarks.peers.redis_peer import CALLERS, Done, by_callers, main, run_async

PAYLOAD = payload()


async def put(url: str) -> Done:
    settings = RedisSettings.from_dsn(url)
    settings.max_connections = CALLERS
    pool = await create_pool(settings)

    async def step() -> int:
        await pool.enqueue_job("work", PAYLOAD)
        return 1

    try:
        return await by_callers(step)
    finally:
        await pool.aclose()


if __name__ == "__main__":
    main("arq", {"callers256": lambda url: run_async(put(url))}, lambda client: client.zcard("arq:queue"))
