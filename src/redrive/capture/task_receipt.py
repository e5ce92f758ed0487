"""The return value of `enqueue`: a new task as captured; a known one as stored, if the caller may read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from redrive.broker.flow import Flow
from redrive.capture import flows
from redrive.capture.captured_task import DeadLetterStatus, FailedTask, advice_for, decode_metadata
from redrive.capture.flows import Capture, CaptureReceipt
from redrive.clock import Instant, to_datetime
from redrive.errors import Forbidden
from redrive.model.judge import RetryVerdict

if TYPE_CHECKING:
    from redrive.broker.core import Core


def task_of_receipt(core: Core, queue: str, given: Capture, receipt: CaptureReceipt) -> Flow[FailedTask]:
    """Return the captured task: read from the store unless it is new, or as submitted if the caller may not read."""
    if not receipt.is_stored_as_given:
        try:
            found: FailedTask | None = yield from flows.get_task(core, queue, given.task_id)
        except Forbidden:
            found = None
        if found is not None:
            return found
    return _as_given(given, receipt)


def _as_given(given: Capture, receipt: CaptureReceipt) -> FailedTask:
    """Return the task as submitted, without the earlier failures that the store may have of it."""
    values = msgspec.json.decode(given.payload)
    failure, category, template = given.diagnosis.failure, given.diagnosis.category, given.diagnosis.template
    at, verdict, retry = receipt.at, receipt.verdict, given.overrides.retry
    assert retry is not None
    next_at = Instant(at + verdict.delay) if isinstance(verdict, RetryVerdict) else None
    return FailedTask(
        task_id=given.task_id,
        task=values["task"],
        extra=values["extra"],
        error=failure.text,
        failed_at=to_datetime(at),
        max_retries=retry.attempts - 1,
        retry_policy=given.policy,
        next_retry_at=None if next_at is None else to_datetime(next_at),
        status=DeadLetterStatus.PENDING if next_at is not None else DeadLetterStatus.EXHAUSTED,
        metadata=decode_metadata(given.metadata),
        error_category=category.value,
        template=None if template is None else template.name,
        advice=advice_for(category, None if template is None else template.advice),
        last_error=failure.text,
        updated_at=to_datetime(at),
        error_type=failure.type,
        fingerprint=failure.fingerprint,
        traceback=failure.traceback,
        item_id=receipt.id,
    )
