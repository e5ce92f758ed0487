"""The brokers of a server: one for each namespace, opened when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from redrive.broker.async_broker import AsyncBroker
from redrive.broker.flow import accepted
from redrive.errors import Closed, Overloaded, RedriveError
from redrive.model.limits import check_name
from redrive.store import Call

MAX_NAMESPACES = 100
"""Each has a connection and threads of its own."""


class Brokers:
    """Brokers by namespace. All are on one store, and close together."""

    def __init__(self, open_one: Callable[[str], AsyncBroker], limit: int = MAX_NAMESPACES) -> None:
        self._open_one = open_one
        self._limit = limit
        self._open: dict[str, AsyncBroker] = {}
        self._opening: dict[str, asyncio.Task[AsyncBroker]] = {}
        self._closed = False

    @property
    def open(self) -> Mapping[str, AsyncBroker]:
        """Those that are open."""
        return self._open

    def get(self, namespace: str) -> AsyncBroker | None:
        """The broker of a namespace, if it is open."""
        return self._open.get(namespace)

    async def at(self, namespace: str) -> AsyncBroker:
        """The broker of a namespace."""
        broker = self._open.get(namespace)
        if broker is not None:
            return broker
        if self._closed:
            raise Closed
        check_name("namespace", namespace)
        opening = self._opening.get(namespace)
        if opening is None:
            if len(self._open) + len(self._opening) >= self._limit:
                raise Overloaded(self._limit)
            opening = self._opening[namespace] = asyncio.create_task(self._begin(namespace))
        return await asyncio.shield(opening)

    async def _begin(self, namespace: str) -> AsyncBroker:
        try:
            broker = await asyncio.to_thread(self._open_one, namespace)
            self._open[namespace] = broker
            return broker
        finally:
            del self._opening[namespace]

    async def close(self) -> None:
        """Close all of them. Each finishes what it accepted."""
        self._closed = True
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        while self._open:
            await self._open.popitem()[1].close()


async def commit_one(broker: AsyncBroker, call: Call) -> Any:
    """The result of one call. Raises where it was refused."""
    return accepted(await broker._core.committer.submit(call))


async def commit(broker: AsyncBroker, calls: Iterable[Call]) -> list[Any]:
    """The results of calls that are handed in together. Each stands for itself: an error is among the results."""
    handed = tuple(calls)
    committer = broker._core.committer
    try:
        if len(handed) == 1:
            return [await committer.submit(handed[0])]
        return (await committer.submit_many(handed)).results if handed else []
    except RedriveError as error:
        return [error] * len(handed)
