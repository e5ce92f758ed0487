"""Output: tables for people, JSON for programs. Colours only where a person sees them."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec

from redrive.cli.forms import form
from redrive.cli.options import as_json
from redrive.clock import Instant
from redrive.model.duration import DAY, HOUR, MINUTE, SECOND

ID_DIGITS = 8
"""So many digits of an id are printed; they tell items apart."""
COLOURS = {
    "pending": "cyan", "active": "blue", "failed": "yellow", "completed": "green", "dead": "red",
    "archived": "bright_black", "moving": "magenta", "lost": "yellow", "redriven": "cyan", "removed": "bright_black",
    "finished": "green", "running": "blue", "watching": "cyan", "paused": "yellow", "stopped": "red",
    "cancelled": "bright_black", "ok": "green", "warn": "yellow", "fail": "red",
}  # fmt: skip
"""Statuses and outcomes, each with its colour."""
_WHOLE_ID = re.compile(r"\b[0-9a-f]{32}\b")
_GAP = "  "
_SHORTEST_TEXT = 20


def in_colour() -> bool:
    """Whether a person sees colours: a terminal, and nothing that says otherwise."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str = "", *, style: str | None = None) -> None:
    """A line for a person, to stdout."""
    click.echo(click.style(text, fg=style) if style and in_colour() else text)


def remark(text: str) -> None:
    """A line for a person that is no part of the output: to stderr, and not at all with `-o json`."""
    if not as_json():
        click.echo(text, err=True)


def print_json(value: Any) -> None:
    """A value for a program."""
    text = msgspec.json.format(msgspec.json.encode(form(value)), indent=2)
    click.echo(text.decode())


def print_json_line(value: Any) -> None:
    """One value on one line, at once: for output that goes on and on."""
    click.echo(msgspec.json.encode(form(value)).decode())
    sys.stdout.flush()


def short(id: str | None) -> str:
    """The digits of an id that are printed."""
    return "" if id is None else id[:ID_DIGITS]


def with_short_ids(text: str) -> str:
    """A text in which every whole id has the digits that are printed."""
    return _WHOLE_ID.sub(lambda found: short(found[0]), text)


def printable(text: str) -> str:
    """A text on one line that does nothing to a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char in "\n\r\t" else ascii(char)[1:-1] for char in text)


def ago(at: Instant | None, now: Instant | None = None) -> str:
    """How long ago, or in how long, in one unit: `5m ago`, `in 30s`."""
    if at is None:
        return ""
    passed = (Instant(time.time_ns() // 1000) if now is None else now) - at
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND)):
        if abs(passed) >= size:
            count = abs(passed) // size
            return f"{count}{unit} ago" if passed > 0 else f"in {count}{unit}"
    return "now"


def table(columns: Mapping[str, str], rows: Iterable[Sequence[object]], *, coloured: str | None = None) -> None:
    """Rows under their headings. A column is aligned as its value says: `<` or `>`; `~` is text that may be cut.

    `coloured` is the column whose words have colours. In a terminal lines are as long as it is wide; elsewhere as long
    as they need to be.
    """
    names = list(columns)
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max([_width(name), *(_width(row[place]) for row in cells)]) for place, name in enumerate(names)]
    _fit(widths, list(columns.values()))
    colour_of = names.index(coloured) if coloured and in_colour() else None
    click.echo(_line([name.upper() for name in names], widths, columns, None))
    for row in cells:
        click.echo(_line(row, widths, columns, colour_of))


def _fit(widths: list[int], kinds: list[str]) -> None:
    """Shorten the columns of text until the line fits, from the last on."""
    most = _columns()
    if most is None:
        return
    for place in reversed([place for place, kind in enumerate(kinds) if kind == "~"]):
        over = sum(widths) + len(_GAP) * (len(widths) - 1) - most
        if over > 0:
            widths[place] = max(min(_SHORTEST_TEXT, widths[place]), widths[place] - over)


def _columns() -> int | None:
    """How long a line may be. None: as long as it needs."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return shutil.get_terminal_size((100, 24)).columns
    return None


def _line(cells: Sequence[str], widths: Sequence[int], columns: Mapping[str, str], colour_of: int | None) -> str:
    parts = []
    for place, (cell, width, kind) in enumerate(zip(cells, widths, columns.values(), strict=True)):
        text = _cut(cell, width)
        padding = " " * (width - _width(text))
        if place == colour_of:
            text = click.style(text, fg=COLOURS.get(cell))
        parts.append(padding + text if kind == ">" else text + padding)
    return _GAP.join(parts).rstrip()


def _width(text: str) -> int:
    """How many columns a terminal needs for it."""
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
    """A status in its colour."""
    return click.style(word, fg=COLOURS.get(word)) if in_colour() else word


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and what they stand for, one on a line; what is None or empty is left out."""
    listed = [(name, printable(str(value))) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        say(f"  {name:{width}}  {value}")
