"""rq on Redis: SimpleWorker, which runs jobs in its own process. In the environment of `redis_rq.py`."""

from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

from benchmarks.peers.drain import FAILS, PAYLOAD, URL, main
from benchmarks.peers.kept import MESSAGE, Kept

BULK = 500


def no_operation(value: object) -> None:
    if FAILS:
        raise TimeoutError(MESSAGE)


def fill(count: int) -> None:
    queue = Queue("q", connection=Redis.from_url(URL), serializer=JSONSerializer)
    name = "benchmarks.peers.drain_rq.no_operation"
    for _ in range(count // BULK):
        queue.enqueue_many([Queue.prepare_data(name, args=(PAYLOAD,), result_ttl=0) for _ in range(BULK)])


def work() -> None:
    connection = Redis.from_url(URL)
    queue = Queue("q", connection=connection, serializer=JSONSerializer)
    SimpleWorker([queue], connection=connection, serializer=JSONSerializer).work(logging_level="ERROR")


def kept() -> Kept:
    """What its command `requeue` works on: failed jobs, kept for a year."""
    queue = Queue("q", connection=Redis.from_url(URL), serializer=JSONSerializer)
    failed = queue.failed_job_registry
    count = len(failed)
    job = queue.fetch_job(failed.get_job_ids(0, 0)[0])
    result = job.latest_result()
    failed.requeue(job)
    text = f"{job.args} {result.exc_string}"
    return Kept(count, text, str(result.created_at), is_waiting=len(queue) == 1)


if __name__ == "__main__":
    main(fill, work, kept)
