"""Waiting for what other threads and processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable

from redrive.testing.fake_clock import PATIENCE_SECONDS


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition. The test fails if it does not come true."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.002)
