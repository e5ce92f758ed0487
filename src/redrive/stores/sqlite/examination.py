"""The examination of a whole file: its structure, its schema, its rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import apsw

from redrive.clock import Instant
from redrive.stores.relational.unrelated_rows import find_unrelated_rows
from redrive.stores.sqlite import schema
from redrive.stores.sqlite.session import Session

MOST_PROBLEMS = 10
"""Maximum number of damaged places of the structure that are named."""
_SCHEMA = "SELECT name, sql FROM sqlite_schema WHERE name LIKE 'redrive_%' AND sql IS NOT NULL"


def find_problems(connection: apsw.Connection) -> Iterator[str]:
    """Return what is wrong with a file, in one snapshot."""
    for (found,) in connection.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})").fetchall():
        if found != "ok":
            yield from str(found).splitlines()
    wanted, there = _definitions_of_a_new_file(), _definitions(connection)
    for name in wanted:
        if there.get(name) != wanted[name]:
            yield f"the definition of {name} is not the one that Redrive wrote"
    yield from find_unrelated_rows(Session(connection))


def _definitions(connection: apsw.Connection) -> dict[str, str]:
    """Return how tables and indexes are defined, regardless of line breaks."""
    rows: list[Any] = connection.execute(_SCHEMA).fetchall()
    return {name: " ".join(sql.split()) for name, sql in rows}


@cache
def _definitions_of_a_new_file() -> dict[str, str]:
    connection = apsw.Connection(":memory:")
    schema.migrate(connection, Instant(0))
    return _definitions(connection)
