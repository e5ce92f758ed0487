"""The shared statements in the words of PostgreSQL."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache

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
    """A statement for tables in that schema. `locking` is for a transaction that writes: rows are locked as marked."""
    text = _NEVER.sub("", statement)
    text = _MARKED.sub(r"\1" if locking else "", text)
    text = _ALWAYS.sub(r"\1", text)
    text = _LISTED.sub(r"= ANY(\1::bigint[])", text)
    text = _NAMED_TABLE.sub(r"unnest(\1::bigint[]) WITH ORDINALITY AS \2(value, rowid)", text)
    text = _TABLE.sub(r"unnest(\1) WITH ORDINALITY AS listed(value, rowid)", text)
    text = _BLOB.sub(r"convert_to(\1, 'UTF8')", text)
    # In this order, as SQLite takes it, and each by its index: not as the planner finds good when all looks empty.
    text = _LOOKED_UP.sub(r"JOIN LATERAL (SELECT * FROM \1 AS \2 WHERE \3 OFFSET 0) AS \2 ON true", text)
    text = _INDEX.sub("", text).replace("CROSS JOIN", "JOIN")
    text = _OWN.sub(lambda name: f'"{schema}".{name[0]}', text)
    numbers = itertools.count(1)
    return _VALUE.sub(lambda value: f"${value[1] or next(numbers)}", text)
