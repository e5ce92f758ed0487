"""Console blocks of a page, run as a reader would type them: `$ command`, and below it what it prints.

What needs a shell goes to one: pipes, exit codes, redirections, programs that load a module or serve. Any other command
of `redrive` runs in this process.

Ids differ from run to run: what the page calls 3ea8d9f8 stands for whatever was printed in its place, in the commands
that follow too. So do times and the name of the person. A line that is only `…` stands for any lines.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.terminal.cli import run_here

_BLOCK = re.compile(r"^```console\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", flags=re.MULTILINE)
_PLAIN = re.compile(r"redrive (?!work\b|serve\b)[^|;&<>$`*?~]*")
_ID = re.compile(r"\b[0-9a-f]{8,32}\b")
_VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?( UTC|Z)?"), "<time>"),
    (re.compile(r"\bnow\b|\b\d+[smhd] ago\b|\bin \d+[smhd]\b"), "<ago>"),
    (re.compile(r"(?<=  )\d+[smhd]\b(?! ago)"), "<ago>"),
    (re.compile(r"(?<=waited for )\S+"), "<ago>"),
    (re.compile(r"[\d.,]+ ms\b"), "<ms>"),
    (re.compile(r"\b\S+@\S+\b"), "<who>"),
    (re.compile(r" {2,}"), "  "),
    (re.compile(r" +$", flags=re.MULTILINE), ""),
)


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Each command of a page with what is printed below it."""
    for block in _BLOCK.findall(page.read_text()):
        yield from split_commands(block)


def split_commands(block: str) -> list[tuple[str, str]]:
    """Each command of a console block with what is printed below it."""
    return _COMMAND.findall(block)


class Console:
    """A shell in a folder, and what the ids of a page stand for in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids: dict[str, str] = {}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        self._environment = {**kept, "PATH": path}

    def run(self, command: str) -> str:
        """What a command prints, to stdout and stderr as it comes."""
        typed = _ID.sub(lambda found: self._meant(found[0]), command)
        if typed.startswith("export "):
            name, _, value = typed.removeprefix("export ").partition("=")
            self._environment[name] = value
            return ""
        code, printed = self._here(typed) if _PLAIN.fullmatch(typed) else self._in_a_shell(typed)
        assert code == 0, f"{typed}\n{printed}"
        return printed

    def _here(self, typed: str) -> tuple[int, str]:
        result = run_here(self._folder, shlex.split(typed)[1:], self._environment)
        return result.exit_code, result.output

    def _in_a_shell(self, typed: str) -> tuple[int, str]:
        result = subprocess.run(
            ["bash", "-c", typed],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        return result.returncode, result.stdout

    def check(self, command: str, shown: str) -> None:
        """Run a command. It must print what the page shows."""
        printed = self.run(command)
        found = re.fullmatch(_pattern(shown), _plain(printed))
        assert found is not None, f"$ {command}\n--- the page says\n{_plain(shown)}\n--- it prints\n{_plain(printed)}"
        self.learn(shown, printed)

    def learn(self, shown: str, printed: str) -> None:
        """What the ids of the page are here, up to the first line that stands for any."""
        before = shown.partition("…\n")[0]
        self._ids.update(zip(_ID.findall(before), _ID.findall(printed), strict=False))

    def _meant(self, id: str) -> str:
        """What an id of the page is here. The first digits of one will do."""
        known = next((ours for page, ours in self._ids.items() if page.startswith(id)), id)
        return known[: len(id)]


def _plain(text: str) -> str:
    text = _ID.sub("<id>", text)
    for varies, stands_for in _VARIES:
        text = varies.sub(stands_for, text)
    return text.rstrip("\n") + "\n"


def _pattern(shown: str) -> str:
    return "".join("(?:.*\n)*" if line == "…" else re.escape(line) + "\n" for line in _plain(shown).splitlines())
