"""The codec for results of calls and queries, by the result type that the class statement of each names.

Alternatives to a value (a refusal, `StaleSettings`, `VersionConflict`) are extensions of MessagePack, so that they are
never mistaken for values.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Union, get_args, get_origin

import msgspec
from msgspec.msgpack import Ext

from redrive.contract import Call, Query
from redrive.contract.admin_calls import Registration, VersionConflict
from redrive.contract.base import result_type
from redrive.contract.item_calls import StaleSettings
from redrive.errors import RedriveError
from redrive.model.queue import Queue
from redrive.wire.error_codec import SentError, decode_error, encode_error

_ERROR, _STALE, _OVERTAKEN = 1, 2, 3
_EXTENSIONS = (RedriveError, StaleSettings, VersionConflict)
"""Types that are sent as an extension."""


def _sent_type(given: Any) -> Any:
    """Return the type of a result on the wire."""
    if get_origin(given) is tuple:
        return tuple[_sent_type(get_args(given)[0]), ...]  # type: ignore[misc]  # computed from the contract
    if get_origin(given) in (Union, types.UnionType):
        return reduce(or_, map(_sent_type, get_args(given)))
    return Ext if given in _EXTENSIONS else given


_SENT_TYPES = {kind: _sent_type(result_type(kind)) for kind in get_args(Call)}
_BY_ITEM = frozenset(
    kind for kind, sent in _SENT_TYPES.items() if get_origin(sent) is tuple and Ext in get_args(get_args(sent)[0])
)
"""Calls with a result or a refusal for each item."""

_decode_error = msgspec.msgpack.Decoder(SentError).decode
_decode_queue = msgspec.msgpack.Decoder(Queue).decode
_decode_present = msgspec.msgpack.Decoder(Registration | None).decode
_CALL_DECODERS = {kind: msgspec.msgpack.Decoder(sent | Ext).decode for kind, sent in _SENT_TYPES.items()}
_READERS: dict[int, Callable[[Any], Any]] = {
    _ERROR: lambda data: decode_error(_decode_error(data)),
    _STALE: lambda data: StaleSettings(_decode_queue(data)),
    _OVERTAKEN: lambda data: VersionConflict(_decode_present(data)),
}
_QUERY_DECODERS = {kind: msgspec.msgpack.Decoder(result_type(kind)).decode for kind in get_args(Query)}


def _extend(value: Any) -> Any:
    """Encode an error as an extension: the hook of the encoder for unknown types."""
    if isinstance(value, RedriveError):
        return Ext(_ERROR, encode(encode_error(value)))
    raise NotImplementedError(f"{type(value).__name__} is not sent")


_encoder = msgspec.msgpack.Encoder(enc_hook=_extend)
encode: Callable[[Any], bytes] = _encoder.encode


def encode_request(asked: Any) -> bytes:
    """Encode a request of a client. Raises MemoryError, where `encode` would crash a process with a limit of memory."""
    buffer = bytearray()
    _encoder.encode_into(asked, buffer)
    return bytes(buffer)


def encode_results(calls: Sequence[Call], results: Sequence[Any]) -> list[Any]:
    """Return the results of calls in the form that the encoder takes."""
    return [_written(call, result) for call, result in zip(calls, results, strict=True)]


def _written(call: Call, result: Any) -> Any:
    if call.__class__ in _BY_ITEM and result.__class__ is tuple:
        return [_as_extension(each) for each in result]
    return _as_extension(result)


def _as_extension(result: Any) -> Any:
    """Return an extension for `StaleSettings` and `VersionConflict`. The encoder handles errors."""
    if result.__class__ is StaleSettings:
        return Ext(_STALE, encode(result.queue))
    if result.__class__ is VersionConflict:
        return Ext(_OVERTAKEN, encode(result.present))
    return result


def decode_results(calls: Sequence[Call], results: Sequence[msgspec.Raw]) -> list[Any]:
    """Return the results of calls. Raises `msgspec.DecodeError` if one is not of the type of its call."""
    return [_read(call, raw) for call, raw in zip(calls, results, strict=True)]


def _read(call: Call, raw: msgspec.Raw) -> Any:
    kind = call.__class__
    result = _CALL_DECODERS[kind](raw)
    if result.__class__ is Ext:
        return _meant(result)
    if kind in _BY_ITEM:
        return tuple([_meant(each) if each.__class__ is Ext else each for each in result])
    return result


def decode_answer(query: Query, raw: bytes) -> Any:
    """Return the answer to a query. Raises `msgspec.DecodeError` if it is not of the query's type."""
    return _QUERY_DECODERS[query.__class__](raw)


def _meant(extension: Ext) -> Any:
    """Return the value of an extension."""
    read = _READERS.get(extension.code)
    if read is None:
        raise msgspec.DecodeError(f"nothing is known of an extension {extension.code}")
    return read(extension.data)
