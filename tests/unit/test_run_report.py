"""What is printed at the end of a run, and that a folder of tests which takes too long fails it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import run_report

TESTS = Path(run_report.__file__).parent
CONFTEST = """
from tests import run_report
run_report.BUDGETS["unit"] = 0.1
"""
TEST = """
import time
def test_that_takes_long():
    begun = time.process_time()
    while time.process_time() < begun + 0.3:
        pass
"""


def test_every_folder_of_tests_has_a_budget() -> None:
    assert {file.relative_to(TESTS).parts[0] for file in TESTS.glob("**/test_*.py")} == set(run_report.BUDGETS)


@pytest.mark.parametrize(("share", "over"), [(0.5, False), (1.4, False), (1.6, True)])
def test_folder_may_exceed_its_budget_by_half(share: float, over: bool) -> None:
    cpu = {folder: budget * (share if folder == "unit" else 1) for folder, budget in run_report.BUDGETS.items()}
    assert [line.partition(":")[0] for line in run_report.over_budget(cpu)] == (["unit"] if over else [])


@pytest.mark.parametrize(("set_to", "status"), [("1", 1), ("", 0)])
def test_run_fails_where_a_folder_takes_too_long_and_budgets_are_asked_for(
    set_to: str, status: int, tmp_path: Path
) -> None:
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_long.py").write_text(TEST)
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent), "REDRIVE_BUDGETS": set_to, "REDRIVE_THOROUGH": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.run_report", "--rootdir", tmp_path, tmp_path]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == status, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert ("its budget is 0.1" in done.stdout) is bool(set_to)
