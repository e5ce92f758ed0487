"""The demo tells the story it promises, without a terminal too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("demo")
    environment = {**os.environ, "TMPDIR": str(folder)}
    result = subprocess.run([sys.executable, DEMO], env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    assert len(list(folder.rglob("orders.db"))) == 1
    return result.stdout


def rows_about(output: str, reason: str) -> list[str]:
    return [line for line in output.splitlines() if f" {reason} " in line]


def test_demo_shows_what_died_and_why(output: str) -> None:
    assert ["ConnectionError" in row for row in rows_about(output, "retries_exhausted")] == [True, True]
    assert ["ValueError" in row for row in rows_about(output, "final_error")] == [True]
    assert ["its worker vanished" in row for row in rows_about(output, "worker_lost")] == [True]


def test_demo_brings_everything_back(output: str) -> None:
    assert "you did 'redrive' on 4 items of 'orders'" in output
    assert "8 orders put, 8 completed, 0 dead." in output
    assert "1 redrive; its 3 failures stay on record" in output


def test_demo_has_colours_only_in_a_terminal(output: str) -> None:
    assert "\033" not in output
