# /// script
# dependencies = ["litequeue==0.9"]
# ///
"""litequeue: WAL is its own choice; it sets synchronous=NORMAL itself, so FULL is set after it has opened.

One connection cannot run two of its transactions at once, so threads share one queue object under a lock. (A connection
per thread, waiting in SQLite's busy handler, was slower.) Items go in and out one by one, which keeps its backlog, and
so its unindexed sort, small: its best case.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from litequeue import LiteQueue

from benchmarks.load import Step, payload
from benchmarks.peers.peer import BUSY_TIMEOUT_SECONDS, main, set_full_sync

BODY = json.dumps(payload(), separators=(",", ":"))


def open_steps(directory: Path, scenario: str, threads: int) -> Sequence[Step]:
    queue = LiteQueue(directory / "litequeue.db", timeout=BUSY_TIMEOUT_SECONDS)
    set_full_sync()
    lock = Lock()

    def put() -> int:
        with lock:
            queue.put(BODY)
        return 1

    def cycle() -> int:
        put()
        with lock:
            message = queue.pop()
        with lock:
            queue.done(message.message_id)
        return 1

    return [{"put": put, "cycle": cycle}[scenario]] * threads


if __name__ == "__main__":
    main("litequeue", open_steps)
