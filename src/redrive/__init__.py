"""Durable queues in which failed work is never lost, is easy to understand, and comes back with one command."""

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
