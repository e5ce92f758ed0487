"""A live view of a worker in the terminal: what runs, for how long, and how much was done."""

from __future__ import annotations

import mmap
import threading
import time
from collections import deque
from typing import IO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from redrive.model.limits import MIB
from redrive.model.text import pluralize, visible
from redrive.worker.in_flight import InFlightLog

MAX_ROWS = 30
"""Running items that are shown at most, those that run longest first."""
_RATE_SECONDS = 5.0


class LiveView:
    """The view at the bottom of the terminal. The output of the worker is printed above it."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title = title
        self._console = console or Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._began_at = time.monotonic()
        self._counts: deque[tuple[float, int]] = deque()
        self._before = 0
        self._last = 0

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, in_flight_log: InFlightLog | None, note: str) -> None:
        """Draw the current content of the in-flight log."""
        self._live.update(self.drawing(in_flight_log, note), refresh=True)

    def lines(self, stream: IO[bytes]) -> None:
        """Print what comes from this stream above the view."""
        threading.Thread(target=self._print, args=(stream,), name="redrive-lines", daemon=True).start()

    def drawing(self, in_flight_log: InFlightLog | None, note: str) -> Group:
        """Return the current view."""
        head = Text.assemble((self._title, "bold"), "  ", (note, "yellow" if note != "running" else "green"))
        if in_flight_log is None:
            return Group(head)
        ended = self._ended(in_flight_log)
        now = time.time_ns() // 1000
        running = sorted(in_flight_log.running(), key=lambda each: each.began_at)
        head.append(f"  {pluralize(ended, 'item')} ended, {self._rate(ended):,.1f}/s, {len(running)} running")
        table = Table(box=None, pad_edge=False)
        for column in ("slot", "task", "item", "running for", "process", "memory"):
            table.add_column(column, justify="right" if column in ("slot", "running for", "memory") else "left")
        for each in running[:MAX_ROWS]:
            seconds = max(0.0, (now - each.began_at) / 1_000_000)
            memory = _memory(each.pid)
            where = str(each.pid) if each.pid else "thread"
            used = "" if memory is None else f"{memory / MIB:,.0f} MiB"
            label = Text(visible(each.label or "–"))  # no markup: it comes with the item
            table.add_row(str(each.slot), label, each.id[:8], f"{seconds:,.1f} s", where, used)
        if len(running) > MAX_ROWS:
            table.add_row("", f"and {len(running) - MAX_ROWS} more")
        return Group(head, table) if running else Group(head)

    def _ended(self, in_flight_log: InFlightLog) -> int:
        """Return the number of items that ended in this worker and those before it."""
        ended = in_flight_log.ended
        if ended < self._last:
            self._before += self._last
        self._last = ended
        return self._before + ended

    def _rate(self, ended: int) -> float:
        now = time.monotonic()
        self._counts.append((now, ended))
        while len(self._counts) > 2 and now - self._counts[0][0] > _RATE_SECONDS:
            self._counts.popleft()
        passed = now - self._counts[0][0]
        return (ended - self._counts[0][1]) / passed if passed > 0 else 0.0

    def _print(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                text = Text(visible(line.decode("utf-8", "replace").rstrip("\n"), "\t"))
                self._console.print(text, highlight=False)


def _memory(pid: int) -> int | None:
    """Return the bytes that a process has in memory now, or None if the system does not report them."""
    if not pid:
        return None
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return None
