# /// script
# dependencies = ["saq[redis]==0.26.4", "redis==7.4.1", "hiredis==3.5.0", "uvloop==0.22.1", "typing-extensions==4.15.0"]
# ///
"""saq: concurrent callers, one job each; it has no way to enqueue many at once but that."""

from saq import Queue

from benchmarks.load import payload
from benchmarks.peers.redis_peer import CONNECTIONS, Done, by_callers, main, run_async

PAYLOAD = payload()


async def put(url: str) -> Done:
    queue = Queue.from_url(url, name="q", max_concurrent_ops=CONNECTIONS)

    async def step() -> int:
        await queue.enqueue("work", value=PAYLOAD)
        return 1

    try:
        return await by_callers(step)
    finally:
        await queue.disconnect()


if __name__ == "__main__":
    main("saq", {"callers256": lambda url: run_async(put(url))}, lambda client: client.llen("saq:q:queued"))
