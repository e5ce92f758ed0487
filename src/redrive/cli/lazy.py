"""Groups of commands that are imported when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from redrive.model.suggest import suggest


class LazyGroup(click.Group):
    """Knows its commands by name only, until one of them runs."""

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        """`table`: each command with where it is, as in `package.module:attribute`, and what it does in a few words."""
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import it."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Say which command was meant where there is none of that name."""
        if args and not args[0].startswith("-") and args[0] not in self.table:
            meant = suggest(args[0], tuple(self.table), {}) or f"; there are {', '.join(self.table)}"
            raise click.UsageError(f"There is no command '{args[0]}'{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in self.table.items()])
