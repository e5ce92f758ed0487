"""Durable queues in which failed work is never lost, is easy to understand, and comes back with one command."""

import sys

__version__ = "0.1.0"

TYPE_CHECKING = False  # for type checkers it is true; the module typing is not worth what it costs to import here
if TYPE_CHECKING:
    from redrive.broker.async_broker import AsyncBroker
    from redrive.broker.broker import Broker
    from redrive.broker.handle import AsyncQueueHandle, QueueHandle
    from redrive.broker.health import Health
    from redrive.broker.items import new_item
    from redrive.broker.lifecycle import Upkeep
    from redrive.broker.moves import Moving
    from redrive.broker.transfer import Imported
    from redrive.connect import connect, connect_async
    from redrive.errors import RedriveError
    from redrive.model.cause import Cause
    from redrive.model.failure import Failure
    from redrive.model.feed import FeedEntry, FeedKind
    from redrive.model.filter import Filter
    from redrive.model.group import Group
    from redrive.model.item import Counters, Death, Event, HistoryEntry, Item, Lease, Receipt, Result, Settled, Status
    from redrive.model.judge import Again, Dead, Verdict
    from redrive.model.operation import Operation, OperationStatus
    from redrive.model.plan import Plan
    from redrive.model.queue import Queue, QueueSettings, QueueStats
    from redrive.model.reason import DeadReason
    from redrive.model.redact import redact_secrets
    from redrive.model.transitions import Verb
    from redrive.model.worker_info import WorkerInfo
    from redrive.store import AuditEntry, Durability, FeedPage, NewItem, Page
    from redrive.task.app import App
    from redrive.task.context import Context, TaskItem
    from redrive.task.handle import Handle
    from redrive.task.outcomes import Release, Retry
    from redrive.task.queue import TaskQueue
    from redrive.task.task import Task

__all__ = [
    "Again",
    "App",
    "AsyncBroker",
    "AsyncQueueHandle",
    "AuditEntry",
    "Broker",
    "Cause",
    "Context",
    "Counters",
    "Dead",
    "DeadReason",
    "Death",
    "Durability",
    "Event",
    "Failure",
    "FeedEntry",
    "FeedKind",
    "FeedPage",
    "Filter",
    "Group",
    "Handle",
    "Health",
    "HistoryEntry",
    "Imported",
    "Item",
    "Lease",
    "Moving",
    "NewItem",
    "Operation",
    "OperationStatus",
    "Page",
    "Plan",
    "Queue",
    "QueueHandle",
    "QueueSettings",
    "QueueStats",
    "Receipt",
    "RedriveError",
    "Release",
    "Result",
    "Retry",
    "Settled",
    "Status",
    "Task",
    "TaskItem",
    "TaskQueue",
    "Upkeep",
    "Verb",
    "Verdict",
    "WorkerInfo",
    "connect",
    "connect_async",
    "new_item",
    "redact_secrets",
]

# Where each name comes from. It is imported when it is first asked for, so that the command starts fast.
_HOMES = {
    "Again": "redrive.model.judge",
    "App": "redrive.task.app",
    "AsyncBroker": "redrive.broker.async_broker",
    "AsyncQueueHandle": "redrive.broker.handle",
    "AuditEntry": "redrive.store",
    "Broker": "redrive.broker.broker",
    "Cause": "redrive.model.cause",
    "Context": "redrive.task.context",
    "Counters": "redrive.model.item",
    "Dead": "redrive.model.judge",
    "DeadReason": "redrive.model.reason",
    "Death": "redrive.model.item",
    "Durability": "redrive.store",
    "Event": "redrive.model.item",
    "Failure": "redrive.model.failure",
    "FeedEntry": "redrive.model.feed",
    "FeedKind": "redrive.model.feed",
    "FeedPage": "redrive.store",
    "Filter": "redrive.model.filter",
    "Group": "redrive.model.group",
    "Handle": "redrive.task.handle",
    "Health": "redrive.broker.health",
    "HistoryEntry": "redrive.model.item",
    "Imported": "redrive.broker.transfer",
    "Item": "redrive.model.item",
    "Lease": "redrive.model.item",
    "Moving": "redrive.broker.moves",
    "NewItem": "redrive.store",
    "Operation": "redrive.model.operation",
    "OperationStatus": "redrive.model.operation",
    "Page": "redrive.store",
    "Plan": "redrive.model.plan",
    "Queue": "redrive.model.queue",
    "QueueHandle": "redrive.broker.handle",
    "QueueSettings": "redrive.model.queue",
    "QueueStats": "redrive.model.queue",
    "Receipt": "redrive.model.item",
    "RedriveError": "redrive.errors",
    "Release": "redrive.task.outcomes",
    "Result": "redrive.model.item",
    "Retry": "redrive.task.outcomes",
    "Settled": "redrive.model.item",
    "Status": "redrive.model.item",
    "Task": "redrive.task.task",
    "TaskItem": "redrive.task.context",
    "TaskQueue": "redrive.task.queue",
    "Upkeep": "redrive.broker.lifecycle",
    "Verb": "redrive.model.transitions",
    "Verdict": "redrive.model.judge",
    "WorkerInfo": "redrive.model.worker_info",
    "connect": "redrive.connect",
    "connect_async": "redrive.connect",
    "new_item": "redrive.broker.items",
    "redact_secrets": "redrive.model.redact",
}


if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "errors":
            return import_module("redrive.errors")
        if name not in _HOMES:
            raise AttributeError(f"module 'redrive' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(type(sys)):  # type: ignore[misc]
    """Keeps `redrive.connect` the function. To import the module of that name would put the module in its place."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "connect" and isinstance(value, type(sys)):
            value = value.connect
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
