"""`FailedTask`: the view of an item as a captured task; and the names of its statuses and error categories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

import msgspec

from redrive.clock import Instant, to_datetime
from redrive.errors import InvalidPayload
from redrive.model.classify import ErrorClass
from redrive.model.group import ADVICE
from redrive.model.item import Item, Status
from redrive.model.worker_info import TASK_HEADER

CALLBACK = "retry_callback"
"""The function name in tasks that the callback of the retry processor runs."""
ID_HEADER = "capture-id"
POLICY_HEADER = "capture-policy"
CATEGORY_HEADER = "capture-category"
METADATA_HEADER = "capture-metadata"
TEMPLATE_HEADER = "capture-template"
CAPTURED = "captured"
"""The note of a failure in the history that was captured."""
ADVICE_HEADER = "capture-advice"


class DeadLetterStatus(StrEnum):
    """The status of a captured task."""

    PENDING = "pending"
    """The task waits for its next retry."""
    RETRYING = "retrying"
    """A retry runs now."""
    EXHAUSTED = "exhausted"
    """The task is a dead letter: it is not retried automatically any more."""
    COMPLETED = "completed"
    """A retry succeeded."""
    ARCHIVED = "archived"
    """The task is not retried, and can be restored."""


class ErrorCategory(StrEnum):
    """The kind of an error."""

    TRANSIENT = "transient"
    NETWORK = "network"
    RESOURCE = "resource"
    PERMISSION = "permission"
    VALIDATION = "validation"
    PERMANENT = "permanent"


_CATEGORIES = tuple(ErrorCategory)
_CATEGORY_OF: Mapping[ErrorClass, ErrorCategory] = {ErrorClass(each.value): each for each in ErrorCategory}

STATUS_OF_ITEM: Mapping[Status, DeadLetterStatus] = {
    Status.PENDING: DeadLetterStatus.PENDING,
    Status.FAILED: DeadLetterStatus.PENDING,
    Status.ACTIVE: DeadLetterStatus.RETRYING,
    Status.DEAD: DeadLetterStatus.EXHAUSTED,
    Status.MOVING: DeadLetterStatus.EXHAUSTED,
    Status.COMPLETED: DeadLetterStatus.COMPLETED,
    Status.ARCHIVED: DeadLetterStatus.ARCHIVED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTask:
    """A task that failed outside a queue, and its retries since."""

    task_id: str
    task: Any
    """The task that `enqueue` was called with; for a guarded function, its name and arguments."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further arguments for the callback, such as `repos`."""
    error: str = ""
    """The text of the error that was captured."""
    failed_at: datetime
    retry_count: int = 0
    max_retries: int = 3
    retry_policy: str = "exponential"
    next_retry_at: datetime | None = None
    status: DeadLetterStatus = DeadLetterStatus.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    error_category: str | None = None
    template: str | None = None
    """The template that the error fits."""
    advice: str = ""
    """Advice for an operator: that of the template, else the usual remedy for errors of this category."""
    last_error: str = ""
    total_attempts: int = 1
    """The number of runs so far, including those that failed outside."""
    updated_at: datetime | None = None
    """The time of the last change: put, end, or newest entry of the history."""
    error_type: str = ""
    fingerprint: str = ""
    """A hash of the reason: tasks with the same fingerprint failed for the same reason."""
    traceback: str | None = None
    result: Any = None
    """The return value of the retry that succeeded, if it can be encoded as JSON."""
    item_id: str = ""
    """The id of its item, for `broker.get`, `redrive dead show` and all other calls that take item ids."""

    @property
    def repos(self) -> list[Any]:
        """The extra argument `repos` as a list; empty if it was not passed."""
        given = self.extra.get("repos", ())
        return list(given) if isinstance(given, list | tuple) else [given]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values; times in ISO 8601."""
        values = {name: _plain(value) for name, value in asdict(self).items()}
        return {**values, "repos": self.repos}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the task from a result of `to_dict`. Unknown keys are ignored."""
        known = {each.name for each in fields(cls)}
        given = {name: value for name, value in values.items() if name in known}
        if "repos" in values and "repos" not in given.get("extra", {}) and values["repos"]:
            given["extra"] = {**given.get("extra", {}), "repos": values["repos"]}
        for name in ("failed_at", "next_retry_at", "updated_at"):
            if isinstance(given.get(name), str):
                given[name] = datetime.fromisoformat(given[name])
        given["status"] = DeadLetterStatus(given.get("status", DeadLetterStatus.PENDING))
        return cls(**given)


def task_of_item(item: Item) -> FailedTask:
    """Return an item of a capture queue as a captured task."""
    failures = [entry.failure for entry in item.history if entry.failure is not None]
    first, last = (failures[0], failures[-1]) if failures else (None, None)
    retry = item.overrides.retry
    category, due = category_of_item(item), next_retry_at(item)
    task, extra = _task_and_extra(item)
    return FailedTask(
        task_id=item.headers.get(ID_HEADER) or item.idempotency_key or item.id,
        task=task,
        extra=extra,
        error="" if first is None else first.text,
        failed_at=to_datetime(item.put_at),
        retry_count=retry_count(item),
        max_retries=max(0, retry.attempts - 1) if retry is not None else 0,
        retry_policy=item.headers.get(POLICY_HEADER, ""),
        next_retry_at=None if due is None else to_datetime(due),
        status=STATUS_OF_ITEM[item.status],
        metadata=decode_metadata(item.headers.get(METADATA_HEADER)),
        error_category=category,
        template=item.headers.get(TEMPLATE_HEADER),
        advice=advice_for(category, item.headers.get(ADVICE_HEADER)),
        last_error="" if last is None else last.text,
        total_attempts=item.counters.deliveries + runs_outside(item),
        updated_at=to_datetime(updated_at(item)),
        error_type="" if last is None else last.type,
        fingerprint="" if last is None else last.fingerprint,
        traceback=None if last is None else last.traceback,
        result=None if item.result is None else item.result.value,
        item_id=item.id,
    )


def retry_count(item: Item) -> int:
    """Return the number of retries that failed since the capture, or since the last redrive by an operator."""
    return max(0, item.counters.failures - (0 if item.counters.redrives else 1))


def runs_outside(item: Item) -> int:
    """Return the number of runs that were captured. Of the omitted part of a long history it is an estimate."""
    captured = sum(entry.note == CAPTURED for entry in item.history)
    retries = max(0, item.counters.deliveries - len(item.history) + captured)
    return max(1, captured + max(0, item.history_omitted - retries))


def updated_at(item: Item) -> Instant:
    """Return the instant of the last change of a task."""
    return Instant(max(item.put_at, item.ended_at or item.put_at, *(entry.at for entry in item.history)))


def next_retry_at(item: Item) -> Instant | None:
    """Return the instant of the next retry; None if the task does not wait for one."""
    return item.ready_at if item.status in (Status.PENDING, Status.FAILED) else None


def category_of_item(item: Item) -> str | None:
    """Return the category of a task. If its headers are hidden from the caller, that of its last failure."""
    if item.headers or item.last_failure is None:
        return item.headers.get(CATEGORY_HEADER)
    return category_of(item.last_failure.error_class).value


def category_of(error_class: ErrorClass) -> ErrorCategory:
    """Return the category of an error class; permanent for a class without one, such as `poison`."""
    return _CATEGORY_OF.get(error_class, ErrorCategory.PERMANENT)


def _task_and_extra(item: Item) -> tuple[Any, dict[str, Any]]:
    name = item.headers.get(TASK_HEADER, "")
    try:
        value = item.value
    except InvalidPayload:
        return None, {}
    if name == CALLBACK and isinstance(value, dict):
        return value.get("task"), value.get("extra") or {}
    return {"function": name, "arguments": value}, {}


def advice_for(category: str | None, of_template: str | None) -> str:
    """Return the advice for an operator: that of the template, else that of the category, else an empty text."""
    return of_template or (ADVICE[ErrorClass(category)] if category in _CATEGORIES else "")


def decode_metadata(text: str | None) -> dict[str, Any]:
    """Return the metadata in the text of a header; empty if it is no JSON object."""
    try:
        found = {} if text is None else msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
