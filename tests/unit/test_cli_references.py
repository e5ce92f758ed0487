"""Every command and option that a text of ours names exists: in help, errors, remarks and documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import click
import pytest

from redrive.cli.command_groups import LazyGroup
from redrive.cli.common_options import command_line
from redrive.cli.main import redrive

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/redrive").rglob("*.py"))
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
VALUE = "…"
"""Stands for what is filled into a text."""
_COMMAND = re.compile(r"(?<![\w./@-])(?<!dead )redrive((?: +(?:[^\s`;|&()\"]+|\"[^\"]*\"|'[^']*'))+)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_OF_OTHERS = frozenset({
    "--json", "--upgrade", "--check", "--cov", "--cluster", "--http", "--queues", "--version", "--password",
    "--statements",
})  # fmt: skip
"""Options of other programs: curl, pip, and the tools of this repository."""


def children(command: click.Command) -> dict[str, click.Command]:
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    return {name: found for name in command.list_commands(context) if (found := command.get_command(context, name))}


def options_of(command: click.Command) -> set[str]:
    context = click.Context(command, help_option_names=["-h", "--help"])
    return {name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)}


def every(command: click.Command) -> Iterator[click.Command]:
    yield command
    for child in children(command).values():
        yield from every(child)


ALL_OPTIONS = frozenset(name for command in every(redrive) for name in options_of(command))
TABLE = {command: children(command) for command in every(redrive)}


def texts_of(path: Path) -> Iterator[str]:
    """The texts of a module, with a mark where something is filled in. What `command_line` is given is a command."""
    tree = ast.parse(path.read_text())
    commands = {id(node.args[0]) for node in ast.walk(tree) if _is_command_line(node)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        else:
            continue
        yield f"`redrive {text}`" if id(node) in commands else text


def _is_command_line(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == command_line.__name__


def wrong_in(text: str, *, typed: bool) -> list[str]:
    """What is named there and does not exist. `typed`: what follows `redrive` is a command, and not a sentence."""
    wrong = []
    for found in _COMMAND.finditer(text):
        command: click.Command = redrive
        for word in found[1].split():
            name = word.rstrip(".,:'`")
            if name.startswith("--"):
                name = name.partition("=")[0]
                if _OPTION.fullmatch(name) and name not in options_of(command) | options_of(redrive):
                    wrong.append(f"{found[0]}: {name}")
            elif isinstance(command, click.Group) and not name.startswith("-"):
                if name in TABLE[command]:
                    command = TABLE[command][name]
                elif typed and re.fullmatch("[a-z]+", name):
                    wrong.append(f"{found[0]}: {name}")
                    break
                else:
                    break
    return wrong


def test_table_is_whole() -> None:
    assert isinstance(redrive, LazyGroup)
    assert len(TABLE) > 40
    assert {"--force", "--all-dead", "--dry-run", "--url"} <= ALL_OPTIONS
    assert sum(_is_command_line(node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))) > 10


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src/redrive")))
def test_texts_of_a_module_name_what_there_is(path: Path) -> None:
    for text in texts_of(path):
        assert not wrong_in(text, typed=False)
        for code in re.findall(r"`(redrive [^`]+)`", text):
            assert not wrong_in(code, typed=True)


@pytest.mark.parametrize("path", sorted((ROOT / "src/redrive/cli").rglob("*.py")), ids=lambda path: path.name)
def test_options_in_texts_of_the_command_line_exist(path: Path) -> None:
    for text in texts_of(path):
        assert not {name for name in _OPTION.findall(text) if name not in ALL_OPTIONS}, text


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_names_commands_and_options_that_there_are(path: Path) -> None:
    text = path.read_text()
    typed = re.findall(r"^\$ (?:.*\| )?(redrive .*)$", text, re.MULTILINE) + re.findall(r"`(redrive [^`\n]+)`", text)
    for code in typed:
        assert not wrong_in(code, typed=True)
    for code in re.findall(r"`(--[a-z][a-z-]+)[^`]*`", text):
        assert code in ALL_OPTIONS | _OF_OTHERS, code


@pytest.mark.parametrize("command", TABLE, ids=lambda command: command.name)
def test_help_names_options_that_there_are(command: click.Command) -> None:
    context = click.Context(command, info_name=command.name, help_option_names=["-h", "--help"])
    assert set(_OPTION.findall(command.get_help(context))) <= ALL_OPTIONS


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("redrive queue retry 7f --force", []),
        ("redrive queue delete jobs --force", ["--force"]),
        ("redrive queue requeue 7f", ["requeue"]),
        ("redrive dead redrive --every", ["--every"]),
        ("redrive --url sqlite:///x.db queue list --status dead", []),
    ],
)
def test_check_itself_finds_what_is_wrong(text: str, wrong: list[str]) -> None:
    assert [each.rpartition(": ")[2] for each in wrong_in(text, typed=True)] == wrong
