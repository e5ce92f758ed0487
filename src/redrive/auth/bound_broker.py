"""A broker bound to a caller: the guard checks every flow, so the layers above check no permissions."""

from __future__ import annotations

from collections import defaultdict
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
from redrive.broker.flows.registrations import SHOWN, disclose
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
"""Attributes of a core that flows may use. None of them reads or changes the store."""


class StoreIdentity(msgspec.Struct, frozen=True):
    """Attributes of the store that flows may read."""

    name: str
    namespace: str


class StoreNames(msgspec.Struct, frozen=True):
    """The check for names of other stores that flows may use."""

    is_known: Callable[[str], bool]


class FlowCore:
    """The core for flows of a bound broker: without any access to the store that bypasses the guard."""

    __slots__ = ("_caller", "_core")

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._core = caller.core

    def __getattr__(self, name: str) -> Any:
        if name not in FOR_FLOWS:
            raise AttributeError(f"a broker that is bound to a caller does not give away `core.{name}`")
        return getattr(self._core, name)

    def queue(self, name: str) -> Flow[Queue]:
        """Return a queue; `Forbidden` if the caller may not know it, since a cached queue bypasses the guard."""
        if not self._caller.may(SEES_QUEUES, name):
            raise Forbidden(SEES_QUEUES[0], self._caller.namespace, name)
        return self._core.queue(name)

    @property
    def store(self) -> StoreIdentity:
        """The names of the store, without access to its data."""
        return StoreIdentity(self._core.store.name, self._core.store.namespace)

    @property
    def stores(self) -> StoreNames:
        """The check for names of other stores. A flow accesses a store by `OnStore`, which the guard checks."""
        return StoreNames(self._core.stores.is_known)


class BoundBroker(AsyncBroker):
    """The broker of a namespace, restricted to the permissions of one caller.

    It refuses what bypasses the guard: other stores, the caller's own transactions, hooks, following the feed,
    metrics, health, durability, and closing the broker, which other callers share.
    """

    def __init__(self, broker: AsyncBroker, caller: Caller) -> None:
        super().__init__(cast("Core", FlowCore(caller)))
        self._unbound = broker
        self._caller = caller

    async def run_flow(self, flow: Flow[_T]) -> _T:
        """Run a flow with the permissions of the caller."""
        return await self._unbound.run_flow(guarded(self._caller, flow))

    async def run_flow_in_thread(self, flow: Flow[_T]) -> _T:
        """Run a read-only flow in a thread, with the permissions of the caller."""
        return await self._unbound.run_flow_in_thread(guarded(self._caller, flow))

    async def run_flow_to_end(self, flow: Flow[_T]) -> _T:
        """Run a flow to its end with the permissions of the caller, even if this coroutine is cancelled."""
        return await self._unbound.run_flow_to_end(guarded(self._caller, flow))

    async def submit(self, call: Call) -> Any:
        """Commit one call with the permissions of the caller, without a flow if its authorization needs no query."""
        signed = signed_freely(self._caller, call)
        if signed is None:
            return await self.run_flow(commit_call(call))
        return filter_result(self._caller, signed, await self._unbound.submit(signed))

    async def get(self, id: str, *, redacted: bool = True) -> Item:
        """Return an item; an unredacted one requires `manage` in its queue."""
        item = await super().get(id, redacted=redacted)
        await self._disclose((item,), redacted)
        return item

    async def get_many(self, ids: Iterable[str], *, redacted: bool = True) -> list[Item | None]:
        """Return the items of ids; unredacted ones require `manage` in the queue of each item."""
        items = await super().get_many(ids, redacted=redacted)
        await self._disclose(items, redacted)
        return items

    async def find_by_key(self, queue: str, keys: Iterable[str], *, redacted: bool = True) -> list[Item | None]:
        """Return the items of idempotency keys; unredacted ones require `manage` in the queue of each item."""
        items = await super().find_by_key(queue, keys, redacted=redacted)
        await self._disclose(items, redacted)
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
        """Return a page of items; unredacted ones require `manage` in the queue of the filter, or in all queues."""
        self._check_search(where, conditions, redacted)
        page = await super().find(where, order=order, limit=limit, cursor=cursor, redacted=redacted, **conditions)
        await self._disclose(page.items, redacted)
        return page

    def export(
        self,
        where: Filter | None = None,
        *,
        cursor: str | None = None,
        redacted: bool = True,
        **conditions: Unpack[Conditions],
    ) -> AsyncIterator[bytes]:
        """Export items as lines of JSON; unredacted ones need `manage` in the queue of the filter, or in all queues."""
        self._check_search(where, conditions, redacted)
        return super().export(where, cursor=cursor, redacted=redacted, **conditions)

    def on_breaker_change(self, hook: BreakerHook) -> BreakerHook:
        """Raise `AttributeError`: hooks belong to the program, not to a caller."""
        raise AttributeError("a broker that is bound to a caller takes no hooks")

    async def run_maintenance(self) -> MaintenanceResult:
        """Raise `AttributeError`: the server runs maintenance."""
        raise AttributeError("a broker that is bound to a caller runs no maintenance")

    async def _disclose(self, items: Iterable[Item | None], redacted: bool) -> None:
        """Check and record that the caller gets unredacted items."""
        if redacted:
            return
        ids = defaultdict[str, list[str]](list)
        for item in items:
            if item is not None:
                self._check_unredacted(item.queue)
                ids[item.queue].append(item.id)
        for queue, shown in ids.items():
            what = f"item {shown[0]}" if len(shown) == 1 else f"{len(shown):,} items"
            await self.run_flow(disclose(self.core, SHOWN, queue, what))

    def _check_search(self, where: Filter | None, conditions: Conditions, redacted: bool) -> None:
        if not redacted:
            self._check_unredacted(conditions.get("queue") if where is None else where.queue)

    def _check_unredacted(self, queue: str | None) -> None:
        if not self._caller.may(SEES_UNREDACTED, queue):
            raise Forbidden(SEES_UNREDACTED[0], self._caller.namespace, queue)
