"""Who waits for something to happen, and that nobody does who is gone."""

from __future__ import annotations

import asyncio
from typing import Any

from redrive.server.limits import Busy


class ClientGone(Exception):
    """Whoever made the request is no longer there: nobody reads an answer. `result` is what would have been in it."""

    def __init__(self, result: Any = None) -> None:
        self.result = result
        super().__init__("the client is gone")


class Waiting:
    """Who waits for something to happen. All are answered when the server stops."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tasks: set[asyncio.Future[Any]] = set()
        self.stopping = False

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: asyncio.Future[Any]) -> None:
        """One more waits. Raises `Overloaded` where too many do."""
        if len(self._tasks) >= self._limit:
            raise Busy(len(self._tasks), f"{len(self._tasks):,} requests wait for something to happen")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """End every wait, and those that come."""
        self.stopping = True
        for task in tuple(self._tasks):
            task.cancel()
