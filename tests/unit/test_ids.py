"""Ids and tokens: what they carry, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import InvalidName
from redrive.model.ids import (
    KEY_BITS,
    PARTITION_BITS,
    SALT_BITS,
    item_id_of,
    make_id,
    make_id_suffix,
    make_token,
    parse_id,
    parse_token,
    partition_of,
)

numbers = st.integers(0, 2**63 - 1)
salts = st.integers(0, 2**SALT_BITS - 1)
partitions = st.integers(0, 2**PARTITION_BITS - 1)
keys = st.integers(0, 2**KEY_BITS - 1)


@given(numbers, salts, partitions)
def test_id_carries_number_salt_and_partition(number: int, salt: int, partition: int) -> None:
    tail = make_id_suffix(salt, partition)
    id = make_id(number, tail)
    assert len(id) == 32
    assert parse_id(id) == (number, tail)
    assert partition_of(id) == partition
    assert tail < 2**63, "every store keeps it in a signed integer"


@given(numbers, salts, partitions, keys)
def test_token_carries_the_id_and_the_key_of_the_lease(number: int, salt: int, partition: int, key: int) -> None:
    tail = make_id_suffix(salt, partition)
    token = make_token(number, tail, key)
    assert parse_token(token) == (number, tail, key)
    assert item_id_of(token) == make_id(number, tail)
    assert partition_of(token) == partition


@given(numbers, numbers, salts, salts)
def test_later_numbers_are_larger_whatever_the_salt(one: int, two: int, salt: int, other: int) -> None:
    first, second = (make_id(*pair) for pair in ((one, make_id_suffix(salt)), (two, make_id_suffix(other))))
    assert (parse_id(first)[0] < parse_id(second)[0]) == (one < two)


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 33, "g" * 32, "0x" + "0" * 30, "A" * 32, "-" * 32, "٣" * 32, " " * 32]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidName, match="is not 32 hexadecimal digits"):
        parse_id(text)
