"""dramatiq on Redis: its own command works. In the environment of `redis_dramatiq.py`."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries

from benchmarks.peers.drain import FAILS, PAYLOAD, URL, main
from benchmarks.peers.kept import MESSAGE, Kept

# Without this one, which gives up at the first failure, nothing would become a dead letter.
broker = RedisBroker(url=URL or "redis://", middleware=[Retries(max_retries=0)] if FAILS else [])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="q")
def no_operation(value: object) -> None:
    if FAILS:
        raise TimeoutError(MESSAGE)


def fill(count: int) -> None:
    for _ in range(count):
        no_operation.send(PAYLOAD)


def kept() -> Kept:
    """Its dead letters: messages as they were put. It has nothing to list them or to send them again."""
    ((identity, milliseconds),) = broker.client.zrange("dramatiq:q.XQ", 0, 0, withscores=True)
    message = dramatiq.Message.decode(broker.client.hget("dramatiq:q.XQ.msgs", identity))
    return Kept(broker.client.zcard("dramatiq:q.XQ"), repr(message), str(milliseconds))


if __name__ == "__main__":
    main(fill, kept=kept)
