"""The shared SQL in the dialect of PostgreSQL: translation, binary arrays, and statements for many rows."""

from __future__ import annotations

import itertools
import re
import struct
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, ClassVar

from psycopg.adapt import Dumper
from psycopg.pq import Format

from redrive.stores.relational.session import Row

_MARKED = re.compile(r"/\*\+(.*?)\*/", re.DOTALL)
_ALWAYS = re.compile(r"/\*=(.*?)\*/", re.DOTALL)
_NEVER = re.compile(r"/\*-\*/.*?/\*-\*/", re.DOTALL)
_LISTED = re.compile(r"\bIN carray\((\?\d*)\)")
_NAMED_TABLE = re.compile(r"\bcarray\((\?\d*)\) AS (\w+)")
_TABLE = re.compile(r"\bcarray\((\?\d*)\)")
_BLOB = re.compile(r"\bCAST\((.*?) AS BLOB\)")
_COLUMN = r"\w+\.\w+"
_EQUAL = rf"{_COLUMN} = (?:{_COLUMN}|\d+ - {_COLUMN}|coalesce\({_COLUMN}, {_COLUMN}\))"
_LOOKED_UP = re.compile(rf"\bCROSS JOIN (redrive_\w+) AS (\w+) ON ({_EQUAL}(?:\s+AND {_EQUAL})*)")
_INDEX = re.compile(r"\bINDEXED BY \w+")
_OWN = re.compile(r"\bredrive_\w+")
_VALUE = re.compile(r"\?(\d*)")


@lru_cache(maxsize=1024)
def translate(statement: str, schema: str, locking: bool) -> str:
    """Translate a statement for tables in that schema. `locking`: rows are locked as marked, in a transaction that
    writes."""
    text = _NEVER.sub("", statement)
    text = _MARKED.sub(r"\1" if locking else "", text)
    text = _ALWAYS.sub(r"\1", text)
    text = _LISTED.sub(r"= ANY(\1::bigint[])", text)
    text = _NAMED_TABLE.sub(r"unnest(\1::bigint[]) WITH ORDINALITY AS \2(value, rowid)", text)
    text = _TABLE.sub(r"unnest(\1) WITH ORDINALITY AS listed(value, rowid)", text)
    text = _BLOB.sub(r"convert_to(\1, 'UTF8')", text)
    # In this order, as in SQLite, and each by its index, not by the planner's choice for tables that seem empty.
    text = _LOOKED_UP.sub(r"JOIN LATERAL (SELECT * FROM \1 AS \2 WHERE \3 OFFSET 0) AS \2 ON true", text)
    text = _INDEX.sub("", text).replace("CROSS JOIN", "JOIN")
    text = _OWN.sub(lambda name: f'"{schema}".{name[0]}', text)
    numbers = itertools.count(1)
    return _VALUE.sub(lambda value: f"${value[1] or next(numbers)}", text)


_BIGINT, _TEXT, _BYTEA = 20, 25, 17
_ABSENT = struct.pack("!i", -1)
_length = struct.Struct("!i").pack


class Bigints(list[int | None]):
    """A bigint[]."""


class Texts(list[str | None]):
    """A text[]."""


class Blobs(list[bytes | None]):
    """A bytea[]."""


class _ArrayDumper(Dumper):
    format = Format.BINARY
    element: ClassVar[int]

    def dump(self, obj: Any) -> bytes:
        absent = None in obj
        if not obj:
            return struct.pack("!iii", 0, 0, self.element)
        header = struct.pack("!iiiii", 1, int(absent), self.element, len(obj), 1)
        return header + (self._absent(obj) if absent else self._all(obj))

    def _all(self, values: Any) -> bytes:
        """Return the elements, each after its length."""
        encoded = self._encoded(values)
        return b"".join(chain.from_iterable(zip(map(_length, map(len, encoded)), encoded, strict=True)))

    def _absent(self, values: Any) -> bytes:
        """Return the elements where some are NULL."""
        encoded = iter(self._encoded(value for value in values if value is not None))
        return b"".join(_ABSENT if value is None else _length(len(each := next(encoded))) + each for value in values)

    @abstractmethod
    def _encoded(self, values: Iterable[Any]) -> list[bytes]:
        """Return each element in the server's format."""


class _BigintsDumper(_ArrayDumper):
    oid, element = 1016, _BIGINT

    def _all(self, values: Any) -> bytes:
        return struct.pack("!" + "iq" * len(values), *chain.from_iterable(zip(repeat(8), values)))

    def _encoded(self, values: Iterable[Any]) -> list[bytes]:
        return [struct.pack("!q", value) for value in values]


class _TextsDumper(_ArrayDumper):
    oid, element = 1009, _TEXT

    def _encoded(self, values: Iterable[Any]) -> list[bytes]:
        return [value.encode() for value in values]


class _BlobsDumper(_ArrayDumper):
    oid, element = 1001, _BYTEA

    def _encoded(self, values: Iterable[Any]) -> list[bytes]:
        return list(values)


def register(adapters: Any) -> None:
    """Register the dumpers of these array types with psycopg."""
    adapters.register_dumper(Bigints, _BigintsDumper)
    adapters.register_dumper(Texts, _TextsDumper)
    adapters.register_dumper(Blobs, _BlobsDumper)


_GIVEN = r"(?:\?|\(SELECT \w+ FROM \w+ WHERE \w+ = \?\))"
_INSERT = re.compile(
    rf"\s*(INSERT INTO \w+(?: AS \w+)? \([\w\s,]+\))\s+VALUES \(({_GIVEN}(?:, {_GIVEN})*)\)(.*)", re.DOTALL
)
_DELETE_BY_NUMBER = re.compile(r"(DELETE FROM \w+ WHERE (?:item_no|death_no)) = \?")
_JOINED = (
    (
        re.compile(r"(DELETE FROM \w+) WHERE (\w+ = \?(?: AND \w+ = \?)*(?: AND \w+ = \d+)?)"),
        "{0} USING {2} WHERE {1}",
    ),
    (
        re.compile(r"(UPDATE \w+) SET (\w+ = \?(?:, \w+ = \?)*) WHERE (\w+ = \?)"),
        "{0} SET {1} FROM {3} WHERE {2}",
    ),
)
"""Statements that change rows, and their form for many rows: their parts, and last the table of values."""
_PLACEHOLDER = re.compile(r"\?")
_ARRAYS: dict[type, tuple[str, type[list[Any]]]] = {
    int: ("bigint", Bigints),
    bool: ("bigint", Bigints),
    str: ("text", Texts),
    bytes: ("bytea", Blobs),
}
_BETWEEN = "\x1f"
"""Separator of words that are one value: arrays within an array must have equal lengths."""


def multi_row(statement: str, rows: Sequence[Row]) -> tuple[str, list[Any]] | None:
    """Return the statement for all rows and its values; None if it must be executed for each row."""
    if deleting := _DELETE_BY_NUMBER.fullmatch(statement):
        return f"{deleting[1]} = ANY(?::bigint[])", [Bigints(value for (value,) in rows)]
    for pattern, joined in _JOINED:
        if found := pattern.fullmatch(statement):
            columns, source, values = _given(rows)
            return joined.format(*_filled(found.groups(), columns), source), values
    inserting = _INSERT.fullmatch(statement)
    if inserting is None or inserting[2].count("?") != len(rows[0]):
        return None
    columns, source, values = _given(rows)
    (selected,) = _filled((inserting[2],), columns)
    return f"{inserting[1]} SELECT {selected} FROM {source}{_where(inserting[3])}", values


def _given(rows: Sequence[Row]) -> tuple[list[str], str, list[Any]]:
    """Return an expression for each value of a row, the table that provides them, and the values of that table."""
    columns: list[str] = []
    arrays: list[tuple[str, str]] = []
    values: list[Any] = []
    for item_row, column in enumerate(zip(*rows, strict=True)):
        first = next((value for value in column if value is not None), None)
        if first is None:
            columns.append("NULL")
            continue
        name = f"c{item_row}"
        if isinstance(first, list):
            columns.append(f"string_to_array({name}, E'{_BETWEEN}')")
            arrays.append((name, "text"))
            values.append(Texts(_BETWEEN.join(value) for value in column))
        else:
            kind, array = _ARRAYS[type(first)]
            columns.append(name)
            arrays.append((name, kind))
            values.append(array(column))
    names = ", ".join(name for name, _ in arrays)
    source = ", ".join(f"?::{kind}[]" for _, kind in arrays)
    return columns, f"unnest({source}) AS given({names})", values


def _filled(parts: Iterable[str], columns: Sequence[str]) -> list[str]:
    """Return parts of a statement with these expressions for its placeholders, in order."""
    rest = iter(columns)
    return [_PLACEHOLDER.sub(lambda _: next(rest), part) for part in parts]


def _where(rest: str) -> str:
    """Return the clauses after the values. The grammar requires a condition before ON CONFLICT."""
    return f" WHERE true {rest}" if rest.strip() else rest
