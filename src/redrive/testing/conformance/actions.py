"""Actions on one item or on many, shared by the tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from redrive import Broker, Failure
from redrive.model.duration import SECOND
from redrive.model.item import Item, Lease, Settled
from redrive.model.operation import Operation, OperationStatus
from redrive.model.queue import QueueStats
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock

_T = TypeVar("_T")

MOST = 1000
"""More items than any queue of a test holds."""


class Boom(Exception):
    """An error without a classification rule."""


def take(broker: Broker, queue: str = "jobs", **options: Any) -> Lease:
    """Lease the next item, and check that exactly one is leased."""
    leases = broker.lease(queue, **options)
    assert len(leases) == 1, f"queue '{queue}' gave {len(leases)} items"
    return leases[0]


def take_all(broker: Broker, queue: str = "jobs", **options: Any) -> list[Lease]:
    """Lease all eligible items, in order."""
    return broker.lease(queue, MOST, **options)


def values(leases: Iterable[Lease]) -> list[Any]:
    """Return the payloads as the values that were put."""
    return [lease.value for lease in leases]


def lose(broker: Broker, clock: FakeClock, queue: str = "jobs") -> Item:
    """Lease the next item, and let its lease expire and be swept, as if its worker had crashed."""
    lease = take(broker, queue, lease_timeout="1s")
    clock.advance("1s")
    broker.run_maintenance()
    return broker.get(lease.id)


def kill(
    broker: Broker, value: Any = "bad", queue: str = "jobs", error: BaseException | Failure | str = "boom"
) -> Settled:
    """Put an item, and make it a dead letter by a final error."""
    broker.put(queue, value, priority=9)
    return broker.fail(take(broker, queue), error, final=True)


def dead_queue(broker: Broker, **settings: Any) -> None:
    """Create the queue "jobs" with the dead queue "morgue"."""
    broker.create_queue("morgue", **settings)
    broker.create_queue("jobs", dead_queue="morgue")


def places(stats: QueueStats) -> dict[str, int]:
    """Return the number of items by status, without statuses that have none."""
    names = ("pending", "failed", "active", "completed", "dead", "archived")
    return {name: count for name in names if (count := getattr(stats, name))}


class Background(Generic[_T]):
    """A call that runs in a separate thread while the test continues."""

    def __init__(self, call: Callable[[], _T]) -> None:
        self._call = call
        self._outcome: list[_T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self) -> _T:
        """Return the result of the call. The test fails if the call does not end."""
        self._thread.join(PATIENCE_SECONDS)
        if self._error is not None:
            raise self._error
        assert self._outcome, "the call in the background did not return"
        return self._outcome[0]

    def result_in_time(self, clock: FakeClock) -> _T:
        """Return the result; until then, advance the clock, as other threads decide when the call starts to wait."""
        until = time.monotonic() + PATIENCE_SECONDS
        while self._thread.is_alive() and time.monotonic() < until:
            clock.advance("1s")
            self._thread.join(0.02)
        return self.result()

    def _run(self) -> None:
        try:
            self._outcome.append(self._call())
        except BaseException as error:
            self._error = error


MOST_STEPS = 200
"""The highest number of steps of an operation in a test."""


def die(broker: Broker, count: int, error: BaseException | str = "boom", queue: str = "jobs") -> list[str]:
    """Put `count` items with values 0, 1, … and let them die in this order. Return their ids before the death."""
    ids = []
    for value in range(count):
        broker.put(queue, value, priority=9)
        lease = take(broker, queue)
        broker.fail(lease, error, final=True)
        ids.append(str(lease.id))
    return ids


def find_all(broker: Broker, *, limit: int = 50, **conditions: Any) -> list[Item]:
    """Return all items that are found, read page by page."""
    items: list[Item] = []
    cursor = None
    for _ in range(10_000):
        page = broker.find(limit=limit, cursor=cursor, **conditions)
        assert len(page.items) <= limit
        items += page.items
        cursor = page.cursor
        if cursor is None:
            return items
    raise AssertionError("the pages have no end")


def found(broker: Broker, *, limit: int = 50, **conditions: Any) -> list[Any]:
    """Return the values of the items that are found, oldest first, and check that `count` agrees."""
    items = find_all(broker, limit=limit, order="oldest", **conditions)
    assert broker.count(**conditions) == len(items)
    return [item.value for item in items]


def ids_of(items: Iterable[Item]) -> list[str]:
    """Return the ids."""
    return [str(item.id) for item in items]


def finish(broker: Broker, clock: FakeClock, operation: Operation) -> Operation:
    """Advance the clock and run maintenance until an operation has ended, is paused, or watches its canaries."""
    for _ in range(MOST_STEPS):
        operation = broker.get_operation(operation.id)
        if operation.status is not OperationStatus.RUNNING:
            return operation
        if operation.next_at > clock.now():
            clock.advance((operation.next_at - clock.now()) / SECOND)
        broker.run_maintenance()
    raise AssertionError(f"the operation does not end: {operation}")


def perform(broker: Broker, clock: FakeClock, verb: str, **options: Any) -> Operation:
    """Start an operation, and let maintenance execute it."""
    return finish(broker, clock, broker.start_operation(verb, **options))
