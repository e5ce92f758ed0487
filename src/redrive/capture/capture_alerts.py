"""Alerts: a capture queue is nearly full, has many exhausted tasks, or most of its retries fail.

An alert fires when its threshold is crossed, and again only after the value returned by a tenth of the threshold.
Fired alerts are registered in the store, so that only the process that notices the crossing first calls its hooks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from redrive.broker.flow import Flow, run_query
from redrive.broker.flows import registrations
from redrive.capture.capture_errors import CaptureFullError
from redrive.clock import Instant
from redrive.contract.admin_calls import Registration
from redrive.contract.queries import GetStats
from redrive.errors import InvalidSetting
from redrive.model.duration import MINUTE, SECOND
from redrive.model.queue import QueueStats

if TYPE_CHECKING:
    from redrive.broker.core import Core

ALERT_KIND = "capture-alert"
"""The kind of the registrations of fired alerts; each has the name QUEUE/ALERT."""
CHECK_EVERY = MINUTE
"""The interval of checks with hooks while no threshold seems to be crossed."""
ROOM = SECOND
"""The time for which the size of the queue is used before it is read again."""
_BACK = 0.9
_MOST = {"utilization_percent": 100, "exhausted": inf, "success_rate": 1, "min_retries": inf}


class AlertKind(StrEnum):
    """The measure that an alert is about."""

    UTILIZATION = "utilization"
    """The size of the queue in percent of max_size."""
    EXHAUSTED = "exhausted"
    """The number of exhausted tasks."""
    SUCCESS_RATE = "success_rate"
    """The share of retries that succeeded since the queue was created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertThresholds:
    """The thresholds of alerts. None: the alert never fires."""

    utilization_percent: float | None = 80
    exhausted: int | None = 100
    success_rate: float | None = 0.5
    min_retries: int = 10
    """The least number of retries for an alert about the success rate."""

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 <= value <= most):
                limits = "of 0 or more" if most == inf else f"from 0 to {most}"
                raise InvalidSetting(f"alerts.{name}", f"must be a number {limits}, not {value!r:.40}")


DEFAULT_THRESHOLDS = AlertThresholds()


class Alert(NamedTuple):
    """A threshold that was crossed."""

    kind: AlertKind
    queue: str
    value: float
    threshold: float

    @property
    def is_over(self) -> bool:
        """True if the value is beyond the threshold."""
        return self.value < self.threshold if self.kind is AlertKind.SUCCESS_RATE else self.value > self.threshold

    @property
    def is_back(self) -> bool:
        """True if the value has returned by a tenth of the threshold, so that the next crossing fires again."""
        if self.kind is AlertKind.SUCCESS_RATE:
            return self.value >= min(1.0, self.threshold / _BACK)
        return self.value <= self.threshold * _BACK

    def __str__(self) -> str:
        match self.kind:
            case AlertKind.UTILIZATION:
                return f"capture queue '{self.queue}' is {self.value:.0f} % full, over {self.threshold:g} %"
            case AlertKind.EXHAUSTED:
                return f"capture queue '{self.queue}' has {self.value:,.0f} exhausted tasks, over {self.threshold:,g}"
            case AlertKind.SUCCESS_RATE:
                return f"{self.value:.0%} of the retries of '{self.queue}' succeeded, under {self.threshold:.0%}"


class QueueLevels:
    """The numbers of tasks in a capture queue: read from the store at times, and counted in this process in between."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.max_size = 0
        self.size = self.exhausted = self.succeeded = self.failed = 0
        self.read_at: Instant | None = None
        self._forgotten = 0
        self._counted = (0, 0, 0)
        """The sums of all changes of size, exhausted and failed that were counted in this process."""

    def forget(self) -> None:
        """Mark the levels as unknown: they are read again before their next use."""
        self.read_at = None
        self._forgotten += 1

    def update(self, stats: QueueStats, now: Instant) -> None:
        """Replace the levels by the statistics of the queue."""
        self.size, self.exhausted, self.read_at = size_of(stats), stats.dead, now
        self.succeeded, self.failed = stats.completed_total, stats.failed_total - stats.captured_total

    def add(self, *, size: int = 0, exhausted: int = 0, succeeded: int = 0, failed: int = 0) -> None:
        """Add the changes that this process made."""
        self.size += size
        self.exhausted += exhausted
        self.succeeded += succeeded
        self.failed += failed
        sizes, deaths, failures = self._counted
        self._counted = (sizes + size, deaths + exhausted, failures + failed)

    @property
    def utilization(self) -> float:
        """The share of max_size that is in use."""
        return self.size / self.max_size if self.max_size else 0.0

    def refresh(self, core: Core) -> Flow[QueueLevels]:
        """Read the queue, and return its levels. The changes that other threads count during the read are added to
        `self`, though the read may include them: a level that is too high only leads to another read."""
        before, forgotten = self._counted, self._forgotten
        stats: QueueStats = yield from run_query(GetStats(self.queue))
        size, exhausted, failed = (max(0, now - then) for now, then in zip(self._counted, before, strict=True))
        levels = QueueLevels(self.queue)
        levels.max_size = self.max_size
        for each in (self, levels):
            each.update(stats, core.clock.now())
        self.size, self.exhausted, self.failed = self.size + size, self.exhausted + exhausted, self.failed + failed
        if self._forgotten != forgotten:  # the read may be older than the change
            self.read_at = None
        return levels

    def has_room(self, now: Instant) -> bool:
        """Return whether there is room by a read of the last second. Several processes may together exceed the limit
        by the tasks that they add in that time."""
        return self.size < self.max_size and self.read_at is not None and 0 <= now - self.read_at < ROOM

    def check_room(self, core: Core) -> Flow[None]:
        """Read the queue, and raise CaptureFullError if there is no room."""
        if self.read_at is not None:
            self.read_at = core.clock.now()  # so that of many concurrent callers only one reads
        size = (yield from self.refresh(core)).size
        if size >= self.max_size:
            raise CaptureFullError(self.queue, size, self.max_size)

    def may_alert(self, thresholds: AlertThresholds) -> bool:
        """Return whether an alert may be over its threshold. This is cheaper than `alerts`, and mostly false."""
        percent, exhausted = thresholds.utilization_percent, thresholds.exhausted
        return (
            (percent is not None and 100 * self.size >= percent * self.max_size)
            or (exhausted is not None and self.exhausted > exhausted)
            or (self.failed > 0 and thresholds.success_rate is not None)
        )

    def alerts(self, thresholds: AlertThresholds) -> Iterator[Alert]:
        """Yield an alert for each threshold, crossed or not."""
        retries = self.succeeded + self.failed
        if thresholds.utilization_percent is not None:
            yield Alert(AlertKind.UTILIZATION, self.queue, 100 * self.utilization, thresholds.utilization_percent)
        if thresholds.exhausted is not None:
            yield Alert(AlertKind.EXHAUSTED, self.queue, self.exhausted, thresholds.exhausted)
        if thresholds.success_rate is not None and retries and retries >= thresholds.min_retries:
            yield Alert(AlertKind.SUCCESS_RATE, self.queue, self.succeeded / retries, thresholds.success_rate)


def size_of(stats: QueueStats) -> int:
    """Return the number of tasks that max_size limits: pending, in retry and exhausted."""
    return stats.pending + stats.failed + stats.active + stats.dead


class AlertWatch:
    """The alerts of a queue, and the record of those that have fired."""

    def __init__(self, levels: QueueLevels, thresholds: AlertThresholds) -> None:
        self._levels = levels
        self._thresholds = thresholds
        self._fired: set[AlertKind] = set()
        self._checked_at: Instant | None = None

    def is_due(self, now: Instant, *, with_hooks: bool) -> bool:
        """Return whether a check is due: a threshold seems to be crossed; with hooks, also one minute after the last
        check, because other processes may have fired or cleared an alert."""
        if self._levels.read_at is None:
            return True
        if with_hooks and (self._checked_at is None or not 0 <= now - self._checked_at < CHECK_EVERY):
            return True
        if not self._fired and not self._levels.may_alert(self._thresholds):
            return False
        return any(
            alert.is_back if alert.kind in self._fired else alert.is_over
            for alert in self._levels.alerts(self._thresholds)
        )

    def check(self, core: Core, *, with_hooks: bool) -> Flow[list[Alert]]:
        """Return the alerts that fire now. With hooks, each alert is returned in one of all processes."""
        levels = yield from self._levels.refresh(core)
        self._checked_at = core.clock.now()
        if with_hooks:
            names = {each.name for each in (yield from registrations.list_registrations(ALERT_KIND))}
            self._fired = {kind for kind in AlertKind if _name(self._levels.queue, kind) in names}
        firing = []
        for alert in levels.alerts(self._thresholds):
            name = _name(alert.queue, alert.kind)
            if alert.kind in self._fired and alert.is_back:
                self._fired.discard(alert.kind)
                if with_hooks:
                    yield from registrations.unregister(ALERT_KIND, name)
            elif alert.kind not in self._fired and alert.is_over:
                self._fired.add(alert.kind)
                claimed = (yield from registrations.register(ALERT_KIND, name, b"", version=0)) if with_hooks else None
                if claimed is None or isinstance(claimed, Registration):
                    firing.append(alert)
        return firing


def _name(queue: str, kind: AlertKind) -> str:
    return f"{queue}/{kind}"
