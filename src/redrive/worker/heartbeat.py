"""Shows whoever watches that the process is alive: that it gets to run Python, whatever the store or a handler does."""

from __future__ import annotations

import threading
from collections.abc import Callable

BEAT_SECONDS = 0.5
"""How often."""


class Heartbeat:
    """Beats in a thread of its own, which waits for nothing and nobody."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redrive-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin, at once."""
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._beat()
        while not self._end.wait(BEAT_SECONDS):
            self._beat()
