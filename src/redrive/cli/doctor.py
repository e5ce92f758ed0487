"""`redrive doctor`: whether all is well, and what to do if not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from redrive.cli import errors, exits
from redrive.cli.checkups import Check, checks
from redrive.cli.connection import Place, chosen, open_place
from redrive.cli.options import as_json, command
from redrive.cli.printing import coloured, print_json, printable, say
from redrive.errors import AccessError, RedriveError

if TYPE_CHECKING:
    from redrive.broker.broker import Broker


@command("doctor", short_help="See whether all is well, and what to do if not.")
@click.pass_context
def doctor(context: click.Context) -> None:
    """See whether all is well with the store and what works on it. Changes nothing.

    Each line is ok, warn or fail, and says what to do. The exit code is 1 if any of them is warn or fail, else 0.
    """
    found = list(examine(chosen()))
    well = all(check.state == "ok" for check in found)
    if as_json():
        print_json({"is_well": well, "checks": found})
    else:
        width = max(len(check.name) for check in found)
        for check in found:
            say(f"{coloured(f'{check.state:4}'.strip()) + ' ' * (4 - len(check.state))}  "
                f"{check.name:{width}}  {printable(check.told)}")  # fmt: skip
            if check.todo:
                say(f"{'':{width + 8}}{printable(check.todo)}")
    if not well:
        context.exit(exits.FAILED)


def examine(place: Place) -> Iterator[Check]:
    """All that can be found out about a place."""
    yield Check("place", "ok", f"{place.shown}, namespace {place.namespace} (said by {place.said_by})")
    began = time.perf_counter()
    try:
        broker = open_place(place)
    except RedriveError as error:
        text, _, todo = errors.text_of(error).partition("\n")
        yield Check("reachable", "fail", text, todo.strip())
        return
    with broker:
        yield Check("reachable", "ok", f"opened in {(time.perf_counter() - began) * 1000:,.0f} ms")
        for check in checks(place):
            yield from _looked(check, broker)


def _looked(check: Callable[[Broker], Iterator[Check]], broker: Broker) -> Iterator[Check]:
    """One check. That it cannot be made is something to tell, and no reason not to make the others."""
    name = check.__name__
    try:
        yield from check(broker)
    except AccessError:
        yield Check(name, "ok", "not looked at: this token does not give the right to")
    except RedriveError as error:
        yield Check(name, "warn", f"could not be looked at: {errors.one_of_several(error)}")
