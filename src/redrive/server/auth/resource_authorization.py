"""In which queue something is that a call names by an id or a token. Who may not go there learns nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from redrive.auth.permissions import DELETING_VERBS
from redrive.auth.principal import Permission
from redrive.broker.core import Core
from redrive.contract.queries import GetItems, GetOperation
from redrive.errors import Forbidden, ItemNotFound, LeaseLost, OperationNotFound
from redrive.model.ids import ItemId, Token, item_id_of
from redrive.model.item import Item, Lease, Status
from redrive.model.limits import make_address
from redrive.model.operation import Operation
from redrive.model.state_machine import Verb
from redrive.server.request import Request

_READ_TOGETHER = 64
"""Maximum number of items that are in memory at a time to find out where they are."""


class ItemLocation(NamedTuple):
    """Where an item is, where a redrive and an undo take it, and where it was put if it has moved since."""

    queue: str
    died_in: str | None
    was_in: str | None
    """Before the last thing that happened to it."""
    put_to: str | None

    def taken_to(self, verb: Verb | None) -> str | None:
        """The queue that a verb takes it to by its past, which whoever imports an item can write. None: it stays."""
        if verb is Verb.REDRIVE:
            return self.died_in
        return self.was_in if verb is Verb.UNDO else None


def remember(request: Request, leases: Iterable[Lease]) -> None:
    """These are given out to the caller: to settle them, nothing is looked up. For who is let into every queue nothing
    ever is."""
    if not request.principal.in_all_queues:
        request.leases.add(request.namespace, leases)


def may_hold(request: Request, lease: Lease) -> bool:
    """Whether the caller may have this lease. Its item was named by an id, and may have moved since it was located."""
    rights = (Permission.CONSUME,) if lease.dead_reason is None else (Permission.CONSUME, Permission.OPERATE)
    return all(may(request, (right,), lease.queue) for right in rights)


async def locate_items(request: Request, ids: Sequence[str]) -> dict[str, ItemLocation]:
    """Where each item is that exists, by the id it was asked for."""
    return await asyncio.get_running_loop().run_in_executor(None, _places_of, request.broker.core, ids)


async def queue_of_lease(request: Request, token: Token) -> str | None:
    """The queue of the item that a token was given for; None where that is gone. Whether the token holds it still is
    the store's to say."""
    known = request.leases.queue_of(request.namespace, token)
    if known is not None:
        return known
    id = item_id_of(token)
    found = (await locate_items(request, (id,))).get(id)
    return None if found is None else found.queue


async def check_items(
    request: Request, rights: Sequence[Permission], ids: Sequence[str], *, verb: Verb | None = None
) -> None:
    """Raise unless the caller may do one of these in the queue of each item. An item of another queue is not found.

    With `verb`, also in the queue that this takes it to. Of an item that does not exist the store says so.
    """
    if may_everywhere(request, rights):
        return
    check_somewhere(request, rights)
    places = await locate_items(request, ids)
    for id in ids:
        found = places.get(id)
        if found is None:
            continue
        if not _may_there(request, rights, found):
            raise ItemNotFound(id)
        to = found.taken_to(verb)
        if to is not None and not may(request, rights, to):
            raise Forbidden(rights[0], request.namespace, None)


async def check_lease(request: Request, rights: Sequence[Permission], token: Token) -> None:
    """Raise unless the caller may do one of these in the queue of the lease. One of another queue is lost."""
    if may_everywhere(request, rights):
        return
    check_somewhere(request, rights)
    queue = await queue_of_lease(request, token)
    if queue is not None and not may(request, rights, queue):
        raise LeaseLost(item_id_of(token), None)


async def check_leases(request: Request, tokens: Iterable[str]) -> None:
    """Raise unless the caller may work in the queue of each of these leases."""
    if may_everywhere(request, (Permission.CONSUME,)):
        return
    for token in tokens:
        await check_lease(request, (Permission.CONSUME,), Token(token))


async def check_operation(request: Request, right: Permission, id: str, *, drives: bool = False) -> None:
    """Raise unless the caller may do that in the queue that an operation is about. One of another is not found.

    With `drives` it goes on because of the caller, who then needs what it takes to start it.
    """
    if may_everywhere(request, (right,)) and (not drives or may_everywhere(request, (Permission.MANAGE,))):
        return
    check_somewhere(request, (right,))
    core = request.broker.core
    operation: Operation = await asyncio.get_running_loop().run_in_executor(None, core.read, GetOperation(id))
    queue = operation.where.queue
    if not may(request, (right,), queue):
        raise OperationNotFound(id)
    if drives:
        await _check_drive(request, right, operation)


async def _check_drive(request: Request, right: Permission, operation: Operation) -> None:
    """Raise where an operation loses items, or takes them somewhere, and the caller could not have started it."""
    queue, to = operation.where.queue, operation.to
    if operation.verb in DELETING_VERBS and not may(request, (Permission.MANAGE,), queue):
        raise Forbidden(Permission.MANAGE, request.namespace, queue)
    if operation.verb is Verb.UNDO and not may_everywhere(request, (right,)):
        raise Forbidden(right, request.namespace, None)
    if to is not None and not may(request, (right,), to):
        raise Forbidden(right, request.namespace, to)
    if operation.verb is Verb.REDRIVE and to is None and queue is not None:
        await check_redrive_targets(request, (right,), queue)


async def check_redrive_targets(request: Request, rights: Sequence[Permission], queue: str) -> None:
    """Raise `Forbidden` where dead letters of a queue may go back to others, which the caller is not let into."""
    if may_everywhere(request, rights):
        return
    found = await request.broker.get_queue(queue)
    if found.is_dead_queue:
        raise Forbidden(rights[0], request.namespace, None)


def may_read_result(request: Request, queue: str, put_to: str | None) -> bool:
    """Whether the caller may learn what becomes of an item: by where it is, or by where it was put."""
    return bool(readable_queues(request, queue, put_to))


def readable_queues(request: Request, *queues: str | None) -> tuple[str, ...]:
    """Those of the queues whose results the caller may read."""
    return tuple([queue for queue in queues if queue is not None and may(request, (Permission.READ_RESULTS,), queue)])


def _may_there(request: Request, rights: Sequence[Permission], found: ItemLocation) -> bool:
    if may(request, rights, found.queue):
        return True
    return Permission.READ_RESULTS in rights and may_read_result(request, found.queue, found.put_to)


def may(request: Request, rights: Iterable[Permission], queue: str | None) -> bool:
    """Whether the caller has one of these rights in a queue; None stands for every one."""
    return any(request.principal.may(right, request.namespace, queue) for right in rights)


def may_everywhere(request: Request, rights: Iterable[Permission]) -> bool:
    """Whether no queue need be known to say yes."""
    return may(request, rights, None)


def check_somewhere(request: Request, rights: Sequence[Permission]) -> None:
    """Raise unless the caller has one of these rights in some queue of the namespace."""
    if not any(request.principal.may_somewhere(right, request.namespace) for right in rights):
        raise Forbidden(rights[0], request.namespace, None)


def _places_of(core: Core, ids: Sequence[str]) -> dict[str, ItemLocation]:
    found: dict[str, ItemLocation] = {}
    for start in range(0, len(ids), _READ_TOGETHER):
        some = tuple(map(ItemId, ids[start : start + _READ_TOGETHER]))
        items: tuple[Item | None, ...] = core.read(GetItems(some))
        found.update({id: _location(item) for id, item in zip(some, items, strict=True) if item is not None})
    return found


def _location(item: Item) -> ItemLocation:
    was_in = item.history[-1].queue if item.history else None
    return ItemLocation(item.queue, _died_in(item), was_in, item.origin_queue)


def _died_in(item: Item) -> str | None:
    """Where it died: in the store that it came from, if a redrive takes it back there."""
    if item.death is None:
        return None
    stays = item.home_store is None or item.status is Status.DEAD
    return item.death.queue if stays else make_address(item.death.queue, item.home_store or "")
