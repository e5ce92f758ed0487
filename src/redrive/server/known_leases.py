"""The leases that a server gave out to callers who are not let into every queue, and the queue of each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from redrive.model.ids import Token
from redrive.model.item import Lease

MAX_KNOWN_LEASES = 20_000
"""Leases whose queues are known without asking the store. A token is good in one queue for as long as it is good."""


class KnownLeases:
    """Those given out last, by namespace and token."""

    def __init__(self) -> None:
        self._queues: OrderedDict[tuple[str, Token], str] = OrderedDict()

    def add(self, namespace: str, leases: Iterable[Lease]) -> None:
        """These were given out."""
        for lease in leases:
            self._queues[namespace, lease.token] = lease.queue
        while len(self._queues) > MAX_KNOWN_LEASES:
            self._queues.popitem(last=False)

    def queue_of(self, namespace: str, token: Token) -> str | None:
        """The queue of a lease; None where that is not known here."""
        return self._queues.get((namespace, token))
