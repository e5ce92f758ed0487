"""An app whose handlers write down what they do, and some of which take their process with them.

Imported by the workers under test as `killable:app`. REDRIVE_URL says where it runs, KILLABLE_TRACE where it writes.
"""

from __future__ import annotations

import ctypes
import os
import time

from redrive import App, Context
from redrive.stores.postgres import connection_settings

# A worker that is stopped within a transaction holds its locks until the server ends that: here sooner than elsewhere.
# The process of the tests imports this too. It keeps its time, or the server would end its wait for those locks.
if "KILLABLE_TRACE" in os.environ:
    connection_settings.SETTINGS["idle_in_transaction_session_timeout"] = connection_settings.TRANSACTION_TIMEOUT = (
        "10s"
    )

LOSSES = 3
"""How often a killer is delivered until it is dead."""

app = App()
jobs = app.queue(
    "jobs",
    lease_timeout=os.environ.get("KILLABLE_LEASE", "30s"),
    max_losses=LOSSES,
    max_attempts=0,
    keep_completed="1h",
)


def _trace(word: str, n: int) -> None:
    """One line, written whole."""
    descriptor = os.open(os.environ["KILLABLE_TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(descriptor, f"{word} {n}\n".encode())
    finally:
        os.close(descriptor)


@jobs.task
def healthy(n: int, seconds: float = 0.005) -> None:
    _trace("begin", n)
    time.sleep(seconds)
    hold = os.environ["KILLABLE_TRACE"] + ".hold"
    if os.path.exists(hold):
        _trace("held", n)
        while os.path.exists(hold):
            time.sleep(0.005)
    _trace("end", n)


@jobs.task(time_limit="500ms")
def killer(n: int, how: str, context: Context) -> None:
    _trace("begin", n)
    match how:
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "memory":
            os.kill(os.getpid(), 9)  # what the kernel does to a process that is out of memory
        case "loop":
            while True:
                pass


@jobs.task
def held(n: int) -> None:
    """Runs until somebody says go."""
    _trace("begin", n)
    go = os.environ["KILLABLE_TRACE"] + ".go"
    while not os.path.exists(go):
        time.sleep(0.005)
    _trace("end", n)
