# /// script
# dependencies = ["rq==2.12.0", "redis==8.1.0", "hiredis==3.5.0"]
# ///
"""rq: enqueue_many, which sends many jobs in one pipeline."""

from functools import partial

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from benchmarks.load import payload, run_one
from benchmarks.peers.redis_peer import Done, main

PAYLOAD = payload()


def put(batch: int, url: str) -> Done:
    queue = Queue("q", connection=Redis.from_url(url), serializer=JSONSerializer)

    def step() -> int:
        jobs = [Queue.prepare_data("benchmarks.load.payload", args=(PAYLOAD,)) for _ in range(batch)]
        queue.enqueue_many(jobs)
        return batch

    return run_one(step)


if __name__ == "__main__":
    ways = {"batch1": partial(put, 1), "batch100": partial(put, 100), "batch1000": partial(put, 1000)}
    main("rq", ways, lambda client: client.llen("rq:queue:q"))
