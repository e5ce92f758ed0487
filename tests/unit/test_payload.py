"""Payloads come back exactly as they went in, or are refused with the place of the problem."""

from __future__ import annotations

import contextlib
import uuid
from datetime import datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import InvalidName, InvalidPayload, PayloadTooLarge
from redrive.model.payload import BYTES, JSON, check_headers, decode_payload, encode_payload


def round_trip(value: object) -> Any:
    data, content_type = encode_payload(value)
    return decode_payload(data, content_type)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


@given(values)
def test_json_values_come_back_exactly(value: object) -> None:
    back = round_trip(value)
    assert back == value
    assert repr(back) == repr(value)  # 1, 1.0 and True are equal, and must not be exchanged


@given(st.binary())
def test_bytes_come_back_exactly(value: bytes) -> None:
    assert encode_payload(value) == (value, BYTES)
    assert round_trip(value) == value


@pytest.mark.parametrize("value", [2**70, -(2**70), 2**64, 10**4299, "a\0b", "😀", "", [], {}, b"", -0.0, 5e-324, None])
def test_unusual_values_come_back_exactly(value: object) -> None:
    assert repr(round_trip(value)) == repr(value)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_other_bytes_become_bytes(kind: Any) -> None:
    assert encode_payload(kind(b"\xff\0")) == (b"\xff\0", BYTES)


def test_bytes_keep_the_content_type_given_and_are_not_looked_into() -> None:
    assert encode_payload(b"{broken", JSON) == (b"{broken", JSON)
    assert encode_payload(b"x", "image/png") == (b"x", "image/png")
    assert decode_payload(b"{broken", "image/png") == b"{broken"


def test_values_take_json_content_types_only() -> None:
    assert encode_payload({}, "application/cloudevents+json; charset=utf-8")[0] == b"{}"
    with pytest.raises(InvalidPayload, match="needs bytes"):
        encode_payload({}, "image/png")


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Plain(Enum):
    ONE = 1


class Point(NamedTuple):
    x: int
    y: int


def test_tuples_come_back_as_lists_and_enums_as_their_values() -> None:
    assert round_trip({"a": (1, (2,)), "p": Point(1, 2)}) == {"a": [1, [2]], "p": [1, 2]}
    assert round_trip([Colour.RED, Level.HIGH, {Colour.RED: 1}]) == ["red", 3, {"red": 1}]
    assert round_trip((Colour.RED, Level.HIGH, {Colour.RED: 1})) == ["red", 3, {"red": 1}]


class Text(str):
    pass


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        (float("nan"), "$", "is nan, which JSON cannot hold"),
        ({"a": [1, float("inf")]}, "$.a[1]", "is inf"),
        ({"a": (float("-inf"),)}, "$.a[0]", "is -inf"),
        ({"users": [{}, {}, {}, {"name": "\ud800"}]}, "$.users[3].name", "lone surrogate"),
        ({"\udfff": 1}, "$", "lone surrogate"),
        ({"a": {1: 2}}, "$.a", "has the key 1, which is int; JSON keys must be str"),
        ({None: 1}, "$", "has the key None"),
        ({(1, 2): 1}, "$", "which is tuple"),
        ({1.5: 1}, "$", "which is float"),
        ({"1": 1, 1: 2}, "$", "has the key 1"),
        ({"a": {1, 2}}, "$.a", "is set"),
        ([b"x"], "$[0]", "is bytes"),
        ([datetime(2026, 1, 1)], "$[0]", r"is datetime\.datetime"),
        ([uuid.UUID(int=1)], "$[0]", r"is uuid\.UUID"),
        ([Decimal("1.5")], "$[0]", r"is decimal\.Decimal"),
        ([Plain.ONE], "$[0]", "Plain"),
        ([object()], "$[0]", "is object"),
        ([Text("x")], "$[0]", "would come back as str; convert it to str first"),
        ([10**4300], "$[0]", "more than 4,300 digits"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(value: object, path: str, problem: str) -> None:
    with pytest.raises(InvalidPayload, match=problem) as caught:
        encode_payload(value)
    assert caught.value.path == path


def nested(depth: int, value: Any = None) -> Any:
    value = [] if value is None else value
    for level in range(depth - 1):
        value = [value] if level % 2 else {"k": value}
    return value


def test_a_hundred_levels_are_accepted() -> None:
    assert round_trip(nested(100)) == nested(100)
    assert round_trip([nested(99), [1]] * 3) == [nested(99), [1]] * 3


@pytest.mark.parametrize("depth", [101, 102, 500, 5_000, 100_000])
def test_deeper_values_are_refused(depth: int) -> None:
    with pytest.raises(InvalidPayload, match="nested deeper than 100 levels"):
        encode_payload(nested(depth))


def test_depth_is_counted_in_values_not_in_brackets() -> None:
    value = {"rows": [{"n": [n]} for n in range(300)], "text": "[{" * 300}
    assert round_trip(value) == value


def test_a_value_that_holds_itself_is_refused() -> None:
    cycle: dict[str, Any] = {"a": 1}
    cycle["self"] = [cycle, cycle]
    with pytest.raises(InvalidPayload, match="nested deeper"):
        encode_payload(cycle)


def test_the_limit_is_inclusive() -> None:
    assert len(encode_payload(b"x" * 10, limit=10)[0]) == 10
    assert encode_payload("x" * 8, limit=10)[0] == b'"xxxxxxxx"'
    for value in (b"x" * 11, "x" * 9):
        with pytest.raises(PayloadTooLarge, match="raise max_payload_size") as caught:
            encode_payload(value, limit=10)
        assert (caught.value.what, caught.value.size, caught.value.limit) == ("payload", 11, 10)


@pytest.mark.parametrize("data", [b"", b"{", b"NaN", b"1e999", b'"\\ud800"', b"\xff", b"[" * 100_000, b"1" * 5_000])
def test_stored_bytes_that_are_not_json_are_undecodable(data: bytes) -> None:
    with pytest.raises(InvalidPayload, match="cannot be read as JSON"):
        decode_payload(data, JSON)


@given(st.binary())
def test_decoding_answers_or_refuses_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(InvalidPayload):
        decode_payload(data, JSON)


def test_headers_are_copied() -> None:
    headers = {"traceparent": "00-é"}
    checked = check_headers(headers)
    assert checked == headers
    assert checked is not headers
    assert check_headers({}) == {}


@pytest.mark.parametrize(
    "headers", [{"a": "\0"}, {"a\0": "x"}, {"": "x"}, {"a": 1}, {1: "a"}, {"a": "\ud800"}, {"\ud800": "a"}, {"a": None}]
)
def test_headers_that_a_store_cannot_keep_are_refused(headers: Any) -> None:
    with pytest.raises(InvalidName, match=r"^header "):
        check_headers(headers)


def test_headers_have_a_limit_in_bytes() -> None:
    assert check_headers({"a": "x" * 65_535})
    with pytest.raises(PayloadTooLarge, match="headers: 65,537 bytes"):
        check_headers({"a": "é" * 32_768})
