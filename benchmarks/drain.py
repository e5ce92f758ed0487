"""Workers in processes of their own, and a drain as the store sees it: what is still to be done, and since when.

Nothing is asked of the workers. An item counts when the store says that it is finished, not when it was executed.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import ROOT

WARM_UP = 0.2
"""The share that is drained before time is taken: by then every worker has started, and knows its connections."""
SECONDS_AT_MOST = 300.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.004, 0.2
STOPPING_SECONDS = 15.0

Left = Callable[[], int]
"""How many are not finished yet, as the store says."""


@dataclass(slots=True)
class Workers:
    """Processes that were started, and where they write."""

    log: Path
    commands: Sequence[Sequence[str]]
    environment: Mapping[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, number: int) -> None:
        """Starts one of the commands, or starts it again, in a process group of its own."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.commands[number],
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes[number : number + 1] = [process]

    def require_running(self) -> None:
        for process in self.processes:
            if process.poll() is not None:
                raise RuntimeError(f"a worker ended with {process.returncode}:\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-800:]


@contextmanager
def workers(commands: Sequence[Sequence[str]], directory: Path, environment: Mapping[str, str]) -> Iterator[Workers]:
    """Starts each in a process group of its own, and stops them at the end: asked first, then killed."""
    started = Workers(directory / "workers.log", commands, environment)
    for number in range(len(commands)):
        started.start(number)
    try:
        yield started
    finally:
        _stop(started.processes)


def run_once(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """A command that fills a store, and ends."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=SECONDS_AT_MOST
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-800:]}")


def watch(left: Left, total: int, running: Workers, warm_up: float = WARM_UP) -> tuple[int, float]:
    """Items and seconds, from the moment that the warm-up was seen to be over until nothing is left.

    The store is asked seldom, and more often towards the end: asking costs it time.
    """
    end = time.monotonic() + SECONDS_AT_MOST
    first: tuple[int, float] | None = None
    while time.monotonic() < end:
        count, now = left(), time.perf_counter()
        pause = SHORTEST_PAUSE
        if first is None:
            if count <= total * (1 - warm_up):
                first = count, now
                if not count:
                    raise RuntimeError(f"all of {total} were drained before time could be taken")
        elif not count:
            return first[0], now - first[1]
        elif count < first[0]:
            remaining = count * (now - first[1]) / (first[0] - count)
            pause = min(LONGEST_PAUSE, max(SHORTEST_PAUSE, remaining / 4))
        running.require_running()
        time.sleep(pause)
    raise RuntimeError(f"{left()} of {total} are left after {SECONDS_AT_MOST:.0f} s:\n{running.tail()}")


def wait_for(condition: Callable[[], bool], what: str, running: Workers, seconds: float = 60.0) -> None:
    """Returns as soon as the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        running.require_running()
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {seconds:.0f} s:\n{running.tail()}")
        time.sleep(SHORTEST_PAUSE)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    end = time.monotonic() + STOPPING_SECONDS
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what is left of its group
        process.wait()
