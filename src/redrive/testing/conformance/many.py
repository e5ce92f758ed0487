"""What the tests do with many items: let them die, look at all of them, run an operation to its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redrive import Broker
from redrive.model.duration import SECOND
from redrive.model.item import Item
from redrive.model.operation import Operation, OperationStatus
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import take

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
    """Let the lifecycle drive an operation, and the clock move, until it has ended, pauses, or watches."""
    for _ in range(MOST_STEPS):
        operation = broker.operation(operation.id)
        if operation.status is not OperationStatus.RUNNING:
            return operation
        if operation.next_at > clock.now():
            clock.advance((operation.next_at - clock.now()) / SECOND)
        broker.step()
    raise AssertionError(f"the operation does not end: {operation}")


def perform(broker: Broker, clock: FakeClock, verb: str, **options: Any) -> Operation:
    """Start an operation and let the lifecycle drive it."""
    return finish(broker, clock, broker.start(verb, **options))
