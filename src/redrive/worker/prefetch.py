"""The size of the prefetch: enough items to be busy during a transaction, and no more than run soon."""

from __future__ import annotations

import math
import time

PREFETCH_SECONDS = 0.1
"""Target time for which a prefetched item waits."""
MAX_PREFETCH = 1_000
"""Items that are prefetched at most."""
_WINDOW_SECONDS = 0.5


class PrefetchController:
    """Sizes the prefetch by the current rate of finished jobs."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self._ended = 0
        self._rate = 0.0

    def ended(self, count: int) -> None:
        """Record jobs that finished since the last call."""
        self._ended += count
        passed = time.monotonic() - self._began_at
        if passed >= _WINDOW_SECONDS or (self._rate == 0.0 and self._ended >= 10):
            self._rate = self._ended / max(passed, 0.001)
            self._began_at, self._ended = time.monotonic(), 0

    def prefetch_count(self, lease_timeout: int) -> int:
        """Return how many jobs to have beyond those that run. A lease must be far from its end when its job starts."""
        seconds = min(PREFETCH_SECONDS, lease_timeout / 1_000_000 / 10)
        rate, passed = self._rate, time.monotonic() - self._began_at
        if passed > _WINDOW_SECONDS:  # they have become slower since
            rate = min(rate, (self._ended + 1) / passed)
        return min(MAX_PREFETCH, math.floor(rate * seconds))
