"""The reference of the command line, made of what `--help` says: `python -m tests.terminal.reference` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from redrive.cli.main import redrive

PAGE = Path(__file__).parents[2] / "docs/reference/command-line.md"
COLUMNS = 100
HEAD = """\
# Every command

What `redrive COMMAND --help` says; [the guide](../guides/command-line.md) has examples. This page is generated: after a
change run `python -m tests.terminal.reference`. A test compares it with the code.
"""


def text() -> str:
    """The whole page."""
    return HEAD + "".join(f"\n## {words}\n\n```text\n{shown}\n```\n" for words, shown in helps())


def helps() -> Iterator[tuple[str, str]]:
    """Each command and what it says of itself."""
    settings = {**redrive.context_settings, "terminal_width": COLUMNS, "max_content_width": COLUMNS}
    context = click.Context(redrive, info_name="redrive", **settings)
    yield from _walk(context)


def _walk(context: click.Context) -> Iterator[tuple[str, str]]:
    command = context.command
    lines = command.get_help(context).splitlines()
    yield context.command_path, "\n".join(line.rstrip() for line in lines)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            if not found.hidden:
                yield from _walk(click.Context(found, parent=context, info_name=name))


if __name__ == "__main__":
    PAGE.write_text(text())
