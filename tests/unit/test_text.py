"""Texts for terminals and logs: nothing in them acts, hides, or ends a line."""

from __future__ import annotations

import io
import json
import logging
import sys
import unicodedata

import pytest
from rich.console import Console

from redrive.model.text import visible, visible_json
from redrive.telemetry import events
from redrive.worker.live_view import LiveView

EVERYTHING = [chr(number) for number in range(sys.maxunicode + 1)]
DANGEROUS = [char for char in EVERYTHING if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
NAMED = "\x00\x07\x1b\r\x7f\x80\x85\x9b\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\ud800"


def test_classes_of_characters_that_act_or_hide_are_those_meant() -> None:
    assert set(NAMED) <= set(DANGEROUS)


def test_no_code_point_acts_or_hides_in_a_text() -> None:
    for char in DANGEROUS:
        shown = visible(f"a{char}b")
        assert char not in shown
        assert shown.isascii()
    assert visible("".join(EVERYTHING)).isprintable()


def test_what_can_be_seen_stays() -> None:
    text = "Grüße, 世界 🎉 – “quoted” שלום \\x1b"
    assert visible(text) is text
    assert visible("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"


def test_json_means_the_same_and_has_nothing_that_acts_or_hides() -> None:
    text = "".join(char for char in EVERYTHING if unicodedata.category(char) != "Cs")
    written = visible_json(json.dumps({"text": text}, ensure_ascii=False))
    assert json.loads(written) == {"text": text}
    assert written.isprintable()


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


def told(log: io.StringIO, as_json: bool, said: str) -> list[str]:
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    level = root.level
    root.handlers.clear()
    try:
        assert events.configure(json=as_json, stream=log)
        events.logger("redrive.test").info("told", line=said)
        logging.getLogger("a.library").info("%s", said)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    return log.getvalue().split("\n")[:-1]


def test_every_line_of_a_log_in_json_is_an_object(log: io.StringIO) -> None:
    said = 'x"}\n{"event": "forged"}\r' + NAMED.replace("\ud800", "")
    lines = told(log, True, said)
    assert [json.loads(line)["event"] for line in lines] == ["told", said]
    assert all(line.isprintable() for line in lines)


def test_no_line_of_a_log_can_be_forged(log: io.StringIO) -> None:
    forged = "2026-01-01T00:00:00Z INFO    redrive.worker: item_dead item=1"
    lines = told(log, False, f"x\n{forged}\u2028{forged}\x85{forged}\r{forged}")
    assert not any(line.startswith(forged) for text in lines for line in text.splitlines())
    assert " told " in f"{lines[0]} "


def test_live_view_shows_lines_without_what_a_terminal_would_act_upon() -> None:
    stream = io.StringIO()
    view = LiveView("title", Console(file=stream, force_terminal=True, width=200))
    view._print(io.BytesIO("a\x1b]0;evil\x07b\u202ec\x9bd[red]e\n".encode()))
    assert "a\\x1b]0;evil\\x07b\\u202ec\\x9bd[red]e" in stream.getvalue()
