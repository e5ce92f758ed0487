"""A broker for the tests of a program: in memory, on a clock that the test moves."""

from __future__ import annotations

from redrive.broker.broker import Broker
from redrive.clock import Clock
from redrive.connect import connect
from redrive.testing.clock import FakeClock


def memory_broker(clock: Clock | None = None) -> Broker:
    """A broker whose queues are gone when it is closed. Its lifecycle does not run by itself: call `step()`."""
    return connect("memory://", clock=clock or FakeClock(), lifecycle=False)
