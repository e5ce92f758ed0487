"""The guide to the file, typed in a terminal by somebody who has read nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.config.loader import parse

PAGE = Path(__file__).resolve().parents[2] / "docs/guides/config-file.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_every_file_of_the_guide_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_DB_PASSWORD", "x")
    assert len(blocks("toml")) >= 4
    for text in blocks("toml"):
        parse(text, Path("/srv/redrive.toml"))


def typed(session: str, folder: Path, **variables: str) -> dict[str, str]:
    """What each command of a session prints, which is what the guide shows below it."""
    bin = folder / "bin"
    bin.mkdir()
    (bin / "redrive").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m redrive "$@"\n')
    (bin / "redrive").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    environment |= {"PATH": f"{bin}:{environment['PATH']}", **variables}
    shown: dict[str, str] = {}
    for command, expected in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", session, flags=re.MULTILINE):
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, (command, done.stderr)
        shown[command] = done.stdout
        if expected:
            assert done.stdout == expected, command
    return shown


def test_what_the_guide_types_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text(blocks("toml")[0])
    (tmp_path / "send.sh").write_text(blocks("sh")[0])
    (tmp_path / "send.sh").chmod(0o755)
    shown = typed(blocks("console")[0], tmp_path)
    assert "ExitCode65: <text> is no address" in shown["redrive dead groups"]


def test_file_is_confirmed_as_the_guide_types_it(tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text('url = "http://jobs.example:7272"\n')
    session = blocks("console")[1].replace("/home/ann/shop", str(tmp_path))
    shown = typed(session, tmp_path, XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert "http://jobs.example:7272" in shown["redrive config trust --list"]
