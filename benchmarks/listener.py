"""Hears what a server tells, and writes down when: `python -m benchmarks.listener URL FILE`. The raw side of waking."""

import os
import sys
import time

CHANNEL = "benchmark"
READY = "ready"


def main(url: str, file: str) -> None:
    notes = os.open(file, os.O_WRONLY)
    if url.startswith("redis"):
        _subscribe(url, notes)
    else:
        _listen(url, notes)


def _listen(url: str, notes: int) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        os.write(notes, f"{READY} 0\n".encode())
        for _ in connection.notifies():
            os.write(notes, f"heard {time.monotonic_ns()}\n".encode())


def _subscribe(url: str, notes: int) -> None:
    import redis

    with redis.Redis.from_url(url) as client, client.pubsub() as heard:
        heard.subscribe(CHANNEL)
        for message in heard.listen():
            is_first = message["type"] == "subscribe"
            os.write(notes, (f"{READY} 0\n" if is_first else f"heard {time.monotonic_ns()}\n").encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
