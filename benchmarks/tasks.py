"""The app that Redrive's workers run in the benchmarks. Its URL and durability come by the environment."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.drain import SYNC_NOTE
from benchmarks.peers.kept import MESSAGE
from benchmarks.watch import note_sync
from redrive.task.app import App

HANDLER_SECONDS = 0.005

if "BENCHMARK_SYNC_NOTES" in os.environ:
    note_sync(Path(os.environ["BENCHMARK_SYNC_NOTES"]), SYNC_NOTE)
app = App(os.environ.get("BENCHMARK_URL"), durability=os.environ.get("BENCHMARK_DURABILITY", "full"))
queue = app.queue("q", retry={"attempts": 3, "cooldown": "1h"})
"""What fails here is tried again after the run."""
unsafe = app.queue("unsafe", retry={"attempts": 3, "cooldown": "50ms"})
"""What is lost here comes back while the run lasts, until it is dead."""
deadly = app.queue("deadly", retry={"attempts": 1})
"""What fails here is dead."""
stubborn = app.queue("stubborn", retry={"attempts": 1_000, "cooldown": 0})
"""What fails here is tried again immediately."""
slow = app.queue("slow", lease_timeout="3s")
"""What is lost here comes back soon."""


@queue.task
def nothing(value: dict[str, Any]) -> None:
    """Does nothing, in a thread or in a process."""


@queue.task
async def nothing_awaited(value: dict[str, Any]) -> None:
    """Does nothing, on the event loop."""


@queue.task
def note_start(number: int) -> None:
    """Writes down when it began: its first act."""
    now = time.monotonic_ns()
    _note(f"{number} {now}")


@queue.task
async def note_start_awaited(number: int) -> None:
    """The same on the event loop."""
    now = time.monotonic_ns()
    _note(f"{number} {now}")


@queue.task
def wait() -> None:
    """A handler of 5 ms that waits for something else."""
    time.sleep(HANDLER_SECONDS)


@unsafe.task
def wait_and_note() -> None:
    """The same; writes down which process it began in, and when."""
    _note(f"began {os.getpid()} {time.monotonic_ns()}")
    time.sleep(HANDLER_SECONDS)


@slow.task
def note_end(number: int, seconds: float) -> None:
    """A handler that takes long; writes down when it ended."""
    time.sleep(seconds)
    _note(f"{number} {time.monotonic_ns()}")


@queue.task
def fail() -> None:
    """Fails at once."""
    raise TimeoutError(MESSAGE)


@deadly.task
def die(value: dict[str, Any]) -> None:
    """Fails at once, and is not tried again."""
    raise TimeoutError(MESSAGE)


@stubborn.task
def stumble(value: dict[str, Any]) -> None:
    """Fails at once, each time."""
    raise TimeoutError(MESSAGE)


@queue.task
def wait_and_fail() -> None:
    """Fails after 5 ms."""
    time.sleep(HANDLER_SECONDS)
    raise TimeoutError(MESSAGE)


@unsafe.task
def kill() -> None:
    """Takes its process with it, without a word."""
    _note(f"began {os.getpid()} {time.monotonic_ns()}")
    time.sleep(HANDLER_SECONDS)
    _note(f"dying {os.getpid()} {time.monotonic_ns()}")
    os._exit(11)


def _note(line: str) -> None:
    """One line, in one write: lines of several processes do not mix."""
    os.write(_notes(), f"{line}\n".encode())


@functools.cache
def _notes() -> int:
    """Opened once in each process, or inherited from the one that it was forked from."""
    return os.open(os.environ["BENCHMARK_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
