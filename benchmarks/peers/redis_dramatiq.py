# /// script
# dependencies = ["dramatiq[redis]==2.2.1", "redis==8.1.0", "hiredis==3.5.0"]
# ///
"""dramatiq, RedisBroker: one script for each message; it has no way to enqueue many at once."""

from functools import partial

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.load import payload
from benchmarks.peers.redis_peer import Done, in_threads, main

PAYLOAD = payload()


def put(threads: int, url: str) -> Done:
    broker = RedisBroker(url=url, middleware=[])
    dramatiq.set_broker(broker)

    @dramatiq.actor(queue_name="q")
    def work(value: object) -> None:
        """Never runs here."""

    def step() -> int:
        work.send(PAYLOAD)
        return 1

    return in_threads(step, threads)


if __name__ == "__main__":
    ways = {"threads1": partial(put, 1), "threads8": partial(put, 8)}
    main("dramatiq", ways, lambda client: client.llen("dramatiq:q"))
