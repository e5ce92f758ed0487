"""Many rows with one statement: a statement for one row, made into one that reads them from arrays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from redrive.stores.postgres.arrays import Bigints, Blobs, Texts
from redrive.stores.relational.session import Row

_INSERT = re.compile(r"\s*(INSERT INTO \w+(?: AS \w+)? \([\w\s,]+\))\s+VALUES \((\?(?:, \?)*)\)(.*)", re.DOTALL)
_DELETE_BY_NUMBER = re.compile(r"(DELETE FROM \w+ WHERE (?:n|d)) = \?")
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
"""Statements that change rows, and how they change many: their parts, and last the table of values."""
_PLACEHOLDER = re.compile(r"\?")
_ARRAYS: dict[type, tuple[str, type[list[Any]]]] = {
    int: ("bigint", Bigints),
    bool: ("bigint", Bigints),
    str: ("text", Texts),
    bytes: ("bytea", Blobs),
}
_BETWEEN = "\x1f"
"""What words that are one value are joined by: an array of arrays has to have the same length everywhere."""


def together(statement: str, rows: Sequence[Row]) -> tuple[str, list[Any]] | None:
    """The statement for all rows, and its values; None where it has to be executed for each."""
    if deleting := _DELETE_BY_NUMBER.fullmatch(statement):
        return f"{deleting[1]} = ANY(?::bigint[])", [Bigints(value for (value,) in rows)]
    for pattern, joined in _JOINED:
        if found := pattern.fullmatch(statement):
            columns, source, values = _given(rows)
            return joined.format(*_filled(found.groups(), columns), source), values
    inserting = _INSERT.fullmatch(statement)
    if inserting is None or len(inserting[2].split(",")) != len(rows[0]):
        return None
    columns, source, values = _given(rows)
    return f"{inserting[1]} SELECT {', '.join(columns)} FROM {source}{_where(inserting[3])}", values


def _given(rows: Sequence[Row]) -> tuple[list[str], str, list[Any]]:
    """What stands for each value of a row, the table from which it is read, and the values of that."""
    columns: list[str] = []
    arrays: list[tuple[str, str]] = []
    values: list[Any] = []
    for place, column in enumerate(zip(*rows, strict=True)):
        first = next((value for value in column if value is not None), None)
        if first is None:
            columns.append("NULL")
            continue
        name = f"c{place}"
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
    """Parts of a statement with what stands for each value, one after the other."""
    rest = iter(columns)
    return [_PLACEHOLDER.sub(lambda _: next(rest), part) for part in parts]


def _where(rest: str) -> str:
    """What comes after the values: where rows that are there already are changed, the grammar wants a condition."""
    return f" WHERE true {rest}" if rest.strip() else rest
