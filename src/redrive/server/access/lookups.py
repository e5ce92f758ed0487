"""In which queue something is that a call names by an id or a token. Who may not go there learns nothing of it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from redrive.broker.core import Core
from redrive.errors import Forbidden, ItemNotFound, LeaseLost, OperationNotFound
from redrive.model.ids import ItemId, Token, item_of
from redrive.model.item import Item, Lease
from redrive.model.operation import Operation
from redrive.model.transitions import Verb
from redrive.server.access.principal import Right
from redrive.server.requests import Request
from redrive.store import GetItem, GetOperation

MAX_KNOWN_LEASES = 20_000
"""Leases whose queues are known without asking the store. A token is good in one queue for as long as it is good."""


LOSING = frozenset({Verb.DROP, Verb.PURGE})
"""Verbs that lose items."""


class Standing(NamedTuple):
    """Where an item is, and where it died last."""

    queue: str
    died_in: str | None


class _KnownLeases:
    """The queues of leases that were given out, those given out last."""

    def __init__(self) -> None:
        self._queues: OrderedDict[Token, str] = OrderedDict()

    def add(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._queues[lease.token] = lease.queue
        while len(self._queues) > MAX_KNOWN_LEASES:
            self._queues.popitem(last=False)

    def get(self, token: Token) -> str | None:
        return self._queues.get(token)


_known = _KnownLeases()


def remember(leases: Iterable[Lease]) -> None:
    """These were given out."""
    _known.add(leases)


async def places_of(request: Request, ids: Sequence[str]) -> dict[str, Standing]:
    """Where each item is that exists, by the id it was asked for."""
    return await asyncio.get_running_loop().run_in_executor(None, _places_of, request.broker._core, ids)


async def queue_of_lease(request: Request, token: Token) -> str | None:
    """The queue of the item that a token was given for; None where that is gone. Whether the token holds it still is
    the store's to say."""
    known = _known.get(token)
    if known is not None:
        return known
    id = item_of(token)
    found = (await places_of(request, (id,))).get(id)
    return None if found is None else found.queue


async def check_items(
    request: Request,
    rights: Sequence[Right],
    ids: Sequence[str],
    *,
    brings_back: bool = False,
    outlived: bool = False,
) -> None:
    """Raise unless the caller may do one of these in the queue of each item. An item of another queue is not found.

    With `brings_back`, also in the queue of its last death, where a redrive takes it. Of an item that does not exist
    the store says so; with `outlived`, it is not found here, since something of it may be left.
    """
    if may_everywhere(request, rights):
        return
    check_somewhere(request, rights)
    places = await places_of(request, ids)
    for id in ids:
        found = places.get(id)
        if outlived if found is None else not may(request, rights, found.queue):
            raise ItemNotFound(id)
        if brings_back and found is not None and found.died_in and not may(request, rights, found.died_in):
            raise Forbidden(rights[0], request.namespace, None)


async def check_lease(request: Request, rights: Sequence[Right], token: Token) -> None:
    """Raise unless the caller may do one of these in the queue of the lease. One of another queue is lost."""
    if may_everywhere(request, rights):
        return
    check_somewhere(request, rights)
    queue = await queue_of_lease(request, token)
    if queue is not None and not may(request, rights, queue):
        raise LeaseLost(item_of(token), None)


async def check_leases(request: Request, tokens: Iterable[str]) -> None:
    """Raise unless the caller may work in the queue of each of these leases."""
    for token in tokens:
        await check_lease(request, (Right.WORK,), Token(token))


async def check_operation(request: Request, right: Right, id: str, *, losing: Right | None = None) -> None:
    """Raise unless the caller may do that in the queue that an operation is about. One of another is not found.

    `losing` is the right that it takes instead where the operation loses items.
    """
    if may_everywhere(request, (right,)) and (losing is None or may_everywhere(request, (losing,))):
        return
    check_somewhere(request, (right,))
    core = request.broker._core
    operation: Operation = await asyncio.get_running_loop().run_in_executor(None, core.read, GetOperation(id))
    queue = operation.where.queue
    if not may(request, (right,), queue):
        raise OperationNotFound(id)
    if losing is not None and operation.verb in LOSING and not may(request, (losing,), queue):
        raise Forbidden(losing, request.namespace, queue)


async def check_back(request: Request, rights: Sequence[Right], queue: str) -> None:
    """Raise `Forbidden` where dead letters of a queue may go back to others, which the caller is not let into."""
    if may_everywhere(request, rights):
        return
    found = await request.broker.get_queue(queue)
    if found.is_dead_queue:
        raise Forbidden(rights[0], request.namespace, None)


def may(request: Request, rights: Iterable[Right], queue: str | None) -> bool:
    """Whether the caller has one of these rights in a queue; None stands for every one."""
    return any(request.principal.may(right, request.namespace, queue) for right in rights)


def may_everywhere(request: Request, rights: Iterable[Right]) -> bool:
    """Whether no queue need be known to say yes."""
    return may(request, rights, None)


def check_somewhere(request: Request, rights: Sequence[Right]) -> None:
    """Raise unless the caller has one of these rights in some queue of the namespace."""
    if not any(request.principal.may_somewhere(right, request.namespace) for right in rights):
        raise Forbidden(rights[0], request.namespace, None)


def _places_of(core: Core, ids: Sequence[str]) -> dict[str, Standing]:
    found: dict[str, Standing] = {}
    for id in ids:
        try:
            item: Item = core.read(GetItem(ItemId(id)))
        except ItemNotFound:
            continue
        found[id] = Standing(item.queue, None if item.death is None else item.death.queue)
    return found
