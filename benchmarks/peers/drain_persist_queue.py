"""persist-queue, SQLiteAckQueue: it has no worker, so threads get and ack. In the environment of `persist_queue.py`."""

import itertools
import threading

from persistqueue import SQLiteAckQueue

from benchmarks.peers.drain import PAYLOAD, URL, main, note_sync
from benchmarks.peers.peer import BUSY_TIMEOUT_SECONDS, record_connections, set_full_sync

CLEAR_EVERY = 100
"""Acked rows stay in its table and each get scans over them, so they are cleared as its manual advises."""


def fill(count: int) -> None:
    queue = _open()
    for _ in range(count):
        queue.put(PAYLOAD)


def work(threads: str) -> None:
    queue = _open()
    acked = itertools.count(1)

    def loop() -> None:
        while True:
            item = queue.get(raw=True)
            note_sync()
            queue.ack(id=item["pqid"])
            if next(acked) % CLEAR_EVERY == 0:
                queue.clear_acked_data(max_delete=2 * CLEAR_EVERY, keep_latest=0)

    for _ in range(int(threads) - 1):
        threading.Thread(target=loop, daemon=True).start()
    loop()


def _open() -> SQLiteAckQueue:
    record_connections()
    queue = SQLiteAckQueue(URL, multithreading=True, timeout=BUSY_TIMEOUT_SECONDS)
    set_full_sync()
    return queue


if __name__ == "__main__":
    main(fill, work)
