"""What a task is declared with, and what a single put may say otherwise."""

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
    """The options of `@queue.task(…)`. Those of its items hold from their put on."""

    name: str
    """What items call the task; the name of the function unless given."""
    time_limit: PositiveDuration
    """How long the function may run."""
    keep_result: PositiveDuration
    """How long what it returns can be read by `handle.result()`."""
    final_errors: Sequence[type[BaseException] | str]
    """Errors after which another try is useless: exception classes, or names as in the queue's setting."""
    capture_locals: bool
    """Whether a failure shows the local variables of the function, without what looks like a secret."""
    every: DurationInput
    """Put it by itself at multiples of this interval."""
    cron: str
    """Put it by itself as a crontab says."""
    timezone: str
    """Of `cron`, as in `Europe/Berlin`; UTC unless given."""
    on_missed: str
    """What becomes of ticks that passed while no worker was there: `once` unless given, `skip`, or `all`."""


class PutOptions(TaskItemOptions, total=False):
    """The options of `task.options(…)`. Those that a task has too go before the task's."""

    keep_result: PositiveDuration | None
    """How long what the function returns can be read, instead of what the task says."""
    transaction: Any
    """A connection of yours to the same database with a transaction open: put if and only if that commits."""


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
"""What other libraries call them."""


def check_options(what: str, given: Mapping[str, Any], known: type[Any]) -> None:
    """Raise for an option that there is not."""
    names = known.__annotations__
    for name in given:
        if name not in names:
            meant = suggest(name, names, _FOREIGN_NAMES)
            raise InvalidInput(f"{what} has no option '{name}'{meant}; there are {', '.join(names)}")


def put_template(header: str, task: str, options: Mapping[str, Any]) -> NewItem:
    """An item of a task with everything but its arguments. Every option is checked."""
    rest = {name: value for name, value in options.items() if name not in ("headers", "keep_result", "transaction")}
    headers = {} if options.get("headers") is None else check_headers(options["headers"])
    for reserved in (header, KEEP_HEADER, TICK_HEADER):
        if reserved in headers:
            raise InvalidInput(f"the header '{reserved}' is Redrive's own; choose another name")
    headers[header] = task
    if options.get("keep_result") is not None:
        headers[KEEP_HEADER] = str(check_positive("keep_result", options["keep_result"]))
    return new_item(b"{}", content_type=JSON, headers=headers, **rest)
