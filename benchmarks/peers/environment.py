"""An environment per peer, made once with uv or pip from what the peer's script pins in its header."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

HEADER = re.compile(r"^# /// script\n(?P<body>(?:#.*\n)+?)# ///$", re.MULTILINE)
NEWEST_MINOR = 14
OWN_UV = Path(__file__).resolve().parents[2] / ".uv" / "bin"
"""Where `./dev` puts one if there is none on PATH."""
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"


def requirements(script: Path) -> list[str]:
    """The pinned requirements in the script's header (PEP 723)."""
    pinned: list[str] = _header(script)["dependencies"]
    if not all("==" in requirement for requirement in pinned):
        raise ValueError(f"{script} must pin its requirements with ==, found {pinned}")
    return pinned


def base_python(script: Path) -> str:
    """The Python that its environment is made of: this one, or the newest to be found if its header wants a newer one.

    Raises OSError if there is none.
    """
    wanted = _header(script).get("requires-python", ">=3.0")
    least = int(wanted.removeprefix(">=3."))
    if sys.version_info.minor >= least:
        return sys.executable
    for minor in range(NEWEST_MINOR, least - 1, -1):
        for candidate in (f"python3.{minor}", *sorted(map(str, PYENV.glob(f"3.{minor}.*/bin/python")), reverse=True)):
            found = _executable(candidate)
            if found:
                return found
    raise OSError(f"it needs Python {wanted}: put python3.{least} or a newer one on PATH, or into {PYENV}")


def interpreter(script: Path, cache: Path) -> Path:
    """The Python of the script's environment. Its name tells what is in it, so a changed pin makes a new one."""
    pinned = requirements(script)
    base = base_python(script)
    made_of = sys.version if base == sys.executable else base
    contents = hashlib.sha256(repr([made_of, pinned]).encode()).hexdigest()[:10]
    home = cache / f"{script.stem}-{contents}"
    python = home / "bin" / "python"
    ready = home / "ready"
    if not ready.exists():
        for command in _commands(base, home, python, pinned):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        ready.touch()
    return python


def _header(script: Path) -> dict[str, Any]:
    match = HEADER.search(script.read_text())
    if match is None:
        raise ValueError(f"{script} has no `# /// script` header")
    lines = (line.removeprefix("#").removeprefix(" ") for line in match["body"].splitlines())
    return tomllib.loads("\n".join(lines))


def _executable(python: str) -> str:
    """Where it is, if it runs: a shim of pyenv may stand for a version that is not switched on."""
    try:
        done = subprocess.run([python, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout.strip()


def _commands(base: str, home: Path, python: Path, pinned: list[str]) -> list[list[str]]:
    uv = shutil.which("uv") or shutil.which("uv", path=OWN_UV)
    if uv:
        make = [uv, "venv", "--quiet", "--clear", "--python", base, str(home)]
        return [make, [uv, "pip", "install", "--quiet", "--python", str(python), *pinned]]
    make = [base, "-m", "venv", "--clear", str(home)]
    return [make, [str(python), "-m", "pip", "install", "--quiet", *pinned]]
