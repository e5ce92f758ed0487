"""litequeue: it has no worker, so a loop pops and says done. In the environment of `litequeue.py`.

It sets synchronous=NORMAL itself; FULL is set after it has opened. Each pop sorts the whole backlog, which its index
does not cover: the fewer are waiting, the faster it is.
"""

import json
import time
from pathlib import Path

from litequeue import LiteQueue

from benchmarks.peers.drain import PAYLOAD, URL, main, note_sync
from benchmarks.peers.peer import BUSY_TIMEOUT_SECONDS, record_connections, set_full_sync

BODY = json.dumps(PAYLOAD, separators=(",", ":"))


def fill(count: int) -> None:
    queue = _open()
    for _ in range(count):
        queue.put(BODY)


def work() -> None:
    queue = _open()
    while True:
        message = queue.pop()
        if message is None:
            time.sleep(0.01)
            continue
        note_sync()
        queue.done(message.message_id)


def _open() -> LiteQueue:
    record_connections()
    queue = LiteQueue(Path(URL) / "litequeue.db", timeout=BUSY_TIMEOUT_SECONDS)
    set_full_sync()
    return queue


if __name__ == "__main__":
    main(fill, work)
