"""What calls name, to read it together before the first of them is executed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redrive.contract import Call
from redrive.contract.admin_calls import (
    CloseMove,
    Expire,
    FinishMove,
    Hold,
    Import,
    ManualChange,
    Receive,
    Register,
    Unhold,
)
from redrive.contract.item_calls import Complete, Extend, LeaseByIds, Put, Reply, ReturnLease, Settle
from redrive.model.arrival import ledger_key
from redrive.model.ids import ItemId, item_id_of


def queues_of(calls: Sequence[Call]) -> list[str]:
    """Return the queues that items come to."""
    return [call.queue for call in calls if isinstance(call, Put | Import | Receive)]


def names_of(calls: Sequence[Call]) -> Iterator[tuple[str, str, list[str]]]:
    """Return idempotency keys and source ids that calls need, as queue, kind and names, to read them together."""
    for call in calls:
        match call:
            case Put() | Complete() | Register():
                for put in (call,) if isinstance(call, Put) else call.puts:
                    keys = [item.idempotency_key for item in put.items if item.idempotency_key is not None]
                    yield put.queue, "keys", keys
                    yield (
                        put.queue,
                        "sources",
                        _ledger_names([item.source_id for item in put.items if item.source_id is not None]),
                    )
            case Import():
                yield call.queue, "sources", _ledger_names([item.id for item in call.items])
            case Receive():
                yield call.queue, "sources", _ledger_names([call.move.item.id])
            case CloseMove():
                yield call.queue, "sources", list(map(ledger_key, call.source_ids))


def _ledger_names(source_ids: Sequence[ItemId]) -> list[str]:
    return [*source_ids, *map(ledger_key, source_ids)]


def ids_of(calls: Sequence[Call]) -> list[ItemId]:
    """Return the ids that calls name, to read their items together."""
    ids: list[ItemId] = []
    for call in calls:
        match call:
            case Complete() | Settle() | ReturnLease() | Extend() | Reply():
                ids.append(item_id_of(call.token))
            case Expire():
                ids.append(call.id)
            case ManualChange():
                ids.extend(target.id for target in call.targets)
            case Hold() | Unhold() | FinishMove() | LeaseByIds():
                ids.extend(call.ids or ())
            case Import():
                ids.extend(item.id for item in call.items)
    return ids
