"""Telling other processes what arrived: after the commit, from a thread, together with whatever arrived meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

PAUSE_SECONDS = 0.01
"""How far apart two notices are at least: what arrives between them is told together."""


class Teller:
    """Gives the names of queues to `send`, which loses them rather than raise. `done` is called last, by the same
    thread."""

    def __init__(self, send: Callable[[list[str]], None], done: Callable[[], None]) -> None:
        self._send = send
        self._done = done
        self._closed = False
        self._untold: set[str] = set()
        self._mutex = threading.Lock()
        self._bell = threading.Event()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, queues: Iterable[str]) -> None:
        """Something arrived in these queues."""
        with self._mutex:
            if self._closed:
                return
            self._untold.update(queues)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="redrive-notices", daemon=True)
                self._thread.start()
        self._bell.set()

    def close(self) -> None:
        """Tell what is untold, and stop."""
        with self._mutex:
            self._closed = True
            thread = self._thread
        self._end.set()
        self._bell.set()
        if thread is not None and thread.is_alive():  # Ctrl-C may have kept it from starting
            thread.join()

    def _run(self) -> None:
        while not (self._end.is_set() and not self._untold):
            self._bell.wait()
            self._bell.clear()
            with self._mutex:
                untold, self._untold = sorted(self._untold), set()
            if untold:
                self._send(untold)
            self._end.wait(PAUSE_SECONDS)
        self._done()
