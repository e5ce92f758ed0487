"""The guide of the server: what it shows in a terminal is what comes out there."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.http import HttpServer

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/server.md"
ANYTHING = "…"
END = "=====end-of-command====="


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpServer]:
    server = HttpServer(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    yield server
    server.stop()


def commands() -> list[tuple[str, str]]:
    """Each command of the guide, and what it prints."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```", GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output.strip()))
    return found


def pattern(output: str) -> str:
    return ".*".join(map(re.escape, output.split(ANYTHING))) + (".*" if output.endswith(ANYTHING) else "")


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_commands_print_what_the_guide_shows(server: HttpServer, tmp_path: Path) -> None:
    listed = commands()
    assert len(listed) > 10
    script = "\n".join(f"{command}\necho; echo {END}" for command, _ in listed)
    script = script.replace("localhost:7272", f"localhost:{server.port}")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    printed = [part.strip() for part in done.stdout.split(END)[:-1]]
    assert len(printed) == len(listed), done
    for (command, expected), output in zip(listed, printed, strict=True):
        assert re.fullmatch(pattern(expected), output, flags=re.DOTALL), f"$ {command}\n{output}"
