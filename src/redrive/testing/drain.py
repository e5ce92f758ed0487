"""`memory_broker()`, a broker in memory on a clock that the test moves, and `drain()`, which handles a whole queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from redrive.broker.broker import Broker
from redrive.clock import Clock
from redrive.connect import connect
from redrive.model.item import Lease, Status
from redrive.testing.fake_clock import FakeClock

MAX_DELIVERIES = 10_000
"""The highest number of deliveries: a test that exceeds it has a handler whose items are retried without a limit."""


class Drained(NamedTuple):
    """The numbers of deliveries by outcome."""

    completed: int = 0
    retried: int = 0
    """Failed deliveries whose item is retried."""
    dead: int = 0
    """Failed deliveries whose item died, in place or into a dead queue."""
    released: int = 0
    """Deliveries that a task released."""


def drain(broker: Broker, queue: str, handler: Callable[[Lease], object], *, limit: int = MAX_DELIVERIES) -> Drained:
    """Lease and handle items until none can be leased. An item completes if the handler returns, else it fails.

    Items that wait for a later instant stay; advance the clock and drain again.
    """
    completed = retried = dead = 0
    for _ in range(limit):
        leases = broker.lease(queue)
        if not leases:
            return Drained(completed, retried, dead)
        try:
            handler(leases[0])
        except Exception as error:
            settled = broker.fail(leases[0], error)
            if settled.status is Status.FAILED:
                retried += 1
            else:
                dead += 1
        else:
            broker.complete(leases[0])
            completed += 1
    raise AssertionError(f"queue '{queue}' still gives items after {limit:,} deliveries; does its retry ever end?")


def memory_broker(clock: Clock | None = None) -> Broker:
    """Return a broker whose queues are deleted when it is closed. Maintenance only runs by a call of its `step()`."""
    return connect("memory://", clock=clock or FakeClock(), maintenance=False)
