"""A terminal in which dead letters of one cause are redriven: what the commands print, on an SQLite file.

Ids differ from run to run. The picture has fixed ones in their places, so that it changes only when the output of a
command does.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from xml.sax.saxutils import escape, unescape

from docs.images.card import document
from rich.ansi import AnsiDecoder
from rich.style import Style
from rich.text import Text

from redrive import Broker, connect
from redrive.testing import FakeClock

TITLE = "A terminal: dead letters grouped by cause, a redrive with canaries and a rate limit, and its undo"
CANARIES = 5
COMMANDS = (
    "redrive dead groups",
    f"redrive dead redrive --group {{group}} --canary {CANARIES} --rate 200/s --yes 78",
    "redrive undo {operation} --yes any",
)
COLUMNS = 100

_CANARY_FRAME = "canaries"
_ID = re.compile(r"\b[0-9a-f]{8}\b")
_FRAME = re.compile(r"\r?\x1b\[2K")
_CONTROLS = re.compile(r"\x1b\[(?:\?25[lh]|1A)|\r")
_REMAINING = re.compile(r"[\d-]:[\d-]{2}:[\d-]{2}")
_TEXT = re.compile(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>')
_CELL, _LINE, _MARGIN, _FONT = 7.83, 19, 20, 13
_GREY = "#6e7681"
_COLOURS = {2: "#56d364", 6: "#76e3ea", 197: "#ff7b72"}
"""Colours of a terminal by their numbers; all others are grey."""
_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
_STYLE = f"""\
.terminal {{ fill: #0d1117; stroke: #3d444d }}
.screen text {{ font: {_FONT}px {_FONTS}; fill: #d1d7e0 }}
.screen .command {{ fill: #ffffff; font-weight: 600 }}
.screen .prompt {{ fill: #56d364 }}
"""


def charge(order: int, amount: object) -> None:
    """Fail as a shop does while its payment gateway is down."""
    if not isinstance(amount, float):
        raise ValueError(f"order {order}: amount {amount!r} is not a number")
    raise ConnectionError(f"order {order}: the payment gateway refused")


def send(to: str) -> None:
    """Fail as a shop does while its mail server is down."""
    raise TimeoutError(f"no answer to the mail to {to}")


def fill(broker: Broker, clock: FakeClock) -> None:
    """Make 110 dead letters of three causes."""
    broker.create_queue("orders")
    broker.create_queue("mails")
    broker.put_many("orders", [{"order": n, "amount": "12,50" if n < 12 else 12.5} for n in range(90)])
    broker.put_many("mails", [{"to": f"user{n}@example.com"} for n in range(20)])
    for queue, handle in (("orders", charge), ("mails", send)):
        for lease in broker.lease(queue, 100, worker="worker-1"):
            try:
                handle(**lease.value)
            except Exception as error:
                broker.fail(lease, error)
        clock.advance("1h")


def record(folder: Path) -> list[str]:
    """Run the commands in a terminal, and return the lines that it shows, with their colours."""
    url = f"sqlite:///{folder / 'jobs.db'}"
    clock = FakeClock(datetime.now(UTC) - timedelta(hours=2, minutes=30))
    with connect(url, clock=clock, maintenance=False) as broker:
        fill(broker, clock)
    canaries_are_shown = threading.Event()
    worker = threading.Thread(target=_complete_canaries, args=(url, canaries_are_shown))
    worker.start()
    lines: list[str] = []
    known = {"group": "", "operation": ""}
    for command in COMMANDS:
        typed = command.format(**known)
        shown = list(_shown(_run(typed, folder, url, canaries_are_shown)))
        first_id = next(found for line in shown for found in _ID.findall(_decoded(line).plain))
        known = {"group": known["group"] or first_id, "operation": first_id}
        lines += [*([""] if lines else []), f"$ {typed}", *shown]
    canaries_are_shown.set()
    worker.join()
    return _with_fixed_ids(lines)


def svg(lines: list[str]) -> str:
    """The terminal as a picture."""
    width = round(2 * _MARGIN + COLUMNS * _CELL)
    height = round(2 * _MARGIN + len(lines) * _LINE)
    texts = [part for row, line in enumerate(lines) for part in _texts(line, _baseline(row))]
    frame = f'<rect class="terminal" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>'
    return document(width, height, TITLE, [frame, '<g class="screen">', *texts, "</g>"], style=_STYLE)


def plain_lines(picture: str) -> list[str]:
    """The text of a picture, line by line."""
    lines: dict[float, str] = {}
    for x, y, words in _TEXT.findall(picture):
        column = round((float(x) - _MARGIN) / _CELL)
        lines[float(y)] = lines.get(float(y), "").ljust(column) + unescape(words)
    rows = round((max(lines) - _baseline(0)) / _LINE) + 1
    return [lines.get(_baseline(row), "") for row in range(rows)]


def _complete_canaries(url: str, begin: threading.Event) -> None:
    """Be the worker beside this terminal: complete the canaries, and nothing else."""
    begin.wait()
    with connect(url, maintenance=False) as broker:
        for lease in broker.lease("orders", CANARIES, worker="worker-1"):
            broker.complete(lease)


def _run(command: str, folder: Path, url: str, canaries_are_shown: threading.Event) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE_", "COLUMNS", "NO_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**kept, "PATH": path, "REDRIVE_URL": url, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, shell=True, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    with suppress(OSError):  # Linux reports the end of the other side as an error
        while part := os.read(ours, 65536):
            written += part
            if _CANARY_FRAME.encode() in written:
                canaries_are_shown.set()
    os.close(ours)
    process.wait()
    return written.decode()


def _shown(written: str) -> Iterator[str]:
    """The lines on the screen. Of a progress bar, which is redrawn in place, the frame that waits for the canaries."""
    for line in written.replace("\r\n", "\n").rstrip("\n").split("\n"):
        *frames, last = _FRAME.split(line)
        waiting = [frame for frame in (*frames, last) if _CANARY_FRAME in frame]
        if waiting:
            yield _REMAINING.sub("-:--:--", waiting[-1])
        elif not frames or "\x1b[1A" in line:
            yield _CONTROLS.sub("", last)


def _with_fixed_ids(lines: list[str]) -> list[str]:
    numbers = count(1)
    ids: dict[str, str] = {}

    def fixed(found: re.Match[str]) -> str:
        return ids.setdefault(found[0], f"{next(numbers) * 0x9E3779B1 % 2**32:08x}")

    return [_ID.sub(fixed, line) for line in lines]


def _decoded(line: str) -> Text:
    return next(iter(AnsiDecoder().decode(line)), Text())


def _baseline(row: int) -> float:
    return _MARGIN + row * _LINE + _FONT


def _texts(line: str, y: float) -> Iterator[str]:
    """The pieces of a line, each with one colour and in its own columns."""
    if line.startswith("$ "):
        yield _text("$", 0, y, 'class="prompt"')
        yield _text(line[2:], 2, y, 'class="command"')
        return
    column = 0
    for words, style in _segments(_decoded(line)):
        if words.strip():
            indent = len(words) - len(words.lstrip())
            yield _text(words.strip(), column + indent, y, _fill(style))
        column += len(words)


def _segments(line: Text) -> Iterator[tuple[str, Style | None]]:
    at = 0
    for span in sorted(line.spans):
        yield line.plain[at : span.start], None
        yield line.plain[span.start : span.end], span.style if isinstance(span.style, Style) else None
        at = span.end
    yield line.plain[at:], None


def _fill(style: Style | None) -> str:
    if style is None or style.color is None:
        return ""
    return f'style="fill: {_COLOURS.get(style.color.number or 0, _GREY)}"'


def _text(words: str, column: int, y: float, attributes: str) -> str:
    """Text that takes its columns in every font."""
    return (
        f'<text x="{_MARGIN + column * _CELL:.1f}" y="{y:g}" textLength="{len(words) * _CELL:.1f}" '
        f'lengthAdjust="spacingAndGlyphs" xml:space="preserve" {attributes}>{escape(words)}</text>'
    )
