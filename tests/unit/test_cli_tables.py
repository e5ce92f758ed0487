"""Tables for people: narrow, aligned, and harmless to a terminal."""

from __future__ import annotations

import pytest

from redrive.cli import output
from redrive.clock import Instant
from redrive.model.duration import DAY, HOUR, SECOND

COLUMNS = {"id": "<", "count": ">", "text": "~"}


def test_columns_are_aligned_and_lines_end_with_their_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(COLUMNS, [("a", 5, "x"), ("bcd", 1000, "")])
    assert capsys.readouterr().out == "ID   COUNT  TEXT\na        5  x\nbcd   1000\n"


def test_text_is_cut_to_the_width_of_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output.table(COLUMNS, [("1", 1, "word " * 40)])
    output.table(COLUMNS, [("1", 1, "漢字" * 40)])
    lines = capsys.readouterr().out.splitlines()
    assert [output._width(line) for line in lines[1::2]] == [40, 40]
    assert all(line.endswith("…") for line in lines[1::2])


WIDE = {"id": "<", "status": "<", "attempts": ">", "queue": "~", "error": "~"}
ROW = ("0a1b2c3d", "retries_exhausted", 3, "orders-of-today", "ConnectionError: the other side does not answer")


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    output.table(WIDE, [ROW, ROW], least=("attempts", "queue"))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", range(8, 121, 4))
def test_row_is_one_line_however_narrow_the_terminal_and_the_id_is_whole(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = printed(capsys, monkeypatch, width)
    assert len(lines) == 3
    assert all(len(line) <= width for line in lines)
    assert all(line.startswith("0a1b2c3d") for line in lines[1:])


def test_columns_that_matter_least_are_left_out_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    headings = {width: printed(capsys, monkeypatch, width)[0].split() for width in (120, 70, 60, 40, 20)}
    assert headings == {
        120: ["ID", "STATUS", "ATTEMPTS", "QUEUE", "ERROR"],
        70: ["ID", "STATUS", "QUEUE", "ERROR"],
        60: ["ID", "STATUS", "ERROR"],
        40: ["ID", "STATUS", "ERROR"],
        20: ["ID"],
    }


def test_nothing_is_cut_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    output.table(COLUMNS, [("1", 1, "x" * 500)])
    assert "x" * 500 in capsys.readouterr().out


def test_texts_do_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(COLUMNS, [("1", 1, "a\x1b[31mred\x07\nnext\x9b0m")])
    assert capsys.readouterr().out.splitlines()[1] == r"1       1  a\x1b[31mred\x07 next\x9b0m"


@pytest.mark.parametrize(
    ("passed", "told"),
    [(0, "now"), (SECOND, "1s ago"), (90 * SECOND, "1m ago"), (25 * HOUR, "1d ago"), (-3 * DAY, "in 3d")],
)
def test_times_are_told_in_one_unit(passed: int, told: str) -> None:
    assert output.ago(Instant(10**15 - passed), Instant(10**15)) == told


def test_there_are_no_colours_outside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.table({"status": "<"}, [("dead",)], coloured="status")
    output.print_line(output.coloured("dead"), style="red")
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_person_can_turn_colours_off(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert output.in_colour()
    monkeypatch.setenv(variable, value)
    assert not output.in_colour()
