"""Actions that many tests share: on one item, and on many."""

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
    """An error that no rule knows."""


def take(broker: Broker, queue: str = "jobs", **options: Any) -> Lease:
    """Lease the one item that comes next."""
    leases = broker.lease(queue, **options)
    assert len(leases) == 1, f"queue '{queue}' gave {len(leases)} items"
    return leases[0]


def take_all(broker: Broker, queue: str = "jobs", **options: Any) -> list[Lease]:
    """Lease everything that can be leased, in order."""
    return broker.lease(queue, MOST, **options)


def values(leases: Iterable[Lease]) -> list[Any]:
    """The payloads, as the values that were put."""
    return [lease.value for lease in leases]


def lose(broker: Broker, clock: FakeClock, queue: str = "jobs") -> Item:
    """Lease the next item, vanish with it, and let a sweep find out."""
    lease = take(broker, queue, lease_timeout="1s")
    clock.advance("1s")
    broker.run_maintenance()
    return broker.get(lease.id)


def kill(
    broker: Broker, value: Any = "bad", queue: str = "jobs", error: BaseException | Failure | str = "boom"
) -> Settled:
    """Put an item and make it a dead letter by an error that is final."""
    broker.put(queue, value, priority=9)
    return broker.fail(take(broker, queue), error, final=True)


def dead_queue(broker: Broker, **settings: Any) -> None:
    """Jobs whose dead go to the morgue."""
    broker.create_queue("morgue", **settings)
    broker.create_queue("jobs", dead_queue="morgue")


def places(stats: QueueStats) -> dict[str, int]:
    """How many items are in each status, without those in which there are none."""
    names = ("pending", "failed", "active", "completed", "dead", "archived")
    return {name: count for name in names if (count := getattr(stats, name))}


class Background(Generic[_T]):
    """A call that runs in a thread of its own while the test goes on."""

    def __init__(self, call: Callable[[], _T]) -> None:
        self._call = call
        self._outcome: list[_T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self) -> _T:
        """What the call returned. The test fails if it does not return."""
        self._thread.join(PATIENCE_SECONDS)
        if self._error is not None:
            raise self._error
        assert self._outcome, "the call in the background did not return"
        return self._outcome[0]

    def result_in_time(self, clock: FakeClock) -> _T:
        """The same, while seconds pass: when it begins to wait hangs on other threads."""
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
"""An operation of a test that needs more never ends."""


def die(broker: Broker, count: int, error: BaseException | str = "boom", queue: str = "jobs") -> list[str]:
    """Put so many items with values 0, 1, … and let them die, in this order. Their ids before the death."""
    ids = []
    for value in range(count):
        broker.put(queue, value, priority=9)
        lease = take(broker, queue)
        broker.fail(lease, error, final=True)
        ids.append(str(lease.id))
    return ids


def find_all(broker: Broker, *, limit: int = 50, **conditions: Any) -> list[Item]:
    """Everything that is found, page by page."""
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
    """The values of what is found, oldest first; and the count says the same."""
    items = find_all(broker, limit=limit, order="oldest", **conditions)
    assert broker.count(**conditions) == len(items)
    return [item.value for item in items]


def ids_of(items: Iterable[Item]) -> list[str]:
    """The ids."""
    return [str(item.id) for item in items]


def finish(broker: Broker, clock: FakeClock, operation: Operation) -> Operation:
    """Let the maintenance drive an operation, and the clock move, until it has ended, pauses, or watches."""
    for _ in range(MOST_STEPS):
        operation = broker.get_operation(operation.id)
        if operation.status is not OperationStatus.RUNNING:
            return operation
        if operation.next_at > clock.now():
            clock.advance((operation.next_at - clock.now()) / SECOND)
        broker.run_maintenance()
    raise AssertionError(f"the operation does not end: {operation}")


def perform(broker: Broker, clock: FakeClock, verb: str, **options: Any) -> Operation:
    """Start an operation and let the maintenance drive it."""
    return finish(broker, clock, broker.start_operation(verb, **options))
