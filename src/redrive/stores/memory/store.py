"""The memory store: the contract of `redrive.store` in its simplest form."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from redrive.clock import Clock, Instant, SystemClock
from redrive.contract import Call, Query
from redrive.contract.base import in_commit_order
from redrive.contract.item_calls import Put
from redrive.errors import Closed, InvalidInput
from redrive.model.item import Receipt
from redrive.store import Commit, Durability
from redrive.stores.rules.dispatch import answer_query, execute_or_refuse
from redrive.stores.rules.state import State


class MemoryStore:
    """Queues and items in this process. They are lost when it ends.

    Every call is checked in full before its first write, so a refusal changes nothing. One lock makes a batch a
    transaction: `read` returns all of its changes or none.
    """

    def __init__(self, clock: Clock | None = None, namespace: str = "default", name: str = "memory") -> None:
        self.clock = clock or SystemClock()
        self.namespace = namespace
        self.name = name
        self.place = f"memory:{id(self):x}"
        self._state = State(namespace, name)
        self._lock = threading.RLock()
        self._closed = False

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        with self._lock:
            state = self._open_state()
            state.begin(self.clock.now() if now is None else now)
            results: list[Any] = [None] * len(calls)
            for place in in_commit_order(calls):
                results[place] = execute_or_refuse(state, calls[place])
            return Commit(results, self._arrivals(), state.now)

    def read(self, query: Query) -> Any:
        with self._lock:
            return answer_query(self._open_state(), query, self.clock.now())

    def put_in_transaction(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        raise InvalidInput(
            f"store {self.name} lives in memory and takes part in no transaction of yours; "
            "put without `transaction`, or use a store in the database that your transaction is in"
        )

    def poll_changes(self) -> Collection[str] | None:
        self._open_state()
        return ()

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Do nothing: no other process changes this store."""

    def durability(self) -> Durability:
        return Durability(
            level="none",
            survives="nothing: all queues and items live in the memory of this process",
            can_lose="everything, when the process ends or the store is closed",
        )

    def warnings(self) -> tuple[str, ...]:
        return ()

    def examine(self) -> tuple[str, ...]:
        return ()

    def reopen(self) -> None:
        """Continue in a forked child with a copy of the parent's data. From then on they do not share changes."""
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._state = State(self.namespace, self.name)

    def _open_state(self) -> State:
        if self._closed:
            raise Closed
        return self._state

    def _arrivals(self) -> dict[str, int]:
        """Return the number of items that became leasable in this transaction, by queue, or 0 if only the next due time
        changed; and the result topics of items that ended.

        Items that the same transaction leased are discounted only if nothing is left to lease.
        """
        state = self._state
        arrivals = dict.fromkeys(state.ended, 1)
        for name in state.arrivals.keys() | state.retimed:
            queue = state.queues.get(name)
            if queue is None or queue.value.paused:
                continue
            count = state.arrivals[name] if queue.leasable(state.now) else 0
            if count or name in state.retimed:
                arrivals[name] = count
        return arrivals
