"""Typed access to the tables of redrive.toml: all problems are collected with their lines; `${NAME}` is expanded."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from redrive.config.line_numbers import KeyPath, LineIndex, format_key_path
from redrive.errors import InvalidConfig, InvalidDuration, InvalidName, Problem
from redrive.model.duration import parse_duration
from redrive.model.limits import check_name
from redrive.model.text import suggest


class Problems:
    """The problems of a file, one for each key."""

    def __init__(self, file: Path, lines: LineIndex) -> None:
        self._file = file
        self._lines = lines
        self._found: dict[KeyPath, str] = {}

    def add(self, path: KeyPath, problem: str) -> None:
        """Add a problem at a key. Its first problem is kept."""
        self._found.setdefault(path, problem)

    def __contains__(self, path: KeyPath) -> bool:
        return path in self._found

    def raise_any(self) -> None:
        """Raise `InvalidConfig` with all of them, in the order of their lines, if there are any."""
        if self._found:
            found = [
                Problem(self._lines.line_of(path), format_key_path(path), problem)
                for path, problem in self._found.items()
            ]
            raise InvalidConfig(shown_file(self._file), tuple(sorted(found, key=lambda each: each.line)))


class Table:
    """One table of a file. An invalid value becomes a problem, and its default is used."""

    def __init__(self, problems: Problems, path: KeyPath, values: Any) -> None:
        self.problems = problems
        self.path = path
        if not isinstance(values, dict):
            problems.add(path, f"is a table, as in [{format_key_path(path)}], not {described(values)}")
        self.values: dict[str, Any] = values if isinstance(values, dict) else {}

    def check_keys(self, known: Collection[str], elsewhere: Mapping[str, str] | None = None) -> None:
        """Add a problem for each unknown key. `elsewhere`: the names that other programs use for the keys."""
        for key in self.values:
            if key not in known:
                meant = suggest(key, known, elsewhere or {}) or f"; there are {', '.join(known)}"
                self.add_problem(key, f"is not known here{meant}")

    def add_problem(self, key: str, problem: str) -> None:
        """Add a problem of the value of a key, or of a missing key."""
        self.problems.add((*self.path, key), problem)

    def subtable(self, key: str) -> Table:
        """Return the table under a key; an empty one if it is missing."""
        return Table(self.problems, (*self.path, key), self.values.get(key, {}))

    def tables(self, key: str) -> dict[str, Table]:
        """Return the tables under a key, by their names. An invalid name is a problem."""
        found = self.subtable(key)
        for name in found.values:
            found.named(name, name)
        return {name: found.subtable(name) for name in found.values}

    def named(self, key: str, name: object) -> str | None:
        """Return the name at a key; None if it is invalid."""
        try:
            return check_name(self.path[-1] if self.path else key, name)  # type: ignore[arg-type]
        except InvalidName as error:
            self.add_problem(key, f"{error.name!r:.80} {error.problem}")
            return None

    def text(self, key: str) -> str | None:
        """Return a text that is not empty; None if it is missing or invalid."""
        value = self.values.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            self.add_problem(key, f"is a text, not {described(value)}")
            return None
        return value

    def flag(self, key: str) -> bool:
        """Return true or false; false if the key is missing."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            self.add_problem(key, f"is true or false, not {described(value)}")
            return False
        return value

    def count(self, key: str, default: int, smallest: int, largest: int) -> int:
        """Return a whole number within bounds."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
            self.add_problem(key, f"is a whole number from {smallest:,} to {largest:,}, not {described(value)}")
            return default
        return value

    def duration(self, key: str, default: int | None = None, *, positive: bool = True) -> int | None:
        """Return a duration in microseconds."""
        if key not in self.values:
            return default
        try:
            duration = parse_duration(self.values[key], key)
        except InvalidDuration as error:
            self.add_problem(key, problem_of(error))
            return default
        if positive and duration == 0:
            self.add_problem(key, "is longer than 0")
            return default
        return duration


def problem_of(error: InvalidDuration) -> str:
    """Return the problem of a duration, without the name of the key."""
    return str(error).removeprefix(error.what).lstrip()


def described(value: object) -> str:
    """Return a value as problems show it: short, and as written in TOML."""
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "a table"
        case list():
            return "an array"
        case str():
            shown = value if len(value) <= 60 else value[:59] + "…"
            return f'"{shown}"' if shown.isprintable() else ascii(shown)
        case _:
            return f"{value!s:.60}"


def shown_file(file: Path) -> str:
    """Return the path relative to the working directory if the file is below it, else the absolute path."""
    try:
        return str(file.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(file)


_VARIABLE = re.compile(r"\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PREFIX = "REDRIVE_"
_SECRETS = ("REDRIVE_TOKEN", "REDRIVE_URL")
"""Variables that belong to one address, which is never one of a file."""


def variables_in(text: str) -> tuple[str, ...]:
    """Return the names of the variables in a text."""
    return tuple(name for name, _ in _VARIABLE.findall(text))


def find_syntax_error(text: str) -> str | None:
    """Return the problem of the syntax of variables in a text."""
    wrong = any(not end or _NAME.fullmatch(name) is None for name, end in _VARIABLE.findall(text))
    return "has a ${ that starts no variable; write ${NAME}" if wrong else None


def not_for_addresses(text: str, allowed: Collection[str]) -> str | None:
    """Return the problem of the variables in an address: the author of the file could send secrets to that address."""
    for name in variables_in(text):
        if name not in allowed and (not name.startswith(_PREFIX) or name in _SECRETS):
            hint = "" if name in _SECRETS else f"call it {_PREFIX}{name}, or "
            return f"takes the variable {name}, which could send any secret away; {hint}add --allow-variable {name}"
    return None


def expand_variables(text: str, environment: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the text with its variables expanded, and the problem if there is one, which never shows a value."""
    problem = find_syntax_error(text)
    unset = [name for name in variables_in(text) if not environment.get(name)]
    if problem is None and unset:
        problem = f"needs the variable {unset[0]} of the environment, which is not set"
    return (text, problem) if problem else (_VARIABLE.sub(lambda found: environment[found[1]], text), None)
