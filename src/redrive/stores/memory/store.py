"""The memory store: the contract of `redrive.store`, read as plainly as possible."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Any, assert_never

from redrive import store as contract
from redrive.clock import Clock, Instant, SystemClock
from redrive.errors import Closed, InvalidInput, RedriveError, StoreFailed
from redrive.model.item import Receipt
from redrive.store import KINDS, Call, Commit, Durability, Put, Query
from redrive.stores.memory.by_hand import change, hold, unhold
from redrive.stores.memory.finding import count_items, find_items
from redrive.stores.memory.imports import import_items
from redrive.stores.memory.leases import lease_items
from redrive.stores.memory.operations import (
    get_operation,
    list_operations,
    set_operation,
    start_operation,
    step_operation,
)
from redrive.stores.memory.puts import put
from redrive.stores.memory.queries import get_overdue, key_holders, list_audit, list_groups, next_due, read_feed
from redrive.stores.memory.queues import create_queue, delete_queue, set_paused, update_queue
from redrive.stores.memory.settles import complete, extend, give_back, settle
from redrive.stores.memory.state import State
from redrive.stores.memory.upkeep import clean, expire, promote

_RANKS = {kind: rank for rank, kinds in enumerate(KINDS) for kind in kinds}


class MemoryStore:
    """Queues and items in this process. Nothing of them survives it.

    Every call is checked in full before its first write, so a refusal leaves no trace. One lock makes a transaction
    of a batch: `read` sees all of it, or nothing.
    """

    def __init__(self, clock: Clock | None = None, namespace: str = "default", name: str = "memory") -> None:
        self.clock = clock or SystemClock()
        self.namespace = namespace
        self.name = name
        self._state = State(namespace, name)
        self._lock = threading.RLock()
        self._closed = False

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        with self._lock:
            state = self._open_state()
            state.begin(self.clock.now() if now is None else now)
            results: list[Any] = [None] * len(calls)
            for place in sorted(range(len(calls)), key=lambda place: _RANKS[type(calls[place])]):
                results[place] = self._attempt(calls[place])
            return Commit(results, self._arrivals(), state.now)

    def read(self, query: Query) -> Any:
        with self._lock:
            return _answer(self._open_state(), query, self.clock.now())

    def put_within(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        raise InvalidInput(
            f"store {self.name} lives in memory and takes part in no transaction of yours; put without `within`, or "
            f"use a store in the database that your transaction is in"
        )

    def changed(self) -> Collection[str] | None:
        self._open_state()
        return ()

    def durability(self) -> Durability:
        return Durability(
            level="none",
            survives="nothing: all queues and items live in the memory of this process",
            can_lose="everything, when the process ends or the store is closed",
        )

    def reopen(self) -> None:
        """A forked child goes on with a copy of what the parent had. From then on neither sees the other's changes."""
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._state = State(self.namespace, self.name)

    def _open_state(self) -> State:
        if self._closed:
            raise Closed
        return self._state

    def _attempt(self, call: Call) -> Any:
        """A refusal, and an error that nobody foresaw, are the result of this call alone."""
        try:
            return _carry_out(self._state, call)
        except RedriveError as refusal:
            return refusal
        except Exception as error:
            failed = StoreFailed(self.name, f"{type(call).__name__}: {error!r}")
            failed.__cause__ = error
            return failed

    def _arrivals(self) -> dict[str, int]:
        """Items that became leasable in this transaction, by queue; 0 where there is only a new time to wait for.

        Those that were leased again at once are taken off only where nothing is left to lease.
        """
        arrivals: dict[str, int] = {}
        state = self._state
        for name in state.arrivals.keys() | state.retimed:
            queue = state.queues.get(name)
            if queue is None or queue.value.paused:
                continue
            count = state.arrivals[name] if queue.leasable(state.now) else 0
            if count or name in state.retimed:
                arrivals[name] = count
        return arrivals


def _carry_out(state: State, call: Call) -> Any:
    match call:
        case contract.Put():
            return put(state, call)
        case contract.LeaseItems():
            return lease_items(state, call)
        case contract.Complete():
            return complete(state, call)
        case contract.Settle():
            return settle(state, call)
        case contract.Return():
            return give_back(state, call)
        case contract.Extend():
            return extend(state, call)
        case contract.Change():
            return change(state, call)
        case contract.Hold():
            return hold(state, call)
        case contract.Unhold():
            return unhold(state, call)
        case contract.Promote():
            return promote(state, call)
        case contract.Expire():
            return expire(state, call)
        case contract.Clean():
            return clean(state, call)
        case contract.StartOperation():
            return start_operation(state, call)
        case contract.StepOperation():
            return step_operation(state, call)
        case contract.SetOperation():
            return set_operation(state, call)
        case contract.Import():
            return import_items(state, call)
        case contract.CreateQueue():
            return create_queue(state, call)
        case contract.UpdateQueue():
            return update_queue(state, call)
        case contract.SetPaused():
            return set_paused(state, call)
        case contract.DeleteQueue():
            return delete_queue(state, call)
        case _:
            assert_never(call)


def _answer(state: State, query: Query, now: Instant) -> Any:
    match query:
        case contract.GetQueue():
            return state.queue(query.name).value
        case contract.ListQueues():
            return tuple(state.queues[name].value for name in sorted(state.queues))
        case contract.GetStats():
            return state.queue(query.name).stats(now)
        case contract.GetItem():
            return state.item(query.id).to_item()
        case contract.FindItems():
            return find_items(state, query)
        case contract.CountItems():
            return count_items(state, query)
        case contract.ListGroups():
            return list_groups(state, query)
        case contract.ReadFeed():
            return read_feed(state, query)
        case contract.GetKeyHolders():
            return key_holders(state, query, now)
        case contract.GetOperation():
            return get_operation(state, query.id)
        case contract.ListOperations():
            return list_operations(state, query)
        case contract.GetOverdue():
            return get_overdue(state, query, now)
        case contract.GetActive():
            return state.leased(query.token).to_lease()
        case contract.ListAudit():
            return list_audit(state, query)
        case contract.NextDue():
            return next_due(state)
        case _:
            assert_never(query)
