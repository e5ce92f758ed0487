"""Calls, queries, results and errors over the wire: everything comes back as it was, and nothing else comes in."""

import contextlib
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from redrive import errors
from redrive.clock import Instant
from redrive.contract import Call, Query, admin_calls, item_calls, maintenance_calls
from redrive.contract.admin_calls import Registration, VersionConflict
from redrive.contract.base import result_type
from redrive.contract.item_calls import StaleSettings
from redrive.errors import RedriveError
from redrive.model.duration import MAX_DURATION
from redrive.model.ids import ItemId
from redrive.model.item import Receipt
from redrive.model.queue import Queue
from redrive.model.retry_policy import IMMEDIATE, Backoff, BackoffKind, RetryPolicy
from redrive.store import Commit
from redrive.wire.error_codec import (
    ERROR_BY_CODE,
    HTTP_ONLY_CODES,
    STATUS_BY_CODE,
    ErrorBody,
    SentError,
    decode_error,
    encode_error,
    error_body,
    error_of_answer,
    is_redrive_error,
)
from redrive.wire.messages import CommitPosition, CommitRequest, decode_commit, decode_query, encode_commit, read_commit
from redrive.wire.result_codec import decode_answer, encode, encode_results

_DELAYS = [
    IMMEDIATE,
    Backoff(BackoffKind.LIST, delays=(1, MAX_DURATION)),
    Backoff(BackoffKind.FUNCTION, function="polite"),
]


CALLS, QUERIES = typing.get_args(Call), typing.get_args(Query)


@cache
def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type, made from its annotations."""
    if kind is Backoff:
        return st.sampled_from(_DELAYS)
    if kind is RetryPolicy:
        return st.builds(RetryPolicy, st.integers(0, 1000), values_of(Backoff), st.booleans())
    if kind is RedriveError:
        return st.deferred(lambda: st.sampled_from(ERRORS))
    if isinstance(kind, typing.NewType):
        return values_of(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        required = [f.name for f in msgspec.structs.fields(kind) if f.required]
        optional = {name: st.deferred(lambda hint=hint: values_of(hint)) for name, hint in hints.items()}
        return st.fixed_dictionaries(
            {name: optional.pop(name) for name in required},
            optional={name: value for name, value in optional.items() if name in kind.__struct_fields__},
        ).map(lambda fields: kind(**fields))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    return _PLAIN[kind] if kind in _PLAIN else _generic_values(kind)


_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    types.NoneType: st.none(),
}


def _generic_values(kind: Any) -> st.SearchStrategy[Any]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values_of, args))
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values_of(args[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, args))
    if origin in (list, Sequence):
        return st.lists(values_of(args[0]), max_size=2)
    if origin in (dict, Mapping):
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=2)
    raise AssertionError(f"no values are made of {kind}")


def sample(kind: type[RedriveError]) -> RedriveError:
    """An error of that class, with something for each of its parameters."""
    if "__init__" not in vars(kind):
        return kind("something is wrong")
    given: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(kind).parameters.items()):
        given[name] = {"int": 7, "float": 1.5, "tuple[str, ...]": ("a", "b")}.get(
            str(parameter.annotation), f"a {name}"
        )
        if "int | None" in str(parameter.annotation):
            given[name] = None
    return kind(**given)


_OWN = (errors.TaskFailed, errors.InvalidConfig, errors.UntrustedFile)
"""What a program finds out by itself, and no server tells."""
ERRORS = [sample(kind) for kind in ERROR_BY_CODE.values() if kind not in _OWN]
"""One of each."""


def is_same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if isinstance(one, RedriveError):
        return type(one) is type(other) and str(one) == str(other) and vars(one) == vars(other)
    return bool(one == other) and repr(one) == repr(other)


def _shown(kind: Any) -> str:
    """A type as the contract writes it."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_shown, args))
    if origin is tuple:
        return f"tuple[{_shown(args[0])}, …]"
    if origin is Mapping:
        return f"Mapping[{', '.join(map(_shown, args))}]"
    return "None" if kind is types.NoneType else str(kind.__name__)


@pytest.mark.parametrize("kind", [*CALLS, *QUERIES], ids=lambda kind: kind.__name__)
def test_result_is_what_the_contract_says(kind: type[Any]) -> None:
    assert kind.__doc__ is not None
    told = kind.__doc__.removeprefix("→ ")
    name = _shown(result_type(kind))
    assert told.startswith(name), (told[:60], name)


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_call_comes_back_as_it_was(kind: type[Any], data: st.DataObject) -> None:
    calls = data.draw(st.lists(values_of(kind), min_size=1, max_size=2))
    request = CommitRequest("id", "b", calls, is_retry=True, position=7)
    assert is_same(decode_commit(encode(request)), request)


@pytest.mark.parametrize("kind", QUERIES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_query_and_its_answer_come_back_as_they_were(kind: type[Any], data: st.DataObject) -> None:
    query = data.draw(values_of(kind))
    assert is_same(decode_query(encode(query)), query)
    answer = data.draw(values_of(result_type(kind)))
    assert is_same(decode_answer(query, encode(answer)), answer)


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_results_come_back_as_they_were(kind: type[Any], data: st.DataObject) -> None:
    call = data.draw(values_of(kind))
    odd = st.one_of(
        st.sampled_from(ERRORS),
        values_of(Queue).map(StaleSettings),
        values_of(Registration | None).map(VersionConflict),
    )
    results = data.draw(st.lists(st.one_of(values_of(result_type(kind)), odd), max_size=4))
    commit = Commit(results, {"jobs": 3, "mails": 0}, Instant(17))
    calls = [call] * len(results)
    seen, back = read_commit(calls, encode_commit(CommitPosition("boot", 5), calls, commit))
    assert (seen, back.arrivals, back.now) == (CommitPosition("boot", 5), commit.arrivals, 17)
    assert len(back.results) == len(results)
    for one, other in zip(results, back.results, strict=True):
        if kind in (admin_calls.ManualChange, item_calls.LeaseByIds) and isinstance(one, tuple):
            assert isinstance(other, tuple)
            assert len(one) == len(other)
            assert all(map(is_same, one, other))
        else:
            assert is_same(one, other)


REQUEST: dict[str, Any] = {"id": "i", "server_epoch": "b", "calls": []}
ITEM = {"payload": b"", "content_type": "x"}


def test_request_without_calls_is_read() -> None:
    assert decode_commit(encode(REQUEST)) == CommitRequest("i", "b", [])


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\xc1",
        encode([]),
        encode({"id": "i"}),
        encode({**REQUEST, "calls": [{"type": "DropEverything"}]}),
        encode({**REQUEST, "calls": [{"queue": "jobs", "items": []}]}),
        encode({**REQUEST, "calls": [{"type": "GetQueue", "name": "jobs"}]}),
        encode({**REQUEST, "force": True}),
        encode({**REQUEST, "calls": [{"type": "Put", "queue": "jobs", "items": [], "force": True}]}),
        encode({**REQUEST, "calls": [{"type": "Put", "queue": 7, "items": []}]}),
        encode({**REQUEST, "calls": [{"type": "LeaseItems", "queue": "jobs", "limit": "7"}]}),
        encode({**REQUEST, "calls": [{"type": "LeaseItems", "queue": "jobs", "limit": True}]}),
        encode({**REQUEST, "calls": [{"type": "LeaseItems", "queue": "jobs"}]}),
        encode({**REQUEST, "calls": [{"type": "Put", "queue": "j", "items": [{**ITEM, "x": 1}]}]}),
        encode(REQUEST) + b"\xc0",
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(sent: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_commit(sent)


@given(data=st.data())
def test_damaged_request_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    request = encode(CommitRequest("id", "b", [data.draw(values_of(data.draw(st.sampled_from(CALLS))))]))
    at, byte = data.draw(st.integers(0, len(request) - 1)), data.draw(st.integers(0, 255))
    damaged = request[:at] + bytes([byte]) + request[at + 1 :]
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RedriveError):
        decode_commit(damaged)


def test_answer_with_another_number_of_results_is_none() -> None:
    calls = [maintenance_calls.Promote()]
    with pytest.raises(msgspec.DecodeError, match="2 results for 1 call"):
        read_commit(calls, encode_commit(CommitPosition("b"), calls * 2, Commit([1, 2], {}, Instant(0))))


def test_results_of_fewer_calls_than_were_made_are_not_sent() -> None:
    calls = [maintenance_calls.Promote(), maintenance_calls.Promote()]
    with pytest.raises(ValueError, match="shorter"):
        encode_results(calls, [0])


def test_fields_of_a_newer_server_are_passed_over() -> None:
    sent = {"id": "a" * 32, "duplicate": True, "colour": "blue"}
    answer = encode(("b", 0, {}, [[sent]]))
    assert read_commit([item_calls.Put("jobs", ())], answer)[1].results == [(Receipt(ItemId("a" * 32), True),)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_comes_back_as_it_was(error: RedriveError) -> None:
    in_json = msgspec.json.decode(msgspec.json.encode(error_body(error)), type=ErrorBody)
    for back in (decode_error(encode_error(error)), error_of_answer(STATUS_BY_CODE[error.code], in_json)):
        assert is_same(error, back)
        assert (back.code, back.retryable, back.args) == (error.code, error.retryable, (str(error),))
        with pytest.raises(type(error)):
            raise back


def test_error_of_a_newer_server_is_of_the_nearest_class_that_is_known() -> None:
    newer = decode_error(SentError("queue_frozen", "queue 'jobs' is frozen", {"queue": "jobs"}, ("refused", "error")))
    assert type(newer) is errors.Refused
    assert (newer.code, str(newer), vars(newer)["queue"]) == ("queue_frozen", "queue 'jobs' is frozen", "jobs")
    assert type(decode_error(SentError("odd", "odd"))) is RedriveError
    for status, kind in ((400, errors.InvalidInput), (404, errors.NotFound), (503, errors.StoreError)):
        assert type(error_of_answer(status, ErrorBody("odd", "odd"))) is kind


def test_every_error_has_a_status() -> None:
    assert set(STATUS_BY_CODE) == set(ERROR_BY_CODE)


def test_error_of_a_server_is_told_from_others_by_its_code_and_its_status() -> None:
    for code, status in {**STATUS_BY_CODE, **HTTP_ONLY_CODES}.items():
        assert is_redrive_error(status, ErrorBody(code, "no")), code
        assert not is_redrive_error(599, ErrorBody(code, "no")), code
    assert not is_redrive_error(503, ErrorBody("service_unavailable", "no"))


def test_unknown_extension_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(msgspec.DecodeError, match="extension 99"):
        read_commit([maintenance_calls.Promote()], encode(("b", 0, {}, [Ext(99, b"")])))


def test_what_is_no_value_of_ours_is_not_sent() -> None:
    odd: Callable[[], None] = lambda: None  # noqa: E731
    with pytest.raises(NotImplementedError, match="function"):
        encode(odd)
