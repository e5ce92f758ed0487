"""The first task of a newcomer, as the README has it: the program, and what is typed, with what comes of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
MOST_LINES = 25


def test_first_task_is_as_the_readme_says(tmp_path: Path) -> None:
    program, console = re.findall(r"```(?:python|console)\n(.*?)```", README.read_text(), flags=re.DOTALL)[:2]
    assert program.startswith("# jobs.py\n")
    assert len(program.splitlines()) + len(console.splitlines()) <= MOST_LINES
    (tmp_path / "jobs.py").write_text(program)
    install, *commands = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", console, flags=re.MULTILINE)
    assert install[0].startswith("pip install .")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, shown in commands:
        environment = {**os.environ, "PATH": path}
        result = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )
        assert result.returncode == 0, result.stderr
        for line in shown.splitlines():
            assert line in result.stdout, f"{command}\n{result.stdout}\n{result.stderr}"
    assert len(commands) == 6
