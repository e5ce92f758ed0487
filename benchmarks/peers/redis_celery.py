# /// script
# dependencies = ["celery[redis]==5.7.0", "redis==8.1.0", "hiredis==3.5.0"]
# ///
"""celery: no results, JSON, one LPUSH for each task over a pool of connections."""

from functools import partial

from celery import Celery

from benchmarks.load import payload
from benchmarks.peers.redis_peer import Done, in_threads, main

PAYLOAD = payload()


def put(threads: int, url: str) -> Done:
    app = Celery("benchmark", broker=url)
    app.conf.update(task_ignore_result=True, broker_pool_limit=threads, task_default_queue="q", task_protocol=2)

    @app.task(name="work")  # type: ignore[untyped-decorator]
    def work(value: object) -> None:
        """Never runs here."""

    def step() -> int:
        work.delay(PAYLOAD)
        return 1

    return in_threads(step, threads)


if __name__ == "__main__":
    main("celery", {"threads1": partial(put, 1), "threads8": partial(put, 8)}, lambda client: client.llen("q"))
