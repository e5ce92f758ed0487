"""Output: tables for people, JSON for programs as the server returns it (docs/reference/http.md)."""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec

from redrive.cli.common_options import as_json
from redrive.clock import Instant, SystemClock
from redrive.model.duration import DAY, HOUR, MINUTE, SECOND
from redrive.model.item import Item, Settled
from redrive.model.queue import QueueSettings
from redrive.model.text import visible, visible_json
from redrive.wire.json_views import item_view, view_of


def to_json_value(value: Any) -> Any:
    """Return the JSON form of a value of the broker, or of a list or table of such values."""
    match value:
        case Item():
            return item_view(value)
        case Settled():
            return {"status": "removed", **view_of(value)}
        case msgspec.Struct():
            return view_of(value)
        case Mapping():
            return {str(key): to_json_value(each) for key, each in value.items()}
        case list() | tuple():
            return [to_json_value(each) for each in value]
        case _:
            return value


def changed_settings(settings: QueueSettings) -> dict[str, Any]:
    """Return the settings that differ from their defaults, as arguments of `create_queue`."""
    usual = QueueSettings()
    view = view_of(settings)
    return {name: value for name, value in view.items() if getattr(settings, name) != getattr(usual, name)}


def setting_text(value: Any) -> str:
    """Return the value of a setting on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_table_text(each)}" for key, each in value.items()) or "none"
    return ", ".join(map(setting_text, value)) or "none" if isinstance(value, list | tuple) else str(value)


def _table_text(value: Any) -> str:
    """Return a value in a table: one that is a table itself gets braces."""
    return f"{{{setting_text(value)}}}" if isinstance(value, dict) else setting_text(value)


ID_DIGITS = 8
"""The number of digits of an id that are printed; they are enough to identify an item."""
COLOURS = {
    "pending": "cyan", "active": "blue", "failed": "yellow", "completed": "green", "dead": "red",
    "archived": "bright_black", "moving": "magenta", "lost": "yellow", "redriven": "cyan", "removed": "bright_black",
    "dropped": "bright_black", "breaker_opened": "red", "breaker_closed": "green",
    "finished": "green", "running": "blue", "watching": "cyan", "paused": "yellow", "stopped": "red",
    "cancelled": "bright_black", "ok": "green", "warn": "yellow", "fail": "red",
    "open": "red", "half_open": "yellow", "closing": "cyan",
}  # fmt: skip
"""Statuses and outcomes, each with its colour."""
_WHOLE_ID = re.compile(r"\b[0-9a-f]{32}\b")
_OUR_COLOURS = re.compile(r"(\x1b\[(?:0|[39][0-7])m)")
_SPACES = dict.fromkeys(map(ord, "\n\r\t"), " ")
_GAP = "  "
_SHORTEST_TEXT = 20
"""The width to which columns of text are cut before a less important column is omitted."""
_BAREST_TEXT = 8
"""The width to which they are cut before an important column is omitted."""


def in_colour() -> bool:
    """Return whether stdout is a terminal, and neither NO_COLOR nor TERM=dumb is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_line(text: str = "", *, style: str | None = None) -> None:
    """Print a line for a person to stdout. Control characters are escaped, except line ends and our own colours."""
    shown = escape_text(text)
    click.echo(click.style(shown, fg=style) if style and in_colour() else shown)


def escape_text(text: str) -> str:
    """Return a text of one or more lines that is safe for a terminal: its only escapes are our own colours."""
    ours = _OUR_COLOURS.split(text) if in_colour() else [text]
    return "".join(part if at % 2 else visible(part, "\n") for at, part in enumerate(ours))


def print_note(text: str) -> None:
    """Print a line for a person that is no part of the output: to stderr, and not at all with `-o json`."""
    if not as_json():
        click.echo(visible(text, "\n"), err=True)


def print_json(value: Any) -> None:
    """Print a value for a program."""
    text = msgspec.json.format(msgspec.json.encode(to_json_value(value)), indent=2)
    click.echo(visible_json(text.decode()))


def print_json_line(value: Any) -> None:
    """Print one value on one line and flush: for output that does not end."""
    click.echo(visible_json(msgspec.json.encode(to_json_value(value)).decode()))
    sys.stdout.flush()


def short(id: str | None) -> str:
    """Return the digits of an id that are printed."""
    return "" if id is None else id[:ID_DIGITS]


def with_short_ids(text: str) -> str:
    """Return a text with every complete id cut to the digits that are printed."""
    return _WHOLE_ID.sub(lambda found: short(found[0]), text)


def escape_line(text: str) -> str:
    """Return a text on one line, without control characters."""
    return visible(text if text.isprintable() else text.translate(_SPACES))


def now() -> Instant:
    """Return the current time of this machine."""
    return SystemClock().now()


def ago(at: Instant | None, since: Instant | None = None) -> str:
    """Return the distance to a time in one unit: `5m ago`, `in 30s`; from now, or from another instant."""
    if at is None:
        return ""
    passed = (now() if since is None else since) - at
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND)):
        if abs(passed) >= size:
            count = abs(passed) // size
            return f"{count}{unit} ago" if passed > 0 else f"in {count}{unit}"
    return "now"


def table(
    columns: Mapping[str, str],
    rows: Iterable[Sequence[object]],
    *,
    coloured: str | None = None,
    least: Sequence[str] = (),
) -> None:
    """Print rows under their headings. The value of a column aligns it: `<` or `>`; `~` is text that may be cut.

    `coloured` is the column whose words have colours. In a terminal, lines fit its width, and columns without room are
    omitted, those in `least` first; elsewhere lines have any length. The first column is never omitted.
    """
    names = list(columns)
    cells = [[escape_line(str(cell)) for cell in row] for row in rows]
    widths = [max([_width(name), *(_width(row[place]) for row in cells)]) for place, name in enumerate(names)]
    shown = _fit(widths, columns, least)
    colour_of = names.index(coloured) if coloured and in_colour() else None
    for row, colour in [([name.upper() for name in names], None), *((row, colour_of) for row in cells)]:
        click.echo(_line(row, widths, columns, shown, colour))


def _fit(widths: list[int], columns: Mapping[str, str], least: Sequence[str]) -> list[int]:
    """Return the columns that have room. Those of text are shortened in `widths` to fit, the last first."""
    names, shown = list(columns), list(range(len(columns)))
    most = _columns()
    if most is None:
        return shown
    matter = [name for name in reversed(names[1:]) if name not in least]
    for shortest, going in ((_SHORTEST_TEXT, least), (_BAREST_TEXT, matter)):
        for name in going:
            needed = [min(widths[at], shortest) if columns[names[at]] == "~" else widths[at] for at in shown]
            if _length(needed) <= most:
                break
            shown.remove(names.index(name))
    for shortest in (_SHORTEST_TEXT, _BAREST_TEXT, 1):
        for at in reversed([at for at in shown if columns[names[at]] == "~"]):
            over = _length([widths[each] for each in shown]) - most
            if over > 0:
                widths[at] = max(min(shortest, widths[at]), widths[at] - over)
    return shown


def _length(widths: Sequence[int]) -> int:
    """Return the length of a line of such columns."""
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _columns() -> int | None:
    """Return the longest length of a line. None: without a limit."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return shutil.get_terminal_size((100, 24)).columns
    return None


def _line(
    cells: Sequence[str],
    widths: Sequence[int],
    columns: Mapping[str, str],
    shown: Sequence[int],
    colour_of: int | None,
) -> str:
    kinds = list(columns.values())
    parts = []
    for place in shown:
        text = _cut(cells[place], widths[place])
        padding = " " * (widths[place] - _width(text))
        if place == colour_of:
            text = click.style(text, fg=COLOURS.get(cells[place]))
        parts.append(padding + text if kinds[place] == ">" else text + padding)
    return _GAP.join(parts).rstrip()


def _width(text: str) -> int:
    """Return the number of columns that a terminal needs for a text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _cut(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    kept = ""
    for char in text:
        if _width(kept + char) > width - 1:
            break
        kept += char
    return kept + "…"


def coloured(word: str) -> str:
    """Return a status in its colour."""
    return click.style(word, fg=COLOURS.get(word)) if in_colour() else word


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names with their values, one on a line; values that are None or empty are omitted."""
    listed = [(name, escape_line(str(value))) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        print_line(f"  {name:{width}}  {value}")
