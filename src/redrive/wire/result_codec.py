"""What each call and each query gives, and how that is written down.

A table says which type it is. What can come instead of it (a refusal, `StaleSettings`, `VersionConflict`) is an
extension of MessagePack, so that no value is mistaken for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from redrive.clock import Instant
from redrive.contract import Call, Query, admin_calls, item_calls, queries
from redrive.contract.admin_calls import Registration, VersionConflict
from redrive.contract.item_calls import StaleSettings
from redrive.errors import RedriveError
from redrive.model.arrival import Move
from redrive.model.group import Group
from redrive.model.ids import ItemId
from redrive.model.item import Item, KeptResult, Lease, Receipt, Settled
from redrive.model.operation import Operation
from redrive.model.queue import Queue, QueueStats
from redrive.wire.error_codec import SentError, decode_error, encode_error

CALLS: dict[type[Any], Any] = {
    admin_calls.CreateQueue: Queue,
    admin_calls.UpdateQueue: Queue,
    admin_calls.SetPaused: Queue,
    admin_calls.SetBreakers: Queue,
    admin_calls.SetSourceQueue: Queue,
    admin_calls.DeleteQueue: int,
    item_calls.Put: tuple[Receipt, ...],
    admin_calls.Register: Registration,
    admin_calls.Unregister: bool,
    admin_calls.Import: tuple[Receipt, ...],
    admin_calls.Receive: Receipt,
    admin_calls.Hold: int,
    admin_calls.Unhold: int,
    item_calls.Complete: Settled,
    item_calls.Settle: Settled,
    item_calls.ReturnLease: Settled,
    item_calls.Extend: Instant,
    item_calls.Reply: Receipt,
    admin_calls.ManualChange: tuple[Settled | Ext, ...],
    admin_calls.StartOperation: Operation,
    admin_calls.StepOperation: Operation,
    admin_calls.SetOperation: Operation,
    admin_calls.Promote: int,
    admin_calls.Expire: Settled,
    admin_calls.ApplyRetention: int,
    admin_calls.FinishMove: int,
    admin_calls.CloseMove: int,
    item_calls.LeaseByIds: tuple[Lease | Ext, ...],
    item_calls.LeaseItems: item_calls.Leased,
}
"""What each call gives where it is neither refused nor overtaken."""

QUERIES: dict[type[Any], Any] = {
    queries.GetQueue: Queue,
    queries.ListQueues: tuple[Queue, ...],
    queries.GetStats: QueueStats,
    queries.ListStats: tuple[QueueStats, ...],
    queries.GetItem: Item,
    queries.GetItems: tuple[Item | None, ...],
    queries.FindItems: queries.Page,
    queries.CountItems: queries.Counted,
    queries.ListGroups: tuple[Group, ...],
    queries.ReadFeed: queries.FeedPage,
    queries.GetIdempotencyOwners: dict[str, ItemId],
    queries.GetItemsByKey: tuple[Item | None, ...],
    queries.GetOperation: Operation,
    queries.ListOperations: tuple[Operation, ...],
    queries.GetOverdue: tuple[queries.Overdue, ...],
    queries.GetLease: Lease,
    queries.GetLeasedItem: Item,
    queries.ListWorkerLeases: tuple[Lease, ...],
    queries.GetResult: KeptResult | None,
    queries.ListRegistrations: tuple[Registration, ...],
    queries.ListAudit: tuple[queries.AuditEntry, ...],
    queries.ListMoveTargets: tuple[queries.MoveTarget, ...],
    queries.ListMoves: tuple[Move, ...],
    queries.ListOpenMoves: tuple[queries.OpenMove, ...],
    queries.GetNextDue: Instant | None,
}
"""What each query gives. Where it raises, the answer is an error of HTTP."""

_WITH_RESULTS = frozenset({admin_calls.ManualChange, item_calls.LeaseByIds})
"""Calls that give a result or a refusal for each item."""
_ERROR, _STALE, _OVERTAKEN = 1, 2, 3

_decode_error = msgspec.msgpack.Decoder(SentError).decode
_decode_queue = msgspec.msgpack.Decoder(Queue).decode
_decode_present = msgspec.msgpack.Decoder(Registration | None).decode
_CALL_DECODERS = {kind: msgspec.msgpack.Decoder(given | Ext).decode for kind, given in CALLS.items()}
_READERS: dict[int, Callable[[Any], Any]] = {
    _ERROR: lambda data: decode_error(_decode_error(data)),
    _STALE: lambda data: StaleSettings(_decode_queue(data)),
    _OVERTAKEN: lambda data: VersionConflict(_decode_present(data)),
}
_QUERY_DECODERS = {kind: msgspec.msgpack.Decoder(given).decode for kind, given in QUERIES.items()}


def _extend(value: Any) -> Any:
    """For the encoder: what it does not know."""
    if isinstance(value, RedriveError):
        return Ext(_ERROR, encode(encode_error(value)))
    raise NotImplementedError(f"{type(value).__name__} is not sent")


encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder(enc_hook=_extend).encode


def encode_results(calls: Sequence[Call], results: Sequence[Any]) -> list[Any]:
    """Results of calls as the encoder takes them."""
    return [_written(call, result) for call, result in zip(calls, results, strict=True)]


def _written(call: Call, result: Any) -> Any:
    kind = result.__class__
    if kind is StaleSettings:
        return Ext(_STALE, encode(result.queue))
    if kind is VersionConflict:
        return Ext(_OVERTAKEN, encode(result.present))
    if call.__class__ is admin_calls.ManualChange and kind is tuple:
        return [_written_change(each) for each in result]
    return result


def _written_change(each: Any) -> Any:
    return Ext(_STALE, encode(each.queue)) if each.__class__ is StaleSettings else each


def decode_results(calls: Sequence[Call], results: Sequence[msgspec.Raw]) -> list[Any]:
    """The results of calls. Raises `msgspec.DecodeError` where one is not what its call gives."""
    return [_read(call, raw) for call, raw in zip(calls, results, strict=True)]


def _read(call: Call, raw: msgspec.Raw) -> Any:
    kind = call.__class__
    result = _CALL_DECODERS[kind](raw)
    if result.__class__ is Ext:
        return _meant(result)
    if kind in _WITH_RESULTS:
        return tuple([_meant(each) if each.__class__ is Ext else each for each in result])
    return result


def decode_answer(query: Query, raw: bytes) -> Any:
    """The answer to a query. Raises `msgspec.DecodeError` where it is none."""
    return _QUERY_DECODERS[query.__class__](raw)


def _meant(extension: Ext) -> Any:
    """What an extension stands for."""
    read = _READERS.get(extension.code)
    if read is None:
        raise msgspec.DecodeError(f"nothing is known of an extension {extension.code}")
    return read(extension.data)
