"""Many rows with one statement: a statement for one row, made into one that reads them from arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from redrive.stores.postgres.arrays import Bigints, Blobs, Texts
from redrive.stores.relational.session import Row

_INSERT = re.compile(r"\s*(INSERT INTO \w+(?: AS \w+)? \([\w\s,]+\))\s+VALUES \((\?(?:, \?)*)\)(.*)", re.DOTALL)
_DELETE = re.compile(r"(DELETE FROM \w+ WHERE \w+) = \?")
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
    if deleting := _DELETE.fullmatch(statement):
        return f"{deleting[1]} = ANY(?::bigint[])", [Bigints(value for (value,) in rows)]
    inserting = _INSERT.fullmatch(statement)
    if inserting is None or len(inserting[2].split(",")) != len(rows[0]):
        return None
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
    selected = f"SELECT {', '.join(columns)} FROM unnest({source}) AS given({names})"
    return f"{inserting[1]} {selected}{_joined(inserting[3])}", values


def _joined(rest: str) -> str:
    """What comes after the values: where rows that are there already are changed, the grammar wants a condition."""
    return f" WHERE true {rest}" if rest.strip() else rest
