"""What the tests do with items again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from redrive import Broker, Failure
from redrive.model.item import Item, Lease, Settled
from redrive.model.queue import QueueStats
from redrive.testing.clock import PATIENCE_SECONDS, FakeClock

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
    broker.step()
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
