"""The reports of a capture queue on its tasks in this process: log events, metrics, hooks and alerts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from redrive.broker.broker import Broker
from redrive.capture import flows
from redrive.capture.capture_alerts import Alert, AlertThresholds, AlertWatch, QueueLevels
from redrive.capture.capture_hooks import ALERT, CaptureHooks, TaskEvent
from redrive.capture.captured_task import CATEGORY_HEADER, ID_HEADER, POLICY_HEADER, TEMPLATE_HEADER
from redrive.errors import Forbidden, InvalidInput, RedriveError, short_repr
from redrive.model.exception import names_of_error, safe_str
from redrive.model.ids import ItemId
from redrive.telemetry import events
from redrive.telemetry.metrics import CAPTURE_ALERTS, CAPTURE_EVENTS, CAPTURE_UTILIZATION

if TYPE_CHECKING:
    from redrive.broker.core import Core

_log = events.logger("redrive.capture")


class CaptureMonitor:
    """The reports on the tasks of one queue. No method blocks or raises."""

    def __init__(self, core: Core, queue: str, thresholds: AlertThresholds) -> None:
        if not isinstance(thresholds, AlertThresholds):
            raise InvalidInput(f"alerts are AlertThresholds(…), not {short_repr(thresholds, 60)}")
        self._core = core
        self._queue = queue
        self.levels = QueueLevels(queue)
        self.hooks = CaptureHooks(queue)
        self._watch = AlertWatch(self.levels, thresholds)
        self._checked_by: int | None = None
        """The id of the process that checks the alerts now: a fork copies this field, but not the thread."""

    def captured(
        self, item: ItemId, headers: Mapping[str, str], error_type: str, *, is_new: bool, is_exhausted: bool
    ) -> None:
        """Report that a failure was captured: a new task, or one more failure of a known one."""
        self._report(TaskEvent.CAPTURED, item, headers, error_type, size=int(is_new))
        if is_new and is_exhausted:
            self._report(TaskEvent.EXHAUSTED, item, headers, error_type, exhausted=1)
        self.watch()

    def not_captured(self, strategy: str, error: BaseException) -> None:
        """Report the failure of a call that the strategy does not capture, and whose caller gets only a result."""
        kind, text = names_of_error(error)[0], safe_str(error)
        _log.warning("failure_not_captured", queue=self._queue, strategy=strategy, error_type=kind, error=text)
        if (meter := self._core.meter) is not None:
            meter.metrics.add(CAPTURE_EVENTS, (self._queue, "not_captured"))

    def succeeded(self, item: ItemId, headers: Mapping[str, str], *, was_exhausted: bool = False) -> None:
        """Report that a retry succeeded."""
        self._report(TaskEvent.RETRIED, item, headers)
        self._report(TaskEvent.SUCCEEDED, item, headers, size=-1, succeeded=1, exhausted=-int(was_exhausted))
        self.watch()

    def failed(self, item: ItemId, headers: Mapping[str, str], error_type: str, *, is_exhausted: bool) -> None:
        """Report that a retry failed; `is_exhausted`: it was the last one."""
        self._report(TaskEvent.RETRIED, item, headers, error_type, failed=1)
        if is_exhausted:
            self._report(TaskEvent.EXHAUSTED, item, headers, error_type, exhausted=1)
        self.watch()

    def archived(self, item: ItemId, headers: Mapping[str, str], *, is_undone: bool) -> None:
        """Report that a task was archived, or restored."""
        self._report(TaskEvent.RESTORED if is_undone else TaskEvent.ARCHIVED, item, headers)
        self._read_again()

    def cleared(self, count: int, *, is_final: bool) -> None:
        """Report that tasks were dropped, or removed permanently."""
        _log.info("tasks_cleared", queue=self._queue, count=count, final=is_final)
        self._read_again()

    def _read_again(self) -> None:
        """Let the levels be read again, as the changed tasks may have had any status."""
        self.levels.forget()
        self.watch()

    def watch(self) -> None:
        """Check the alerts in the thread of the hooks, if a check is due and none runs."""
        if not self._watch.is_due(self._core.clock.now(), with_hooks=self.hooks.has(ALERT)):
            return
        process = os.getpid()
        if self._checked_by == process:
            return
        self._checked_by = process
        if not self.hooks.post(self._check):
            self._checked_by = None

    def _report(
        self,
        event: TaskEvent,
        item: ItemId,
        headers: Mapping[str, str],
        error_type: str | None = None,
        **changes: int,
    ) -> None:
        self.levels.add(**changes)
        if _log.shows_info:
            name = {
                TaskEvent.CAPTURED: "task_captured",
                TaskEvent.RETRIED: "task_retried",
                TaskEvent.SUCCEEDED: "task_succeeded",
                TaskEvent.EXHAUSTED: "task_exhausted",
                TaskEvent.ARCHIVED: "task_archived",
                TaskEvent.RESTORED: "task_restored",
            }[event]
            fields = {
                "queue": self._queue,
                "task_id": headers.get(ID_HEADER),
                "item": item,
                "category": headers.get(CATEGORY_HEADER),
                "template": headers.get(TEMPLATE_HEADER),
                "policy": headers.get(POLICY_HEADER),
                "error_type": error_type,
            }
            _log.info(name, **fields)
        if (meter := self._core.meter) is not None:
            meter.metrics.add(CAPTURE_EVENTS, (self._queue, event.value))
            meter.metrics.set(CAPTURE_UTILIZATION, (self._queue,), self.levels.utilization)
        if self.hooks.has(event):
            self.hooks.post(partial(self._call_hooks, event, item))

    def _call_hooks(self, event: TaskEvent, item: ItemId) -> None:
        task = Broker(self._core).run_flow(flows.task_by_item(item))
        if task is not None:
            self.hooks.call(event, task)

    def _check(self) -> None:
        """Check the alerts, and fire those that are due. Runs in the thread of the hooks."""
        with_hooks = self.hooks.has(ALERT)
        broker = Broker(self._core)
        try:
            try:
                firing = broker.run_flow(self._watch.check(self._core, with_hooks=with_hooks))
            except Forbidden:  # this client may not register alerts at the server: keep them in this process
                firing = broker.run_flow(self._watch.check(self._core, with_hooks=False))
        except RedriveError as error:
            if not self._core.is_closed:
                _log.warning("alerts_not_checked", queue=self._queue, error=str(error))
            return
        finally:
            self._checked_by = None
        for alert in firing:
            self._fire(alert)
        self.watch()  # for changes during this check

    def _fire(self, alert: Alert) -> None:
        _log.warning("capture_alert", queue=self._queue, alert=alert.kind, value=alert.value, threshold=alert.threshold)
        if (meter := self._core.meter) is not None:
            meter.metrics.add(CAPTURE_ALERTS, (self._queue, alert.kind.value))
        self.hooks.call(ALERT, alert)
