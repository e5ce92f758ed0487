"""The options of a task, and those that a single put can override."""

# No `from __future__ import annotations`: `declaration` reads types, not texts.
from collections.abc import Mapping, Sequence
from typing import Any

from redrive.broker.flows.deliveries import new_item
from redrive.broker.validation import check_positive
from redrive.contract.item_calls import NewItem
from redrive.errors import InvalidInput
from redrive.model.duration import DurationInput
from redrive.model.options import PositiveDuration, TaskItemDefaults, TaskItemOptions
from redrive.model.payload import JSON, check_headers
from redrive.model.text import suggest
from redrive.task.context import KEEP_HEADER, TICK_HEADER


class TaskOptions(TaskItemDefaults, total=False):
    """The options of `@queue.task(…)`. Those of items apply to an item from its put on."""

    name: str
    """Name of the task in its items; the name of the function unless given."""
    time_limit: PositiveDuration
    """Longest time that the function may run."""
    keep_result: PositiveDuration
    """Time for which its return value can be read by `handle.result()`."""
    final_errors: Sequence[type[BaseException] | str]
    """Errors that are not retried: exception classes, or names as in the queue's setting."""
    capture_locals: bool
    """True if a failure shows the local variables of the function, with probable secrets removed."""
    every: DurationInput
    """Interval at whose multiples the task is put automatically."""
    cron: str
    """Crontab expression by which the task is put automatically."""
    timezone: str
    """Time zone of `cron`, as in `Europe/Berlin`; UTC unless given."""
    on_missed: str
    """Policy for ticks that passed while no worker was running: `once` unless given, `skip`, or `all`."""


class PutOptions(TaskItemOptions, total=False):
    """The options of `task.options(…)`. They take precedence over those of the task."""

    keep_result: PositiveDuration | None
    """Time for which the return value can be read, instead of that of the task."""
    transaction: Any
    """A connection of yours to the same database with an open transaction: put if and only if that commits."""


_FOREIGN_NAMES = {
    "countdown": "delay",
    "eta": "enqueue_at",
    "expires": "expire_timeout",
    "max_retries": "retry",
    "retries": "retry",
    "retry_policy": "retry",
    "soft_time_limit": "time_limit",
    "timeout": "time_limit",
    "job_id": "idempotency_key",
    "task_id": "idempotency_key",
    "result_ttl": "keep_result",
    "crontab": "cron",
}
"""Names of these options in other libraries."""


def check_options(what: str, given: Mapping[str, Any], known: type[Any]) -> None:
    """Raise InvalidInput for an unknown option."""
    names = known.__annotations__
    for name in given:
        if name not in names:
            meant = suggest(name, names, _FOREIGN_NAMES)
            raise InvalidInput(f"{what} has no option '{name}'{meant}; there are {', '.join(names)}")


def put_template(header: str, task: str, options: Mapping[str, Any]) -> NewItem:
    """Return an item of a task without its arguments. Every option is checked."""
    rest = {name: value for name, value in options.items() if name not in ("headers", "keep_result", "transaction")}
    headers = {} if options.get("headers") is None else check_headers(options["headers"])
    for reserved in (header, KEEP_HEADER, TICK_HEADER):
        if reserved in headers:
            raise InvalidInput(f"the header '{reserved}' is Redrive's own; choose another name")
    headers[header] = task
    if options.get("keep_result") is not None:
        headers[KEEP_HEADER] = str(check_positive("keep_result", options["keep_result"]))
    return new_item(b"{}", content_type=JSON, headers=headers, **rest)
