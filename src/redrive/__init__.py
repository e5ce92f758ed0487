"""Durable queues in which failed work is never lost, is easy to understand, and comes back with one command."""

from redrive.broker.async_broker import AsyncBroker
from redrive.broker.broker import Broker
from redrive.broker.items import new_item
from redrive.connect import connect, connect_async
from redrive.errors import RedriveError
from redrive.model.failure import Failure
from redrive.model.item import DeadReason, Item, Lease, Receipt, Settled, Status
from redrive.model.judge import Again, Dead
from redrive.model.queue import Queue, QueueSettings, QueueStats

__all__ = [
    "Again",
    "AsyncBroker",
    "Broker",
    "Dead",
    "DeadReason",
    "Failure",
    "Item",
    "Lease",
    "Queue",
    "QueueSettings",
    "QueueStats",
    "Receipt",
    "RedriveError",
    "Settled",
    "Status",
    "connect",
    "connect_async",
    "new_item",
]
