"""Durable queues in which failed work is never lost, is easy to diagnose, and is redriven with one command."""

import sys

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers treat it as true; importing the module typing here would slow down the start
if TYPE_CHECKING:
    from redrive.broker.api.handle import QueueHandle
    from redrive.broker.async_api.handle import AsyncQueueHandle
    from redrive.broker.async_broker import AsyncBroker
    from redrive.broker.broker import Broker
    from redrive.broker.flows.clearance import ClearResult
    from redrive.broker.flows.deliveries import new_item
    from redrive.broker.flows.edited_redrive import EditedRedrive
    from redrive.broker.flows.export_import import ImportResult
    from redrive.broker.flows.health import Health
    from redrive.broker.flows.moves import PendingMove
    from redrive.broker.maintenance import MaintenanceResult
    from redrive.connect import connect, connect_async
    from redrive.contract.item_calls import NewItem
    from redrive.contract.queries import AuditEntry, FeedPage, Page
    from redrive.errors import RedriveError
    from redrive.model.breaker import BreakerStatus
    from redrive.model.death import Cause, DeadReason
    from redrive.model.failure import Failure
    from redrive.model.feed import FeedEntry, FeedKind
    from redrive.model.filter import Filter
    from redrive.model.group import Group
    from redrive.model.item import (
        Counters,
        Death,
        HistoryEntry,
        HistoryEvent,
        Item,
        KeptResult,
        Lease,
        Receipt,
        Result,
        Settled,
        Status,
    )
    from redrive.model.judge import Dead, RetryVerdict, Verdict
    from redrive.model.operation import Operation, OperationStatus
    from redrive.model.operation_plan import OperationPlan
    from redrive.model.options import Conditions, ConnectOptions, ItemOptions, PlanConditions, StartOptions
    from redrive.model.queue import Queue, QueueSettings, QueueStats
    from redrive.model.queue_options import QueueOptions
    from redrive.model.redact import redact_secrets
    from redrive.model.state_machine import Verb
    from redrive.model.worker_info import WorkerInfo
    from redrive.store import Durability
    from redrive.task.app import App
    from redrive.task.context import Context, Release, Retry, TaskItem
    from redrive.task.result_handle import TaskHandle
    from redrive.task.task import Task
    from redrive.task.task_queue import TaskQueue

__all__ = [
    "App",
    "AsyncBroker",
    "AsyncQueueHandle",
    "AuditEntry",
    "BreakerStatus",
    "Broker",
    "Cause",
    "ClearResult",
    "Conditions",
    "ConnectOptions",
    "Context",
    "Counters",
    "Dead",
    "DeadReason",
    "Death",
    "Durability",
    "EditedRedrive",
    "Failure",
    "FeedEntry",
    "FeedKind",
    "FeedPage",
    "Filter",
    "Group",
    "Health",
    "HistoryEntry",
    "HistoryEvent",
    "ImportResult",
    "Item",
    "ItemOptions",
    "KeptResult",
    "Lease",
    "MaintenanceResult",
    "NewItem",
    "Operation",
    "OperationPlan",
    "OperationStatus",
    "Page",
    "PendingMove",
    "PlanConditions",
    "Queue",
    "QueueHandle",
    "QueueOptions",
    "QueueSettings",
    "QueueStats",
    "Receipt",
    "RedriveError",
    "Release",
    "Result",
    "Retry",
    "RetryVerdict",
    "Settled",
    "StartOptions",
    "Status",
    "Task",
    "TaskHandle",
    "TaskItem",
    "TaskQueue",
    "Verb",
    "Verdict",
    "WorkerInfo",
    "connect",
    "connect_async",
    "new_item",
    "redact_secrets",
]

# The module of each name. It is imported on first access, so that the command starts fast.
_HOMES = {
    "Conditions": "redrive.model.options",
    "ConnectOptions": "redrive.model.options",
    "ItemOptions": "redrive.model.options",
    "PlanConditions": "redrive.model.options",
    "StartOptions": "redrive.model.options",
    "QueueOptions": "redrive.model.queue_options",
    "RetryVerdict": "redrive.model.judge",
    "App": "redrive.task.app",
    "AsyncBroker": "redrive.broker.async_broker",
    "AsyncQueueHandle": "redrive.broker.async_api.handle",
    "AuditEntry": "redrive.contract.queries",
    "BreakerStatus": "redrive.model.breaker",
    "Broker": "redrive.broker.broker",
    "Cause": "redrive.model.death",
    "Context": "redrive.task.context",
    "Counters": "redrive.model.item",
    "Dead": "redrive.model.judge",
    "DeadReason": "redrive.model.death",
    "Death": "redrive.model.item",
    "Durability": "redrive.store",
    "HistoryEvent": "redrive.model.item",
    "Failure": "redrive.model.failure",
    "FeedEntry": "redrive.model.feed",
    "FeedKind": "redrive.model.feed",
    "FeedPage": "redrive.contract.queries",
    "Filter": "redrive.model.filter",
    "Group": "redrive.model.group",
    "TaskHandle": "redrive.task.result_handle",
    "Health": "redrive.broker.flows.health",
    "HistoryEntry": "redrive.model.item",
    "ImportResult": "redrive.broker.flows.export_import",
    "Item": "redrive.model.item",
    "KeptResult": "redrive.model.item",
    "Lease": "redrive.model.item",
    "PendingMove": "redrive.broker.flows.moves",
    "NewItem": "redrive.contract.item_calls",
    "Operation": "redrive.model.operation",
    "OperationStatus": "redrive.model.operation",
    "Page": "redrive.contract.queries",
    "ClearResult": "redrive.broker.flows.clearance",
    "EditedRedrive": "redrive.broker.flows.edited_redrive",
    "OperationPlan": "redrive.model.operation_plan",
    "Queue": "redrive.model.queue",
    "QueueHandle": "redrive.broker.api.handle",
    "QueueSettings": "redrive.model.queue",
    "QueueStats": "redrive.model.queue",
    "Receipt": "redrive.model.item",
    "RedriveError": "redrive.errors",
    "Release": "redrive.task.context",
    "Result": "redrive.model.item",
    "Retry": "redrive.task.context",
    "Settled": "redrive.model.item",
    "Status": "redrive.model.item",
    "Task": "redrive.task.task",
    "TaskItem": "redrive.task.context",
    "TaskQueue": "redrive.task.task_queue",
    "MaintenanceResult": "redrive.broker.maintenance",
    "Verb": "redrive.model.state_machine",
    "Verdict": "redrive.model.judge",
    "WorkerInfo": "redrive.model.worker_info",
    "connect": "redrive.connect",
    "connect_async": "redrive.connect",
    "new_item": "redrive.broker.flows.deliveries",
    "redact_secrets": "redrive.model.redact",
}


if not TYPE_CHECKING:  # a type checker that finds `__getattr__` accepts every misspelt name

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
    """The module type that keeps `redrive.connect` the function when the module of that name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "connect" and isinstance(value, type(sys)):
            value = value.connect
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
