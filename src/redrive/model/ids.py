"""Ids and lease tokens.

An id has 128 bits and 32 hexadecimal digits: a random salt, the partition, and a number that grows with time.

    7f3a90c14e52 0000 000cd1f0a1b2c800
    salt (47 bit) |    number: microseconds since 1970 × 2048, plus a count within the microsecond
                  partition (16 bit)

The number comes last in the text and first in every index: rows are written in the order of time, while the first
eight digits, which users type and read, differ from item to item. A token, the fencing token of a lease, is the id and
16 more digits that cannot be guessed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import NewType

from redrive.errors import InvalidInput, InvalidName, short_repr
from redrive.model.caller_input import checking_input, exact_str, listed

ItemId = NewType("ItemId", str)
Token = NewType("Token", str)

NUMBERS_PER_MICROSECOND = 2048
SALT_BITS = 47
PARTITION_BITS = 16
KEY_BITS = 63
MAX_NUMBER = 2**63 - 1
"""The largest signed integer of every store."""

ID_DIGITS = 32
TOKEN_DIGITS = 48
HEXADECIMAL = frozenset("0123456789abcdef")
_ARE_DIGITS = re.compile("[0-9a-f]+").fullmatch
# Converting bytes to digits takes less than half the time of formatting numbers.
_pack_id = struct.Struct(">QQ").pack
_pack_token = struct.Struct(">QQQ").pack


def make_id(number: int, tail: int) -> ItemId:
    """Return the id of a number and a tail (salt and partition, see `make_id_suffix`)."""
    return ItemId(_pack_id(tail, number).hex())


def make_id_suffix(salt: int, partition: int = 0) -> int:
    """Return salt and partition in 63 bits, so that every store can keep them in a signed integer."""
    return salt << PARTITION_BITS | partition


def parse_id(id: str) -> tuple[int, int]:
    """Return the number and the tail of an id."""
    return _parse("item id", id, ID_DIGITS)


def ids_with_prefix(prefix: str) -> tuple[range, range]:
    """Return the ranges of numbers and tails of all ids with this prefix, up to `MAX_NUMBER`."""
    (first, lowest), (last, highest) = (parse_id(prefix.ljust(ID_DIGITS, digit)) for digit in "0f")
    return range(first, min(last, MAX_NUMBER) + 1), range(lowest, min(highest, MAX_NUMBER) + 1)


def make_token(number: int, tail: int, key: int) -> Token:
    """Return the token of the lease with that key on that item."""
    return Token(_pack_token(tail, number, key).hex())


def parse_token(token: str) -> tuple[int, int, int]:
    """Return the number and the tail of the item, and the key of the lease."""
    number, tail = _parse("lease token", token, TOKEN_DIGITS)
    return number, tail, int(token[ID_DIGITS:], 16)


def check_id(id: object) -> ItemId:
    """Return the id as a plain str. Raise InvalidName if it does not have the form of an id."""
    parse_id(id)  # type: ignore[arg-type]
    return ItemId(exact_str(id))  # type: ignore[arg-type]


def ids_of(ids: object, most: int, what: str, where: str) -> tuple[ItemId, ...]:
    """Return one id or several as a tuple. In errors, `what` is the accepted input and `where` the unit of `most`."""
    with checking_input("ids"):
        if isinstance(ids, Iterable) and not isinstance(ids, bytes | bytearray):
            given = (ids,) if isinstance(ids, str) else listed("ids", ids, most)
            if len(given) > most:
                raise InvalidInput(f"more than {most:,} ids in one {where}, and that is the limit; make several calls")
            return tuple(map(check_id, given))
    raise InvalidInput(f"ids are {what}, not {short_repr(ids, 60)}; the id of an item is item.id")


def item_id_of(token: Token) -> ItemId:
    """Return the id of the item of a token."""
    return ItemId(token[:ID_DIGITS])


RESULTS = "#"
"""The first character of result topics. No queue name starts with it."""
_TOPIC_DIGITS = 4


def result_topic(id: ItemId) -> str:
    """Return the topic that wakes waiters for the end of an item: one of 65,536, by random digits of its id."""
    return RESULTS + id[:_TOPIC_DIGITS]


def partition_of(id: str) -> int:
    """Return the partition of an item or lease."""
    return parse_id(id[:ID_DIGITS])[1] & ((1 << PARTITION_BITS) - 1)


def _parse(what: str, text: str, digits: int) -> tuple[int, int]:
    try:
        if type(text) is not str:
            text = exact_str(text)
        if len(text) != digits or _ARE_DIGITS(text) is None:
            raise ValueError
        return int(text[16:32], 16), int(text[:16], 16)
    except (ValueError, TypeError):
        raise InvalidName(what, text, f"is not {digits} hexadecimal digits; {_what_to_do(what, text)}") from None


def _what_to_do(what: str, text: object) -> str:
    if _has_id(text):
        return "pass on its .id"
    if what == "item id" and type(text) is str and 0 < len(text) < ID_DIGITS and set(text) <= HEXADECIMAL:
        return f"the condition id_prefix {text!r} finds items of any status by the first ones"
    return "pass it on as you received it"


def _has_id(value: object) -> bool:
    try:
        return hasattr(value, "id")
    except Exception:
        return False
