"""`memory_broker()`, a broker in memory on a clock that the test moves, and `drain()`, which works through a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from redrive.broker.broker import Broker
from redrive.clock import Clock
from redrive.connect import connect
from redrive.model.item import Lease, Status
from redrive.testing.fake_clock import FakeClock

MAX_DELIVERIES = 10_000
"""A test that needs more has a handler whose items come back for ever."""


class Drained(NamedTuple):
    """What became of the deliveries."""

    completed: int = 0
    retried: int = 0
    """Failed deliveries whose item is tried again."""
    dead: int = 0
    """Failed deliveries whose item died, in place or into a dead queue."""
    released: int = 0
    """Deliveries that a task gave back."""


def drain(broker: Broker, queue: str, handler: Callable[[Lease], object], *, limit: int = MAX_DELIVERIES) -> Drained:
    """Lease and handle until nothing is leasable: what returns is completed, what raises has failed.

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
    """A broker whose queues are gone when it is closed. Its maintenance does not run by itself: call `step()`."""
    return connect("memory://", clock=clock or FakeClock(), maintenance=False)
