# /// script
# dependencies = ["persist-queue==1.1.0"]
# ///
"""persist-queue, SQLiteAckQueue: WAL is its own choice; one queue object is shared by all threads, as its manual says.

Acked rows stay in its table and each get scans over them, so they are cleared as its manual advises.
How often hardly matters: from 25 to 500 the differences were within the noise.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

from persistqueue import SQLiteAckQueue

from benchmarks.load import Step, payload
from benchmarks.peers.peer import BUSY_TIMEOUT_SECONDS, main, set_full_sync

CLEAR_EVERY = 50
PAYLOAD = payload()


def open_steps(directory: Path, scenario: str, threads: int) -> Sequence[Step]:
    queue = SQLiteAckQueue(str(directory), multithreading=True, timeout=BUSY_TIMEOUT_SECONDS)
    set_full_sync()
    acked = itertools.count(1)

    def put() -> int:
        queue.put(PAYLOAD)
        return 1

    def cycle() -> int:
        queue.put(PAYLOAD)
        item = queue.get(block=False, raw=True)
        queue.ack(id=item["pqid"])
        if next(acked) % CLEAR_EVERY == 0:
            queue.clear_acked_data(max_delete=2 * CLEAR_EVERY, keep_latest=0)
        return 1

    return [{"put": put, "cycle": cycle}[scenario]] * threads


if __name__ == "__main__":
    main("persist-queue", open_steps)
