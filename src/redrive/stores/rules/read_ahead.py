"""Names in a batch of calls, to read them together before the first call is executed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from redrive.contract import Call
from redrive.contract.item_calls import Put
from redrive.contract.maintenance_calls import CloseMove, Import, Receive
from redrive.model.arrival import ledger_key
from redrive.model.ids import ItemId


def ids_of(calls: Sequence[Call]) -> Iterator[ItemId]:
    """Return the ids of items that calls name."""
    return chain.from_iterable(call.item_ids for call in calls)


def queues_of(calls: Sequence[Call]) -> list[str]:
    """Return the queues that receive items."""
    return [call.queue for call in calls if isinstance(call, Put | Import | Receive)]


def names_of(calls: Sequence[Call]) -> Iterator[tuple[str, str, list[str]]]:
    """Return idempotency keys and source ids that calls need, as queue, kind and names, to read them together."""
    for call in calls:
        for put in call.puts:
            yield put.queue, "keys", [item.idempotency_key for item in put.items if item.idempotency_key is not None]
            source_ids = [item.source_id for item in put.items if item.source_id is not None]
            yield put.queue, "sources", _ledger_names(source_ids)
        match call:
            case Import():
                yield call.queue, "sources", _ledger_names(call.item_ids)
            case Receive():
                yield call.queue, "sources", _ledger_names([call.move.item.id])
            case CloseMove():
                yield call.queue, "sources", list(map(ledger_key, call.source_ids))


def _ledger_names(source_ids: Sequence[ItemId]) -> list[str]:
    return [*source_ids, *map(ledger_key, source_ids)]
