"""The context of a delivery, which its handler gets, and outcomes that a handler may return; other values are results.

Besides `Retry` and `Release`, a handler may return `Dead(note=…)`. Raising an exception means failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from redrive.clock import Instant
from redrive.contract.item_calls import NewItem
from redrive.errors import InvalidInput, short_repr
from redrive.model.duration import MAX_DURATION, DurationInput, parse_duration
from redrive.model.ids import ItemId
from redrive.model.item import Lease
from redrive.telemetry import tracing

if TYPE_CHECKING:
    from redrive.task.task import Task

KEEP_HEADER = "keep_result"
"""Time for which the result of this item is kept, in microseconds, if its put asked for that."""
TICK_HEADER = "tick"
"""The instant, in microseconds since 1970, that a periodic task was put for."""

_NUMBER_DIGITS_MAX = 20


class TaskItem(NamedTuple):
    """A call of a task that is not put yet: `task.item(…)` returns one."""

    queue: str
    item: NewItem


class Context:
    """One delivery, for its handler. A parameter annotated with this class receives it."""

    __slots__ = ("_lease_lost", "_stopping", "lease", "puts", "task")

    def __init__(
        self,
        lease: Lease,
        task: Task[..., Any],
        stopping: Callable[[], bool] | None = None,
        lease_lost: Callable[[], bool] | None = None,
    ) -> None:
        self.lease = lease
        self.task = task
        self.puts: list[tuple[str, NewItem]] = []
        """Items that are put when this delivery completes, and only then."""
        self._stopping = stopping
        self._lease_lost = lease_lost

    def put(self, item: TaskItem) -> None:
        """Put an item in the transaction that completes this delivery. If the delivery fails, nothing is put."""
        if not isinstance(item, TaskItem):
            raise InvalidInput(f"context.put takes what task.item(…) gives, not {short_repr(item, 60)}")
        self.puts.append(item)

    @property
    def id(self) -> ItemId:
        """The id of the item."""
        return self.lease.id

    @property
    def queue(self) -> str:
        """The queue that it was leased from."""
        return self.lease.queue

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the put, and `task`."""
        return self.lease.headers

    @property
    def attempts(self) -> int:
        """The number of this attempt, from 1."""
        return self.lease.attempts

    @property
    def deliveries(self) -> int:
        """Leases so far, this one included; unlike attempts it never goes down."""
        return self.lease.deliveries

    @property
    def failures(self) -> int:
        """Failures before this attempt."""
        return self.lease.failures

    @property
    def losses(self) -> int:
        """Workers that were lost with the item before this attempt."""
        return self.lease.losses

    @property
    def deadline(self) -> Instant:
        """End of the lease as first granted; the worker extends it while the handler runs."""
        return self.lease.deadline

    @property
    def stopping(self) -> bool:
        """True if the worker was asked to stop: a long handler may end early, for example with `Release()`."""
        return self._stopping is not None and self._stopping()

    @property
    def lease_lost(self) -> bool:
        """True if the lease is lost: the outcome of this delivery will be refused, and the handler should end. Only a
        function in a thread can read that; a coroutine is cancelled, and a process is killed."""
        return self._lease_lost is not None and self._lease_lost()

    @property
    def trace_id(self) -> str | None:
        """The id of the current trace, else of the one that came with the item."""
        return tracing.trace_id(self.lease.headers)

    @property
    def tick(self) -> Instant | None:
        """The instant that a periodic task was put for; None for one that was put by a program."""
        tick = _number(self.lease.headers.get(TICK_HEADER))
        return None if tick is None else Instant(tick)

    @property
    def keep_result(self) -> int | None:
        """Time for which the result is kept, in microseconds: that of the put, else of the task. None: not kept."""
        if KEEP_HEADER not in self.lease.headers:
            return self.task.keep_result
        asked = _number(self.lease.headers[KEEP_HEADER])
        return self.task.keep_result if asked is None else min(asked, MAX_DURATION)


def _number(text: str | None) -> int | None:
    """Return the number in a header, or None if it is no number: headers can come from any program."""
    if text is None or len(text) > _NUMBER_DIGITS_MAX or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


class Retry(msgspec.Struct, frozen=True):
    """A failure that is retried `after` that time, regardless of the retry policy, while attempts are left."""

    after: DurationInput
    reason: str | None = None
    """The reason in the history."""

    def __post_init__(self) -> None:
        parse_duration(self.after, "after")


class Release(msgspec.Struct, frozen=True):
    """A release without a failure: the item goes to the tail after `delay`. The attempt is counted."""

    delay: DurationInput = 0
    reason: str | None = None
    """The reason in the history."""

    def __post_init__(self) -> None:
        parse_duration(self.delay, "delay")
