"""What `enqueue` returns: the stored task, or the one given if the caller may capture and not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from redrive.broker.flow import Flow
from redrive.capture import flows
from redrive.capture.captured_task import DeadLetterStatus, FailedTask
from redrive.capture.flows import Capture, CaptureReceipt
from redrive.clock import to_datetime
from redrive.errors import Forbidden

if TYPE_CHECKING:
    from redrive.broker.core import Core


def task_of_receipt(core: Core, queue: str, given: Capture, receipt: CaptureReceipt) -> Flow[FailedTask]:
    """Return a task that was captured."""
    try:
        found: FailedTask | None = yield from flows.get_task(core, queue, given.task_id)
    except Forbidden:
        found = None
    return _as_given(core, given, receipt) if found is None else found


def _as_given(core: Core, given: Capture, receipt: CaptureReceipt) -> FailedTask:
    """Return the task without what only the store knows: earlier failures, and when it is retried."""
    values = msgspec.json.decode(given.payload)
    failure = given.failure
    is_retried = not receipt.is_exhausted
    return FailedTask(
        task_id=given.task_id,
        task=values["task"],
        extra=values["extra"],
        error=failure.text,
        failed_at=to_datetime(core.clock.now()),
        max_retries=given.retry.attempts - 1 if is_retried else 0,
        retry_policy=given.policy,
        status=DeadLetterStatus.PENDING if is_retried else DeadLetterStatus.EXHAUSTED,
        metadata=dict(given.metadata or {}),
        error_category=given.category.value,
        template=None if given.template is None else given.template.name,
        advice="" if given.template is None else given.template.advice,
        last_error=failure.text,
        error_type=failure.type,
        fingerprint=failure.fingerprint,
        traceback=failure.traceback,
        item_id=receipt.id,
    )
