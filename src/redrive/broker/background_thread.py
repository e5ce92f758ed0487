"""The base of background threads, which run from `start` to `close`, or inside a `with` statement.

The subclass implements `_run`, which ends soon after `_end` is set. The thread is a daemon: a program that ends without
closing it is not delayed.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class BackgroundThread(ABC):
    """A thread that runs `_run`. It can be started once."""

    def __init__(self, name: str) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"redrive-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait for the end of the thread, unless it closes itself. A second call does nothing."""
        self._end.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def _run(self) -> None:
        """Work until `_end` is set."""
