"""The data of one process about circuit breakers: counts of failures, searches for items to hold, and hooks.

The state of breakers is in the store. The data here is read again after a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from redrive.broker.failure_counts import FailureCounts
from redrive.clock import Instant
from redrive.model.feed import FeedEntry
from redrive.model.item import WAITING_STATUSES, Status
from redrive.model.queue import Queue
from redrive.telemetry import events

_log = events.logger("redrive.breaker")

BreakerHook = Callable[[FeedEntry], object]
"""A function that is called with the feed entry of a breaker that has opened or closed."""


class BreakerMonitor:
    """The data of one process about breakers, in addition to their state in the store."""

    def __init__(self) -> None:
        self.counts = FailureCounts()
        self.judged_at: Instant | None = None
        self.sweeps: dict[tuple[str, str, Instant], Sweep] = {}
        """By queue, kind and opening. Breakers that opened together share one."""
        self.hooks: list[BreakerHook] = []

    def forget(self, guarded: Sequence[Queue], now: Instant) -> None:
        """Forget data of other queues, and of breakers that have closed."""
        self.counts.forget({queue.name for queue in guarded}, now)
        present = {(queue.name, each.kind, each.opened_at) for queue in guarded for each in queue.breakers}
        self.sweeps = {key: sweep for key, sweep in self.sweeps.items() if key in present}

    def call_hooks(self, change: FeedEntry) -> None:
        """Call the hooks in separate threads: the maintenance waits for none of them."""
        for hook in self.hooks:
            threading.Thread(target=_call_hook, args=(hook, change), name="redrive-breaker-hook", daemon=True).start()


def _call_hook(hook: BreakerHook, change: FeedEntry) -> None:
    try:
        hook(change)
    except BaseException:
        _log.exception("breaker_hook_failed", queue=change.queue, breaker=change.breaker)


class Sweep:
    """The search for items that failed before a breaker opened: failed ones, then pending ones, page by page."""

    def __init__(self) -> None:
        self.place: tuple[Status, str | None] | None = (WAITING_STATUSES[-1], None)
        """The status and the cursor of the next page. None: no page is left."""

    def turn(self, place: tuple[Status, str | None], cursor: str | None) -> None:
        """Continue after the page at that place, unless a concurrent thread has: that of an operator's call."""
        if self.place is not place:
            return
        left = WAITING_STATUSES[: WAITING_STATUSES.index(place[0])]
        if cursor is not None:
            self.place = (place[0], cursor)
        else:
            self.place = (left[-1], None) if left else None
