"""Every row of a SQLite file, so that those of two files can be compared.

Numbers are allocated in an order that is no promise. So each is shown as its place among those of its kind, and an id
as a whole, which is then renamed. What keeps no order is sorted. Left out are tokens, keys that nothing reads, the
epoch, and what only serves to find items or to skip work (`enqueue_at`, `has_replies`): that it serves is checked.
Counts are shown as sums, since maintenance rolls them up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import apsw

from redrive.contract.replies import REPLY_TO
from redrive.model.ids import make_id

Row = dict[str, Any]
NUMBERS = {
    "item": ("item_no", "old_item_no"),
    "position": ("seq",),
    "death": ("death_no",),
}
"""The kinds of numbers, and the columns that have them in any table."""
SUFFIXES = {"id_suffix": "item_no", "old_id_suffix": "old_item_no"}
LEFT_OUT = {"token", "epoch", "enqueue_at", "has_replies"}
KEYS = {"redrive_history", "redrive_death", "redrive_moving", "redrive_audit", "redrive_feed", "redrive_operation"}
"""Tables whose first column numbers the rows: their order is compared, not the numbers."""
COUNTS = ("redrive_count", "redrive_count_delta")
SEARCH, TOMBSTONES = "redrive_search", "redrive_search_tombstone"
_ID = re.compile("[0-9a-f]{32}")
_NUMBERS = re.compile(rb'"(mark|position)":\d+')
"""In the data of an operation: they are beside its items, whose numbers are shown as places."""
_NO_LIMIT = b'"limit":null,'
"""In the data of an operation: the frozen store does not know it."""


def all_rows(path: Path) -> dict[str, list[Any]]:
    """By table."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        tables = {name: _rows_of(connection, name) for name in _tables(connection)}
        terms = _terms(connection)
    finally:
        connection.close()
    _check_ready_items(tables)
    _check_queues_with_replies(tables)
    kept = [rows for name, rows in tables.items() if name != TOMBSTONES]
    places = {kind: _places(columns, kept) for kind, columns in NUMBERS.items()}
    _replace_operation_numbers(tables)
    shown = {
        name: _in_order(name, [_shown(row, places) for row in rows])
        for name, rows in tables.items()
        if name != TOMBSTONES
    }
    shown[SEARCH] = _search(terms, tables, places["death"])
    shown["counts"] = _sums(shown.pop(name) for name in COUNTS)
    return shown


def _tables(connection: apsw.Connection) -> list[str]:
    statement = (
        f"SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'redrive_*' AND name NOT GLOB '{SEARCH}'"
    )
    names = [name for (name,) in connection.execute(statement)]
    return [name for name in names if not name.startswith(f"{SEARCH}_") or name == TOMBSTONES]


def _rows_of(connection: apsw.Connection, table: str) -> list[Row]:
    cursor = connection.execute(f"SELECT * FROM {table}")
    rows = list(cursor)
    names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _terms(connection: apsw.Connection) -> list[tuple[int, str]]:
    connection.execute(f"CREATE VIRTUAL TABLE temp.terms USING fts5vocab(main, {SEARCH}, 'instance')")
    return sorted(connection.execute("SELECT doc, term FROM temp.terms"))


def _places(columns: tuple[str, ...], tables: Iterable[list[Row]]) -> Mapping[int, int]:
    found = {row[column] for rows in tables for row in rows for column in columns if row.get(column) is not None}
    return {number: place for place, number in enumerate(sorted(found))}


def _check_ready_items(tables: dict[str, list[Row]]) -> None:
    """A ready item that never went to the end again is found by the time that its content has, in no other way."""
    items = {row["item_no"]: row for row in tables["redrive_item"]}
    for row in tables["redrive_ready"]:
        item = items[row["item_no"]]
        at = item["put_at"] if item["enqueue_at"] is None else item["enqueue_at"]
        assert row["seq"] != row["item_no"] or row["ready_at"] == at, f"cannot be found: {row}"


def _check_queues_with_replies(tables: dict[str, list[Row]]) -> None:
    """A queue without the mark is not looked at for items that want a reply."""
    marked = {row["key"] for row in tables["redrive_queue"] if row["has_replies"]}
    for row in tables["redrive_item"]:
        assert REPLY_TO not in (row["headers"] or "") or row["queue"] in marked, f"would not be answered: {row}"


def _replace_operation_numbers(tables: dict[str, list[Row]]) -> None:
    """The items of an operation name it by its number: shown is the id, which is in the row of the operation. How far
    it got is seen by what it changes next."""
    ids = {row["number"]: row["id"] for row in tables["redrive_operation"]}
    for row in tables["redrive_operation"]:
        row["data"] = _NUMBERS.sub(rb'"\1":0', row["data"]).replace(_NO_LIMIT, b"")
    for row in tables["redrive_operation_item"]:
        row["operation"] = ids[row["operation"]]


def _shown(row: Row, places: Mapping[str, Mapping[int, int]]) -> Row:
    kinds = {column: kind for kind, columns in NUMBERS.items() for column in columns}
    shown: Row = {}
    for column, value in row.items():
        if column in SUFFIXES:
            shown["id"] = make_id(row[SUFFIXES[column]], value)
        elif column not in LEFT_OUT and not (column == "version" and "settings" in row):  # of a queue: the epoch
            place = value if value is None or column not in kinds else places[kinds[column]][value]
            shown[column] = place
    if "digest" in row and row["expires_at"] < 0:  # the key ends with its item, and is looked at again some time
        shown["expires_at"] = "with its item"
    return shown


def _in_order(table: str, rows: list[Row]) -> list[Row]:
    if table not in KEYS:
        return sorted(rows, key=lambda row: _ID.sub("", repr(row)))
    key = next(iter(rows[0])) if rows else ""
    rows.sort(key=lambda row: row[key])
    for row in rows:
        del row[key]
    if table in ("redrive_feed", "redrive_audit"):  # stores take the queues of one instant in any order
        rows.sort(key=lambda row: (row["at"], row["queue"] or ""))
    elif table in ("redrive_history", "redrive_death"):
        rows.sort(key=lambda row: row["item_no"])
    return rows


def _search(terms: list[tuple[int, str]], tables: dict[str, list[Row]], deaths: Mapping[int, int]) -> list[Any]:
    """The terms of each letter. What is left of former ones is marked to be deleted, or it would be found."""
    letters = {row["death_no"] for row in tables["redrive_dead_letter"]}
    marked = {row["death_no"] for row in tables[TOMBSTONES]}
    left = {death for death, _ in terms} - letters - marked
    assert not left, f"terms of no letter that are never deleted: {sorted(left)}"
    return [(deaths[death], term) for death, term in terms if death in letters and death not in marked]


def _sums(tables: Iterable[list[Row]]) -> list[Any]:
    sums: dict[int, dict[str, int]] = {}
    for row in (row for rows in tables for row in rows):
        of_queue = sums.setdefault(row["queue"], {})
        for name, count in row.items():
            if name not in ("key", "queue"):
                of_queue[name] = of_queue.get(name, 0) + count
    return [(queue, sorted(counts.items())) for queue, counts in sorted(sums.items()) if any(counts.values())]
