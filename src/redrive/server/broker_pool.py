"""The brokers of a server: one for each namespace, opened when it is first used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from redrive.broker.async_broker import AsyncBroker
from redrive.errors import Closed
from redrive.model.limits import check_name
from redrive.server.request_limits import Busy, NamespaceUse, RequestResources

MAX_NAMESPACES = 100
"""Maximum number of open namespaces. Each has a separate connection and threads."""


class BrokerPool:
    """Brokers by namespace. All use one store, and close together.

    A caller may name a namespace that was never used. If the limit is reached, an idle one without queues is closed: no
    work is pending there.
    """

    def __init__(self, open_one: Callable[[str], AsyncBroker]) -> None:
        self._open_one = open_one
        self._open: dict[str, NamespaceUse] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._making_room = asyncio.Lock()
        self._closed = False

    @property
    def open(self) -> Mapping[str, AsyncBroker]:
        """The open brokers, by namespace."""
        return {namespace: opened.broker for namespace, opened in self._open.items()}

    def get(self, namespace: str) -> AsyncBroker | None:
        """Return the broker of a namespace if it is open, otherwise None."""
        opened = self._open.get(namespace)
        return None if opened is None else opened.broker

    async def at(self, namespace: str) -> AsyncBroker:
        """Return the broker of a namespace and keep it open."""
        opened = self._open.get(namespace) or await self._opened(namespace)
        opened.stays = True
        return opened.broker

    def acquire_open(self, namespace: str, hold: RequestResources) -> AsyncBroker | None:
        """Return the broker of a namespace for one request if it is open, otherwise None."""
        opened = self._open.get(namespace)
        if opened is None:
            return None
        hold.use_namespace(opened)
        return opened.broker

    async def acquire(self, namespace: str, hold: RequestResources) -> AsyncBroker:
        """Return the broker of a namespace for one request, opening it if needed."""
        opened = self._open.get(namespace) or await self._opened(namespace)
        hold.use_namespace(opened)
        return opened.broker

    async def _opened(self, namespace: str) -> NamespaceUse:
        """Return the open namespace, opening it if needed. It may be closed as soon as the caller awaits something."""
        check_name("namespace", namespace)
        while (opened := self._open.get(namespace)) is None:
            if self._closed:
                raise Closed
            if namespace not in self._opening:
                async with self._making_room:
                    if self._is_unknown(namespace) and len(self._open) + len(self._opening) >= MAX_NAMESPACES:
                        await self._make_room()
                    if self._is_unknown(namespace):
                        self._opening[namespace] = asyncio.create_task(self._begin(namespace))
            if namespace in self._opening:
                await asyncio.shield(self._opening[namespace])
        return opened

    def _is_unknown(self, namespace: str) -> bool:
        return not (namespace in self._open or namespace in self._opening or self._closed)

    async def _begin(self, namespace: str) -> None:
        try:
            self._open[namespace] = NamespaceUse(await asyncio.to_thread(self._open_one, namespace))
        finally:
            del self._opening[namespace]

    async def _make_room(self) -> None:
        """Close the longest idle namespace without queues. Raises `Busy` if all have queues or are in use.

        At most one namespace that had queues at the last check is checked again, since there may be many of those.
        """
        idle = [(each.had_queues_at, each.idle_since, name) for name, each in self._open.items() if _is_idle(each)]
        for had_queues_at, since, namespace in sorted(idle):
            opened = self._open[namespace]
            has_queues = bool(await opened.broker.list_queues())
            if self._closed:
                raise Closed
            if not has_queues and _is_idle(opened) and opened.idle_since == since:
                del self._open[namespace]
                await opened.broker.close()
                return
            opened.had_queues_at = time.monotonic() if has_queues else 0.0
            if had_queues_at:
                break
        raise Busy(
            MAX_NAMESPACES, f"{MAX_NAMESPACES} namespaces are open, and none of those that are idle is without queues"
        )

    async def close(self) -> None:
        """Close all brokers. Each finishes what it accepted."""
        self._closed = True
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        while self._open:
            await self._open.popitem()[1].broker.close()


def _is_idle(opened: NamespaceUse) -> bool:
    return not (opened.uses or opened.stays)
