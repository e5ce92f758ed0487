"""What the drains of the peers share: where their store is, and how their scripts are called.

A script fills the store, `fill COUNT`, and works until it is stopped, `work`, unless the peer has a command for that.
Where jobs are to fail, `kept` reads the failures back afterwards. Standard library only.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks.load import payload
from benchmarks.peers.kept import Kept
from benchmarks.peers.peer import read_back

URL = os.environ.get("BENCHMARK_URL", "")
"""Of the server, or the folder of the database. It is in the environment, for those that a peer's command imports."""
FAILS = os.environ.get("BENCHMARK_END") == "fail"
"""Whether each job fails, and is not retried; else it does nothing."""
PAYLOAD = payload()
SYNC_NOTE = "synchronous-"

_noted = threading.local()


def main(
    fill: Callable[[int], object],
    work: Callable[..., object] | None = None,
    kept: Callable[[], Kept] | None = None,
) -> None:
    """Arguments: `fill` and how many jobs, or `work` and its settings, or `kept`, which prints one line of JSON."""
    match sys.argv[1:]:
        case ["fill", count]:
            fill(int(count))
        case ["work", *settings] if work is not None:
            work(*settings)
        case ["kept"] if kept is not None:
            print(json.dumps(asdict(kept())))
        case arguments:
            raise SystemExit(f"fill COUNT, work or kept, not {arguments}")


def note_sync() -> None:
    """Called by a job: writes down `synchronous` as read back on every connection of the process, once per thread.

    The job came by one of them, and its end is written by one of them.
    """
    if getattr(_noted, "done", False):
        return
    _noted.done = True
    values = sorted(map(str, read_back("synchronous")))
    (Path(URL) / f"{SYNC_NOTE}{os.getpid()}-{threading.get_ident()}").write_text(",".join(values))
