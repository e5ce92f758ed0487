"""Asking back before many items are changed: the number of items is what has to be typed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from redrive.cli.errors import NotConfirmed
from redrive.model.shown import several

_F = TypeVar("_F", bound=Callable[..., Any])
ANY = "any"
"""What a script says instead of a number where what is done can be taken back."""


def confirm_options(*, final: bool) -> Callable[[_F], _F]:
    """Add `--dry-run` and `--yes` to a command that changes many items. `final`: it cannot be taken back."""
    number = "NUMBER" if final else "NUMBER|any"
    more = "" if final else "; `any` for however many there are"

    def add(function: _F) -> _F:
        decorated = click.option(
            "--yes",
            callback=_final if final else _number,
            metavar=number,
            help=f"Do not ask: this is how many items are meant{more}.",
        )(function)
        return click.option("--dry-run", is_flag=True, help="Only say what would happen.")(decorated)

    return add


def _number(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == ANY:
        return value
    if not value.replace(",", "").isdecimal():
        raise click.BadParameter(f"{value!r} is not a number of items")
    return int(value.replace(",", ""))


def _final(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    if value == ANY:
        raise click.BadParameter("this cannot be taken back: give the number of items that you mean")
    return _number(context, parameter, value)


def confirm(what: str, count: int, yes: int | str | None, *, final: bool) -> None:
    """Return if a person, or the script, means this many items. `what` is what happens to them, as in `redrive`."""
    if yes in (ANY, count):
        return
    items = several(count, "item")
    if yes is not None:
        told = f"this would {what} {items}, and --yes {yes} was given; nothing was done"
        raise NotConfirmed(what, int(yes), count, told)
    if not in_a_terminal():
        told = f"this would {what} {items}; nothing was done\n  add --yes {count} if that is what you mean"
        raise NotConfirmed(what, None, count, told)
    lasting = ", and this cannot be taken back" if final else ""
    click.echo(f"This will {what} {items}{lasting}.", err=True)
    typed = click.prompt("Type the number of items to go on", default="", show_default=False, err=True)
    if typed.strip().replace(",", "") != str(count):
        raise NotConfirmed(what, None, count, "that is not the number; nothing was done")


def in_a_terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty()
