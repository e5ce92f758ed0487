"""Alerts: a capture queue is nearly full, has many exhausted tasks, or most of its retries fail.

An alert fires when its threshold is crossed, and again only after the value came back by a tenth of the threshold.
Which ones have fired is registered in the store: of many processes, the one that notices first calls its hooks.
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
"""The kind of the registrations of alerts that have fired, by QUEUE/ALERT."""
CHECK_EVERY = MINUTE
"""How often, at most, alerts are checked while no threshold seems to be crossed."""
ROOM = SECOND
"""How long the size of the queue is trusted before it is read again."""
_BACK = 0.9
_MOST = {"utilization_percent": 100, "exhausted": inf, "success_rate": 1, "min_retries": inf}


class AlertKind(StrEnum):
    """What an alert is about."""

    UTILIZATION = "utilization"
    """The queue is nearly full: percent of max_size."""
    EXHAUSTED = "exhausted"
    """Many tasks are exhausted: their number."""
    SUCCESS_RATE = "success_rate"
    """Most retries fail: the share that succeeded, since the queue was created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertThresholds:
    """When alerts fire. None: never."""

    utilization_percent: float | None = 80
    exhausted: int | None = 100
    success_rate: float | None = 0.5
    min_retries: int = 10
    """Before this many retries, the success rate means nothing."""

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
        """Whether the value is beyond the threshold."""
        return self.value < self.threshold if self.kind is AlertKind.SUCCESS_RATE else self.value > self.threshold

    @property
    def is_back(self) -> bool:
        """Whether the value is so far from the threshold that the next crossing is a new one."""
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
    """How many tasks a capture queue holds: read now and then, and counted here in between."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.max_size = 0
        self.size = self.exhausted = self.succeeded = self.failed = 0
        self.read_at: Instant | None = None
        self._forgotten = 0
        self._counted = (0, 0, 0)
        """All changes of size, exhausted and failed that were counted here."""

    def forget(self) -> None:
        """Read the queue before the levels are used again."""
        self.read_at = None
        self._forgotten += 1

    def update(self, stats: QueueStats, now: Instant) -> None:
        """Take over what was read."""
        self.size, self.exhausted, self.read_at = size_of(stats), stats.dead, now
        self.succeeded, self.failed = stats.completed_total, stats.failed_total - stats.captured_total

    def add(self, *, size: int = 0, exhausted: int = 0, succeeded: int = 0, failed: int = 0) -> None:
        """Count what this process did."""
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
        """Read the queue, and return its levels. Here, what other threads count during the read is added, though they
        may have it already: a level that is too high only leads to another read."""
        before, forgotten = self._counted, self._forgotten
        stats: QueueStats = yield from run_query(GetStats(self.queue))
        size, exhausted, failed = (max(0, now - then) for now, then in zip(self._counted, before, strict=True))
        levels = QueueLevels(self.queue)
        levels.max_size = self.max_size
        for each in (self, levels):
            each.update(stats, core.clock.now())
        self.size, self.exhausted, self.failed = self.size + size, self.exhausted + exhausted, self.failed + failed
        if self._forgotten != forgotten:  # since the read, perhaps
            self.read_at = None
        return levels

    def has_room(self, now: Instant) -> bool:
        """Whether there is room by what was read within a second. Several processes may exceed the limit by what they
        add in that time."""
        return self.size < self.max_size and self.read_at is not None and 0 <= now - self.read_at < ROOM

    def check_room(self, core: Core) -> Flow[None]:
        """Read the queue, and raise CaptureFullError if there is no room."""
        if self.read_at is not None:
            self.read_at = core.clock.now()  # of many callers, one reads
        size = (yield from self.refresh(core)).size
        if size >= self.max_size:
            raise CaptureFullError(self.queue, size, self.max_size)

    def may_alert(self, thresholds: AlertThresholds) -> bool:
        """Whether an alert may be over its threshold: false for most captures, and cheaper than to make the alerts."""
        percent, exhausted = thresholds.utilization_percent, thresholds.exhausted
        return (
            (percent is not None and 100 * self.size >= percent * self.max_size)
            or (exhausted is not None and self.exhausted > exhausted)
            or (self.failed > 0 and thresholds.success_rate is not None)
        )

    def alerts(self, thresholds: AlertThresholds) -> Iterator[Alert]:
        """Return an alert for each threshold, crossed or not."""
        retries = self.succeeded + self.failed
        if thresholds.utilization_percent is not None:
            yield Alert(AlertKind.UTILIZATION, self.queue, 100 * self.utilization, thresholds.utilization_percent)
        if thresholds.exhausted is not None:
            yield Alert(AlertKind.EXHAUSTED, self.queue, self.exhausted, thresholds.exhausted)
        if thresholds.success_rate is not None and retries and retries >= thresholds.min_retries:
            yield Alert(AlertKind.SUCCESS_RATE, self.queue, self.succeeded / retries, thresholds.success_rate)


def size_of(stats: QueueStats) -> int:
    """Return the tasks that max_size counts: pending, in retry and exhausted."""
    return stats.pending + stats.failed + stats.active + stats.dead


class AlertWatch:
    """Knows which alerts have fired."""

    def __init__(self, levels: QueueLevels, thresholds: AlertThresholds) -> None:
        self._levels = levels
        self._thresholds = thresholds
        self._fired: set[AlertKind] = set()
        self._checked_at: Instant | None = None

    def is_due(self, now: Instant, *, with_hooks: bool) -> bool:
        """Whether a threshold seems to be crossed; with hooks, also a minute after the last check, because other
        processes may have fired an alert, or ended."""
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
        """Return the alerts that fire now. With hooks, of all processes one gets an alert."""
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
