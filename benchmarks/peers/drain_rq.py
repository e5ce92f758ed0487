"""rq on Redis: SimpleWorker, which runs jobs in its own process. In the environment of `redis_rq.py`."""

from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

from benchmarks.peers.drain import PAYLOAD, URL, main

BULK = 500


def no_operation(value: object) -> None:
    """Does nothing."""


def fill(count: int) -> None:
    queue = Queue("q", connection=Redis.from_url(URL), serializer=JSONSerializer)
    name = "benchmarks.peers.drain_rq.no_operation"
    for _ in range(count // BULK):
        queue.enqueue_many([Queue.prepare_data(name, args=(PAYLOAD,), result_ttl=0) for _ in range(BULK)])


def work() -> None:
    connection = Redis.from_url(URL)
    queue = Queue("q", connection=connection, serializer=JSONSerializer)
    SimpleWorker([queue], connection=connection, serializer=JSONSerializer).work(logging_level="ERROR")


if __name__ == "__main__":
    main(fill, work)
