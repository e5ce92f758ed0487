"""Which calls may be carried out twice, because the second time changes nothing that the first one did not."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.contract import Call
from redrive.contract.admin_calls import (
    ApplyRetention,
    CloseMove,
    CreateQueue,
    FinishMove,
    Hold,
    Import,
    Promote,
    Receive,
    Register,
    SetPaused,
    SetSourceQueue,
    StepOperation,
    Unhold,
)
from redrive.contract.item_calls import Extend, NewItem, Put


def are_idempotent(calls: Iterable[Call]) -> bool:
    """Whether all of them are."""
    return all(map(_is_safe, calls))


def queues_of_keys(calls: Iterable[Call]) -> set[str]:
    """Return the queues of puts that are idempotent only by their idempotency keys.

    The keys of a queue may end with its items. Then the second put makes a new item if the first one was completed in
    between.
    """
    return {
        call.queue
        for call in calls
        if isinstance(call, Put)
        and any(item.idempotency_key is not None and item.source_id is None for item in call.items)
    }


def _is_safe(call: Call) -> bool:
    match call:
        case Put(items=items):
            return all(map(_is_known_again, items))
        case Register(version=version, puts=puts, audit=noted):
            return version is None and not puts and noted is None
        case CreateQueue() | SetPaused() | SetSourceQueue():  # twice is no error, says the contract
            return True
        case Import() | Receive() | FinishMove() | CloseMove():  # by the ids that items have elsewhere
            return True
        case Hold(queue_version=version):  # the answer to the first may be from before the queue changed
            return version is None
        case Extend() | Unhold() | Promote() | ApplyRetention():
            return True
        case StepOperation():  # it names how many steps were made before
            return True
        case _:
            # A second lease would be of other items; a second completion would be told that the lease is lost.
            return False


def _is_known_again(item: NewItem) -> bool:
    """A known key with a failure adds that failure to the item, each time."""
    return (item.idempotency_key is not None or item.source_id is not None) and item.failure is None
