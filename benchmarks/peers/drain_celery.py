"""celery on Redis: its own command works; acknowledged after it ran. In the environment of `redis_celery.py`."""

from celery import Celery

from benchmarks.peers.drain import PAYLOAD, URL, main

app = Celery("benchmark", broker=URL or "redis://")
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_default_queue="q",
    worker_prefetch_multiplier=64,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="no_operation")  # type: ignore[untyped-decorator]
def no_operation(value: object) -> None:
    """Does nothing."""


def fill(count: int) -> None:
    for _ in range(count):
        no_operation.delay(PAYLOAD)


if __name__ == "__main__":
    main(fill)
