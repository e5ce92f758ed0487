"""An environment per peer, made once with uv or pip from what the peer's script pins in its header."""

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

HEADER = re.compile(r"^# /// script\n(?P<body>(?:#.*\n)+?)# ///$", re.MULTILINE)


def requirements(script: Path) -> list[str]:
    """The pinned requirements in the script's header (PEP 723)."""
    match = HEADER.search(script.read_text())
    if match is None:
        raise ValueError(f"{script} has no `# /// script` header")
    lines = (line.removeprefix("#").removeprefix(" ") for line in match["body"].splitlines())
    pinned: list[str] = tomllib.loads("\n".join(lines))["dependencies"]
    if not all("==" in requirement for requirement in pinned):
        raise ValueError(f"{script} must pin its requirements with ==, found {pinned}")
    return pinned


def interpreter(script: Path, cache: Path) -> Path:
    """The Python of the script's environment. Its name tells what is in it, so a changed pin makes a new one."""
    pinned = requirements(script)
    contents = hashlib.sha256(repr([sys.version, pinned]).encode()).hexdigest()[:10]
    home = cache / f"{script.stem}-{contents}"
    python = home / "bin" / "python"
    ready = home / "ready"
    if not ready.exists():
        for command in _commands(home, python, pinned):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        ready.touch()
    return python


def _commands(home: Path, python: Path, pinned: list[str]) -> list[list[str]]:
    uv = shutil.which("uv")
    if uv:
        make = [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(home)]
        return [make, [uv, "pip", "install", "--quiet", "--python", str(python), *pinned]]
    make = [sys.executable, "-m", "venv", "--clear", str(home)]
    return [make, [str(python), "-m", "pip", "install", "--quiet", *pinned]]
