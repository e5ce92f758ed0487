"""The capture queues of a file: `[capture]` is the queue `captured`, `[capture.NAME]` another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redrive.capture.capture_settings import DEFAULT_QUEUE, NAMES, RANGES, parse_setting
from redrive.config.table_reader import Table, described
from redrive.errors import InvalidSetting


def read_captures(table: Table) -> dict[str, dict[str, Any]]:
    """Return the settings that the file has for each capture queue. A setting that it omits has its default."""
    own = {key: value for key, value in table.values.items() if key in NAMES or not isinstance(value, dict)}
    names = [key for key in table.values if key not in own]
    found = {DEFAULT_QUEUE: _read_settings(Table(table.problems, table.path, own))} if own or not names else {}
    for name in names:
        if table.named(name, name) is None:
            continue
        if name == DEFAULT_QUEUE:
            table.add_problem(name, f"is the queue of [capture] itself; move its keys to [capture], without .{name}")
        found[name] = _read_settings(table.subtable(name))
    return found


def _read_settings(table: Table) -> dict[str, Any]:
    table.check_keys(NAMES)
    return {key: _read_setting(table, key) for key in NAMES if key in table.values}


def _read_setting(table: Table, key: str) -> Any:
    if key in RANGES:
        smallest, largest = RANGES[key]
        return table.count(key, smallest, smallest, largest)
    if key != "default_retry_policy":
        return table.flag(key)
    value = table.values[key]
    try:
        return parse_setting(key, value if isinstance(value, str) else described(value), key)
    except InvalidSetting as error:
        table.add_problem(key, error.problem)
        return None


def check_captures(tables: Mapping[str, Table], captures: Mapping[str, Any], external: Mapping[str, Any]) -> None:
    """Report each capture queue that is external as well: its tasks come from programs."""
    for name in captures:
        if external.get(name) is not None:
            tables[name].add_problem("type", f"is not for a capture queue, and [capture] makes '{name}' one")
