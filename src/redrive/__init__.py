"""Durable queues in which failed work is never lost, is easy to understand, and comes back with one command."""

from redrive.broker.async_broker import AsyncBroker
from redrive.broker.broker import Broker
from redrive.broker.handle import AsyncQueueHandle, QueueHandle
from redrive.broker.items import new_item
from redrive.broker.lifecycle import Upkeep
from redrive.connect import connect, connect_async
from redrive.errors import RedriveError
from redrive.model.failure import Failure
from redrive.model.item import (
    Counters,
    DeadReason,
    Death,
    Event,
    HistoryEntry,
    Item,
    Lease,
    Receipt,
    Result,
    Settled,
    Status,
)
from redrive.model.judge import Again, Dead, Verdict
from redrive.model.queue import Queue, QueueSettings, QueueStats
from redrive.store import AuditEntry, Durability, NewItem

__all__ = [
    "Again",
    "AsyncBroker",
    "AsyncQueueHandle",
    "AuditEntry",
    "Broker",
    "Counters",
    "Dead",
    "DeadReason",
    "Death",
    "Durability",
    "Event",
    "Failure",
    "HistoryEntry",
    "Item",
    "Lease",
    "NewItem",
    "Queue",
    "QueueHandle",
    "QueueSettings",
    "QueueStats",
    "Receipt",
    "RedriveError",
    "Result",
    "Settled",
    "Status",
    "Upkeep",
    "Verdict",
    "connect",
    "connect_async",
    "new_item",
]
