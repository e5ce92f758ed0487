"""Checks of items, leases and operations that a call names by id or token. Without rights, their existence is hidden.

Flows read the store for them. Items are located together, for all calls of a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from redrive.auth.caller import Caller
from redrive.auth.permissions import CONSUME, DELETING_VERBS, MANAGE, OPERATE, READ_RESULTS
from redrive.auth.principal import Permission
from redrive.auth.requirements import ItemRef
from redrive.broker.flow import Flow, run_query
from redrive.contract.queries import GetItems, GetOperation, GetQueue
from redrive.errors import Forbidden, ItemNotFound, LeaseLost, OperationNotFound
from redrive.model.ids import ItemId, Token, item_id_of
from redrive.model.item import Item, Lease, Status
from redrive.model.limits import make_address
from redrive.model.operation import Operation
from redrive.model.queue import Queue
from redrive.model.state_machine import Verb

_READ_TOGETHER = 64
"""Maximum number of items that are in memory at a time to find out where they are."""


class ItemLocation(NamedTuple):
    """The queue of an item, the targets of a redrive and of an undo, and the queue it was put to if it has moved."""

    queue: str
    died_in: str | None
    was_in: str | None
    """The queue before the last change."""
    put_to: str | None

    def taken_to(self, verb: Verb | None) -> str | None:
        """Return the queue that a verb moves it to by its history, which an importer can write; None if it stays."""
        if verb is Verb.REDRIVE:
            return self.died_in
        return self.was_in if verb is Verb.UNDO else None


Locations: TypeAlias = Mapping[str, ItemLocation]
"""Locations of the items that exist, by the requested id."""


def locate_items(ids: Iterable[str]) -> Flow[Locations]:
    """Locate items, `_READ_TOGETHER` of them with one query."""
    found: dict[str, ItemLocation] = {}
    wanted = [ItemId(id) for id in dict.fromkeys(ids)]
    for start in range(0, len(wanted), _READ_TOGETHER):
        some = tuple(wanted[start : start + _READ_TOGETHER])
        items: tuple[Item | None, ...] = yield from run_query(GetItems(some))
        found.update({id: _location(item) for id, item in zip(some, items, strict=True) if item is not None})
    return found


def queue_of_lease(caller: Caller, token: Token, located: Locations) -> str | None:
    """Return the queue of the item that a lease token belongs to; None if the item is gone. The store checks whether
    the lease is still held."""
    known = caller.leases.queue_of(caller.namespace, token)
    if known is not None:
        return known
    found = located.get(item_id_of(token))
    return None if found is None else found.queue


def check_item(caller: Caller, rights: Sequence[Permission], place: ItemRef, located: Locations) -> None:
    """Raise unless the caller has one of the rights in the queue of an item; `ItemNotFound` if it is in another queue.

    Check also the queue that `place.verb` moves it to by its history. The store reports items that do not exist.
    """
    caller.check_somewhere(rights)
    found = located.get(place.id)
    if found is None:
        return
    if not _may_there(caller, rights, found):
        raise ItemNotFound(place.id)
    to = found.taken_to(place.verb)
    if to is not None and not caller.may(rights, to):
        raise Forbidden(rights[0], caller.namespace, None)


def check_lease(caller: Caller, rights: Sequence[Permission], token: Token, located: Locations) -> None:
    """Raise unless the caller has one of the rights in the queue of the lease; `LeaseLost` if it has them elsewhere."""
    caller.check_somewhere(rights)
    queue = queue_of_lease(caller, token, located)
    if queue is not None and not caller.may(rights, queue):
        raise LeaseLost(item_id_of(token), None)


def check_operation(caller: Caller, right: Permission, id: str, *, drives: bool = False) -> Flow[None]:
    """Raise unless the caller has the right in the queue of an operation; `OperationNotFound` for one of another queue.

    With `drives` the call advances the operation, so the caller also needs the rights to start it.
    """
    if caller.may_everywhere((right,)) and (not drives or caller.may_everywhere((MANAGE,))):
        return
    caller.check_somewhere((right,))
    operation: Operation = yield from run_query(GetOperation(id))
    if not caller.may((right,), operation.where.queue):
        raise OperationNotFound(id)
    if drives:
        yield from _check_drive(caller, right, operation)


def _check_drive(caller: Caller, right: Permission, operation: Operation) -> Flow[None]:
    """Raise `Forbidden` if an operation deletes or moves items and the caller could not have started it."""
    queue, to = operation.where.queue, operation.to
    if operation.verb in DELETING_VERBS and not caller.may((MANAGE,), queue):
        raise Forbidden(MANAGE, caller.namespace, queue)
    if operation.verb is Verb.UNDO and not caller.may_everywhere((right,)):
        raise Forbidden(right, caller.namespace, None)
    if to is not None and not caller.may((right,), to):
        raise Forbidden(right, caller.namespace, to)
    if operation.verb is Verb.REDRIVE and to is None and queue is not None:
        yield from check_redrive_targets(caller, (right,), queue)


def check_redrive_targets(caller: Caller, rights: Sequence[Permission], queue: str) -> Flow[None]:
    """Raise `Forbidden` without rights in all queues if `queue` is a dead queue: its redrives lead to other queues."""
    if caller.may_everywhere(rights):
        return
    found: Queue = yield from run_query(GetQueue(queue))
    if found.is_dead_queue:
        raise Forbidden(rights[0], caller.namespace, None)


def check_new_dead_queue(caller: Caller, rights: Sequence[Permission], queue: str, to: str) -> Flow[None]:
    """Raise `Forbidden` unless `to` is a dead queue of `queue` already, so that its other settings can be changed."""
    found: Queue = yield from run_query(GetQueue(queue))
    if to not in found.settings.dead_queues():
        raise Forbidden(rights[0], caller.namespace, to)


def may_hold(caller: Caller, lease: Lease) -> bool:
    """Return whether the caller may have this lease. Its item, named by id, may have moved since it was located."""
    rights = (CONSUME,) if lease.dead_reason is None else (CONSUME, OPERATE)
    return all(caller.may((right,), lease.queue) for right in rights)


def may_read_result(caller: Caller, queue: str, put_to: str | None) -> bool:
    """Return whether the caller may read the outcome of an item, by its queue or by the queue it was put to."""
    return bool(readable_queues(caller, queue, put_to))


def readable_queues(caller: Caller, *queues: str | None) -> tuple[str, ...]:
    """Return those of the queues whose results the caller may read."""
    return tuple([queue for queue in queues if queue is not None and caller.may((READ_RESULTS,), queue)])


def _may_there(caller: Caller, rights: Sequence[Permission], found: ItemLocation) -> bool:
    if caller.may(rights, found.queue):
        return True
    return READ_RESULTS in rights and may_read_result(caller, found.queue, found.put_to)


def _location(item: Item) -> ItemLocation:
    was_in = item.history[-1].queue if item.history else None
    return ItemLocation(item.queue, _died_in(item), was_in, item.origin_queue)


def _died_in(item: Item) -> str | None:
    """Return the queue it died in, with its home store if a redrive returns it there."""
    if item.death is None:
        return None
    stays = item.home_store is None or item.status is Status.DEAD
    return item.death.queue if stays else make_address(item.death.queue, item.home_store or "")
