"""What each call and each query gives, and how that is written down.

A table says which type it is. What can come instead of it (a refusal, `StaleSettings`, `VersionConflict`) is an
extension of MessagePack, so that no value is mistaken for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from redrive import store
from redrive.clock import Instant
from redrive.errors import RedriveError
from redrive.model.arrival import Move
from redrive.model.group import Group
from redrive.model.ids import ItemId
from redrive.model.item import Item, Lease, Receipt, Result, Settled
from redrive.model.operation import Operation
from redrive.model.queue import Queue, QueueStats
from redrive.store import Call, Query, Registration, StaleSettings, VersionConflict
from redrive.wire.error_codec import SentError, decode_error, encode_error

CALLS: dict[type[Any], Any] = {
    store.CreateQueue: Queue,
    store.UpdateQueue: Queue,
    store.SetPaused: Queue,
    store.SetSourceQueue: Queue,
    store.DeleteQueue: int,
    store.Put: tuple[Receipt, ...],
    store.Register: Registration,
    store.Unregister: bool,
    store.Import: tuple[Receipt, ...],
    store.Receive: Receipt,
    store.Hold: int,
    store.Unhold: int,
    store.Complete: Settled,
    store.Settle: Settled,
    store.ReturnLease: Settled,
    store.Extend: Instant,
    store.ManualChange: tuple[Settled | Ext, ...],
    store.StartOperation: Operation,
    store.StepOperation: Operation,
    store.SetOperation: Operation,
    store.Promote: int,
    store.Expire: Settled,
    store.ApplyRetention: int,
    store.FinishMove: int,
    store.CloseMove: int,
    store.LeaseItems: store.Leased,
}
"""What each call gives where it is neither refused nor overtaken."""

QUERIES: dict[type[Any], Any] = {
    store.GetQueue: Queue,
    store.ListQueues: tuple[Queue, ...],
    store.GetStats: QueueStats,
    store.GetItem: Item,
    store.FindItems: store.Page,
    store.CountItems: store.Counted,
    store.ListGroups: tuple[Group, ...],
    store.ReadFeed: store.FeedPage,
    store.GetIdempotencyOwners: dict[str, ItemId],
    store.GetOperation: Operation,
    store.ListOperations: tuple[Operation, ...],
    store.GetOverdue: tuple[store.Overdue, ...],
    store.GetLease: Lease,
    store.ListWorkerLeases: tuple[Lease, ...],
    store.GetResult: Result | None,
    store.ListRegistrations: tuple[Registration, ...],
    store.ListAudit: tuple[store.AuditEntry, ...],
    store.ListMoveTargets: tuple[store.MoveTarget, ...],
    store.ListMoves: tuple[Move, ...],
    store.ListOpenMoves: tuple[store.OpenMove, ...],
    store.GetNextDue: Instant | None,
}
"""What each query gives. Where it raises, the answer is an error of HTTP."""

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
    if call.__class__ is store.ManualChange and kind is tuple:
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
    if kind is store.ManualChange:
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
