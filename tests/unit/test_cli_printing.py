"""Tables for people: narrow, aligned, and harmless to a terminal."""

from __future__ import annotations

import pytest

from redrive.cli import printing
from redrive.clock import Instant
from redrive.model.duration import DAY, HOUR, SECOND

COLUMNS = {"id": "<", "count": ">", "text": "~"}


def test_columns_are_aligned_and_lines_end_with_their_text(capsys: pytest.CaptureFixture[str]) -> None:
    printing.table(COLUMNS, [("a", 5, "x"), ("bcd", 1000, "")])
    assert capsys.readouterr().out == "ID   COUNT  TEXT\na        5  x\nbcd   1000\n"


def test_text_is_cut_to_the_width_of_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    printing.table(COLUMNS, [("1", 1, "word " * 40)])
    printing.table(COLUMNS, [("1", 1, "漢字" * 40)])
    lines = capsys.readouterr().out.splitlines()
    assert [printing._width(line) for line in lines[1::2]] == [40, 40]
    assert all(line.endswith("…") for line in lines[1::2])


def test_nothing_is_cut_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    printing.table(COLUMNS, [("1", 1, "x" * 500)])
    assert "x" * 500 in capsys.readouterr().out


def test_texts_do_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    printing.table(COLUMNS, [("1", 1, "a\x1b[31mred\x07\nnext\x9b0m")])
    assert capsys.readouterr().out.splitlines()[1] == r"1       1  a\x1b[31mred\x07 next\x9b0m"


@pytest.mark.parametrize(
    ("passed", "told"),
    [(0, "now"), (SECOND, "1s ago"), (90 * SECOND, "1m ago"), (25 * HOUR, "1d ago"), (-3 * DAY, "in 3d")],
)
def test_times_are_told_in_one_unit(passed: int, told: str) -> None:
    assert printing.ago(Instant(10**15 - passed), Instant(10**15)) == told


def test_there_are_no_colours_outside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    printing.table({"status": "<"}, [("dead",)], coloured="status")
    printing.say(printing.coloured("dead"), style="red")
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_person_can_turn_colours_off(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert printing.in_colour()
    monkeypatch.setenv(variable, value)
    assert not printing.in_colour()
