"""The line in the log for a delivery that did not complete, whoever settled it."""

from __future__ import annotations

from datetime import UTC, datetime

from redrive.broker.exchange import End, Lost, Released
from redrive.clock import Instant
from redrive.model.duration import SECOND
from redrive.model.item import Lease, Settled, Status
from redrive.model.redact import redactor_by
from redrive.model.redact_rules import NO_RULES, RedactRules
from redrive.task.task import TASK_HEADER
from redrive.telemetry import events

_log = events.logger("redrive.worker")


def report(lease: Lease, end: End, settled: Settled, rules: RedactRules = NO_RULES) -> None:
    """An item failed, was given back or lost, or is dead: which one, of what, and when it is tried again."""
    failure = getattr(end, "failure", None)
    is_lost, is_released = isinstance(end, Lost), isinstance(end, Released)
    event = (
        "item_dead"
        if settled.dead_reason is not None
        else "item_lost"
        if is_lost
        else "item_released"
        if is_released
        else "item_failed"
    )
    _log.warning(
        event,
        item=lease.id,
        queue=lease.queue,
        task=lease.headers.get(TASK_HEADER),
        error=None if failure is None else redactor_by(rules).text(failure.title),
        attempts=settled.counters.attempts,
        reason=settled.dead_reason,
        again_at=_written(settled.ready_at) if settled.status in (Status.FAILED, Status.PENDING) else None,
    )


def _written(at: Instant | None) -> str | None:
    """An instant as the lines of the log have theirs."""
    return None if at is None else f"{datetime.fromtimestamp(at // SECOND, UTC):%Y-%m-%dT%H:%M:%SZ}"
