"""A broker bound to a caller: every flow passes the guard, so that what is above it knows of no rights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeVar, Unpack, cast

import msgspec

from redrive.auth.caller import Caller
from redrive.auth.flow_guard import guarded, signed_freely
from redrive.auth.permissions import SEES_QUEUES, SEES_UNREDACTED
from redrive.auth.result_filter import filter_result
from redrive.broker.async_broker import AsyncBroker
from redrive.broker.breaker_monitor import BreakerHook
from redrive.broker.core import Core
from redrive.broker.flow import Flow, commit_call
from redrive.broker.maintenance import MaintenanceResult
from redrive.contract import Call
from redrive.contract.queries import Page
from redrive.errors import Forbidden
from redrive.model.filter import Filter
from redrive.model.item import Item
from redrive.model.options import Conditions
from redrive.model.queue import Queue

_T = TypeVar("_T")

FOR_FLOWS = frozenset(
    {
        *("clock", "redaction", "meter", "notify", "breakers", "trials", "is_closed"),
        *("actor", "address", "judge", "judge_delivery", "route_verdict"),
        *("cache_queue", "evict_queue", "is_gated", "close_gate"),
        *("start_moves", "wake_movers", "wake_maintenance"),
    }
)
"""What flows take from a core. None of it reads or changes the store."""


class StoreIdentity(msgspec.Struct, frozen=True):
    """What flows may know of the store."""

    name: str
    namespace: str


class StoreNames(msgspec.Struct, frozen=True):
    """What flows may know of other stores."""

    is_known: Callable[[str], bool]


class FlowCore:
    """The core as flows of a bound broker take it: without the ways to the store that pass no guard."""

    __slots__ = ("_caller", "_core")

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._core = caller.core

    def __getattr__(self, name: str) -> Any:
        if name not in FOR_FLOWS:
            raise AttributeError(f"a broker that is bound to a caller does not give away `core.{name}`")
        return getattr(self._core, name)

    def queue(self, name: str) -> Flow[Queue]:
        """A queue as last seen, for a caller that may know it: what was seen for others passes no guard."""
        if not self._caller.may(SEES_QUEUES, name):
            raise Forbidden(SEES_QUEUES[0], self._caller.namespace, name)
        return self._core.queue(name)

    @property
    def store(self) -> StoreIdentity:
        """Its names, and nothing that reads or writes."""
        return StoreIdentity(self._core.store.name, self._core.store.namespace)

    @property
    def stores(self) -> StoreNames:
        """Which others there are. A flow reaches one by `OnStore`, which the guard checks."""
        return StoreNames(self._core.stores.is_known)


class BoundBroker(AsyncBroker):
    """The broker of a namespace as one caller may use it.

    What passes no guard is refused: other stores, transactions of the caller's own, hooks, the feed as it happens,
    metrics, health, durability, and to close the broker, which belongs to others too.
    """

    def __init__(self, broker: AsyncBroker, caller: Caller) -> None:
        super().__init__(cast("Core", FlowCore(caller)))
        self._unbound = broker
        self._caller = caller

    async def run_flow(self, flow: Flow[_T]) -> _T:
        """Drive a flow as the caller may run it."""
        return await self._unbound.run_flow(guarded(self._caller, flow))

    async def run_flow_in_thread(self, flow: Flow[_T]) -> _T:
        """Drive a flow that only reads as the caller may run it, in a thread."""
        return await self._unbound.run_flow_in_thread(guarded(self._caller, flow))

    async def run_flow_to_end(self, flow: Flow[_T]) -> _T:
        """Drive a flow as the caller may run it, even if this coroutine is cancelled."""
        return await self._unbound.run_flow_to_end(guarded(self._caller, flow))

    async def submit(self, call: Call) -> Any:
        """Commit one call as the caller may make it: without a flow, where nothing has to be read for that."""
        signed = signed_freely(self._caller, call)
        if signed is None:
            return await self.run_flow(commit_call(call))
        return filter_result(self._caller, signed, await self._unbound.submit(signed))

    async def get(self, id: str, *, redacted: bool = True) -> Item:
        """An item. Unredacted, for those who may see that in its queue."""
        item = await super().get(id, redacted=redacted)
        self._check_shown((item,), redacted)
        return item

    async def get_many(self, ids: Iterable[str], *, redacted: bool = True) -> list[Item | None]:
        """Many items; unredacted, for those who may see that in the queues of all of them."""
        items = await super().get_many(ids, redacted=redacted)
        self._check_shown(items, redacted)
        return items

    async def find_by_key(self, queue: str, keys: Iterable[str], *, redacted: bool = True) -> list[Item | None]:
        """The items of keys; unredacted, for those who may see that in the queues of all of them."""
        items = await super().find_by_key(queue, keys, redacted=redacted)
        self._check_shown(items, redacted)
        return items

    async def find(
        self,
        where: Filter | None = None,
        *,
        order: str = "newest",
        limit: int = 50,
        cursor: str | None = None,
        redacted: bool = True,
        **conditions: Unpack[Conditions],
    ) -> Page:
        """A page of items; unredacted, for those who may see that in the queue that is asked for, or in all."""
        self._check_search(where, conditions, redacted)
        return await super().find(where, order=order, limit=limit, cursor=cursor, redacted=redacted, **conditions)

    def export(
        self,
        where: Filter | None = None,
        *,
        cursor: str | None = None,
        redacted: bool = True,
        **conditions: Unpack[Conditions],
    ) -> AsyncIterator[bytes]:
        """Items as lines of JSON; unredacted, for those who may see that in the queue that is asked for, or in all."""
        self._check_search(where, conditions, redacted)
        return super().export(where, cursor=cursor, redacted=redacted, **conditions)

    def on_breaker_change(self, hook: BreakerHook) -> BreakerHook:
        """Refused: a hook is of the program, not of a caller."""
        raise AttributeError("a broker that is bound to a caller takes no hooks")

    async def run_maintenance(self) -> MaintenanceResult:
        """Refused: the server runs it."""
        raise AttributeError("a broker that is bound to a caller runs no maintenance")

    def _check_shown(self, items: Iterable[Item | None], redacted: bool) -> None:
        for item in items:
            if item is not None and not redacted:
                self._check_unredacted(item.queue)

    def _check_search(self, where: Filter | None, conditions: Conditions, redacted: bool) -> None:
        if not redacted:
            self._check_unredacted(conditions.get("queue") if where is None else where.queue)

    def _check_unredacted(self, queue: str | None) -> None:
        if not self._caller.may(SEES_UNREDACTED, queue):
            raise Forbidden(SEES_UNREDACTED[0], self._caller.namespace, queue)
