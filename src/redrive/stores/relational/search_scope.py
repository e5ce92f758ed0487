"""The namespace that a search is for, and its queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from redrive.errors import QueueNotFound
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.queue_rows import namespace_key, queue_names
from redrive.stores.relational.session import Executor


class SearchScope(NamedTuple):
    """The namespace that is searched."""

    section: int
    """The key in the database; 0 before the first write to it."""
    namespace: str
    names: Mapping[int, str]
    """The names of its queues by key."""

    def key_of(self, queue: str) -> int:
        """Return the key of a queue. Raises QueueNotFound."""
        for key, name in self.names.items():
            if name == queue:
                return key
        raise QueueNotFound(queue, self.namespace)


def scope_of(batch: Batch) -> SearchScope:
    """Return the scope of a search within a transaction."""
    queues = batch.queues
    return SearchScope(queues.namespace_key, batch.namespace, queues.names)


def read_scope(executor: Executor, namespace: str) -> SearchScope:
    """Return the scope of a query.

    The settings of queues are not decoded, as there may be many.
    """
    return SearchScope(namespace_key(executor, namespace) or 0, namespace, queue_names(executor, namespace))
