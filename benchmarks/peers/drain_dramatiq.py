"""dramatiq on Redis: its own command works. In the environment of `redis_dramatiq.py`."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.drain import PAYLOAD, URL, main

broker = RedisBroker(url=URL or "redis://", middleware=[])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="q")
def no_operation(value: object) -> None:
    """Does nothing."""


def fill(count: int) -> None:
    for _ in range(count):
        no_operation.send(PAYLOAD)


if __name__ == "__main__":
    main(fill)
