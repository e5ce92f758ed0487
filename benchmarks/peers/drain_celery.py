"""celery on Redis: its own command works; acknowledged after it ran. In the environment of `redis_celery.py`."""

import json

from celery import Celery
from redis import Redis

from benchmarks.peers.drain import FAILS, PAYLOAD, URL, main
from benchmarks.peers.kept import MESSAGE, Kept

RESULTS = f"{URL.rpartition('/')[0]}/1"
"""Another database of the same server: there is nothing else in it."""
app = Celery("benchmark", broker=URL or "redis://", backend=RESULTS if URL else None)
app.conf.update(
    task_ignore_result=True,
    task_store_errors_even_if_ignored=True,
    result_extended=True,
    result_expires=None,
    task_acks_late=True,
    task_default_queue="q",
    worker_prefetch_multiplier=64,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="no_operation")  # type: ignore[untyped-decorator]
def no_operation(value: object) -> None:
    if FAILS:
        raise TimeoutError(MESSAGE)


def fill(count: int) -> None:
    for _ in range(count):
        no_operation.delay(PAYLOAD)


def kept() -> Kept:
    """Results by the ids of their tasks. It has nothing to list failures or to send their tasks again."""
    client = Redis.from_url(RESULTS)
    meta = json.loads(client.get(client.randomkey()))
    return Kept(client.dbsize(), repr(meta), meta["date_done"], meta["retries"] + 1)


if __name__ == "__main__":
    main(fill, kept=kept)
