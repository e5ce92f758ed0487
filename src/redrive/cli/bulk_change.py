"""Bulk changes: ask for confirmation (the number of items), start an operation, show its progress."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import click

from redrive.broker.flows.operations import REVERSE
from redrive.cli import error_output
from redrive.cli.common_options import as_json, command_line, was_given
from redrive.cli.error_output import NotConfirmed
from redrive.cli.output import coloured, escape_line, print_json, print_line, print_note, short, to_json_value
from redrive.cli.store_target import finish_moves
from redrive.model.declaration import texts_of
from redrive.model.operation import Operation, OperationStatus
from redrive.model.operation_plan import OperationPlan
from redrive.model.options import OperationOptions, PlanOptions
from redrive.model.text import format_counts, pluralize

if TYPE_CHECKING:
    from rich.progress import Progress

    from redrive.broker.broker import Broker

_F = TypeVar("_F", bound=Callable[..., Any])
ANY = "any"
"""The value of --yes that confirms any number of items, for changes that can be undone."""


def confirm_options(*, final: bool) -> Callable[[_F], _F]:
    """Add `--dry-run` and `--yes` to a command that changes many items. `final`: it cannot be undone."""
    number = "NUMBER" if final else "NUMBER|any"
    more = "" if final else "; `any` confirms every number"

    def add(function: _F) -> _F:
        decorated = click.option(
            "--yes",
            callback=_final if final else _number,
            metavar=number,
            help=f"Do not ask: confirm this number of items{more}.",
        )(function)
        return click.option("--dry-run", is_flag=True, help="Only show what would happen.")(decorated)

    return add


def _number(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == ANY:
        return value
    if not value.replace(",", "").isdecimal():
        raise click.BadParameter(f"{value!r} is not a number of items")
    return int(value.replace(",", ""))


def _final(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    if value == ANY:
        raise click.BadParameter("this cannot be undone: give the number of items")
    return _number(context, parameter, value)


def confirm(what: str, count: int, yes: int | str | None, *, final: bool) -> None:
    """Return if the user, or the script, confirms this number of items. `what`: the change, as in `redrive`."""
    if yes in (ANY, count):
        return
    items = pluralize(count, "item")
    if yes is not None:
        told = f"this would {what} {items}, and --yes {yes} was given; nothing was done"
        raise NotConfirmed(what, int(yes), count, told)
    if not in_a_terminal():
        told = f"this would {what} {items}; nothing was done\n  add --yes {count} to confirm that"
        raise NotConfirmed(what, None, count, told)
    lasting = ", and this cannot be undone" if final else ""
    click.echo(f"This will {what} {items}{lasting}.", err=True)
    typed = click.prompt("Type the number of items to continue", default="", show_default=False, err=True)
    if typed.strip().replace(",", "") != str(count):
        raise NotConfirmed(what, None, count, "that is not the number; nothing was done")


def in_a_terminal() -> bool:
    """Return whether there is a user who can be asked."""
    return sys.stdin.isatty()


class ProgressBar:
    """The progress of a change. Without a terminal it does nothing."""

    def __init__(self, progress: Progress | None, title: str, total: int | None) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task(title, total=total)

    def at(self, done: int, title: str | None = None) -> None:
        """Show the number of items that are done."""
        if self._progress is not None and self._task is not None:
            if title is None:
                self._progress.update(self._task, completed=done)
            else:
                self._progress.update(self._task, completed=done, description=title)


@contextmanager
def progress_bar(title: str, total: int | None, *, hidden: bool = False) -> Iterator[ProgressBar]:
    """Show a bar on stderr while this runs; without a total it only moves. `hidden`: the output is on the terminal."""
    if hidden or as_json() or not sys.stderr.isatty():
        yield ProgressBar(None, title, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield ProgressBar(progress, title, total)


def drive_operation(broker: Broker, operation: Operation, wait: str) -> Operation:
    """Execute the steps of an operation here, with a bar, until it has ended or the time has expired."""
    title = f"{operation.verb} {short(operation.id)}"
    try:
        with progress_bar(title, operation.expected) as shown:

            def progress(now: Operation) -> None:
                watching = now.status is OperationStatus.WATCHING
                shown.at(
                    now.examined if now.limit is None else now.changed,
                    f"{title}: waits for {len(now.canary_ids)} canaries" if watching else title,
                )

            progress(broker.get_operation(operation.id))
            return broker.run_operation(operation.id, wait=wait, progress=progress)
    except KeyboardInterrupt:
        id = short(operation.id)
        print_note(
            f"\nThe operation {id} is not cancelled: it is stored, and continues in any worker or server that has the "
            f"store open.\n  continue here: {command_line(f'operation resume {id}')}\n"
            f"  cancel it:     {command_line(f'operation cancel {id}')}"
        )
        raise


TEXTS = texts_of(OperationOptions)
"""The help text of each option of an operation."""
FOREVER = "36500d"
"""The default time to wait for the end of an operation."""
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/(s|m|min|h))?")
_SECONDS = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_OF_OPERATIONS = ("limit", "rate", "no_wait", "canary")
"""Options that only an operation has."""
OF_MANY = ("dry_run", "note", "wait", "yes", *_OF_OPERATIONS)
"""Options of a change of all items that match."""


def parse_rate(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return items per second, from `50/s`, `3000/m`, `100/h` or a number."""
    if value is None:
        return None
    found = _RATE.fullmatch(value)
    if found is None or float(found[1]) <= 0:
        raise click.BadParameter(f"{value!r} is not a rate, as in 50/s, 3000/m or 100/h")
    return float(found[1]) / _SECONDS[found[2]]


def operation_options(function: _F) -> _F:
    """Add the options of every operation: its rate, limit and note, and whether to wait for its end."""
    for option in (
        click.option("--no-wait", is_flag=True, help="Start the operation, print its id, and return immediately."),
        click.option(
            "--wait", default=FOREVER, metavar="TIME", help="Wait at most this time for the operation to end."
        ),
        click.option("--note", metavar="TEXT", help=TEXTS["note"]),
        click.option("--limit", type=click.IntRange(1), metavar="N", help=TEXTS["limit"]),
        click.option("--rate", callback=parse_rate, metavar="N/s", help=TEXTS["rate"]),
    ):
        function = option(function)
    return function


def is_plain(dry_run: bool, options: Mapping[str, Any]) -> bool:
    """Return whether no option needs an operation: named items are then changed directly, without one."""
    return not dry_run and not any(options.get(name) for name in _OF_OPERATIONS)


def check_wait(no_wait: bool) -> None:
    """Raise if --wait and --no-wait were both given."""
    if no_wait and was_given("wait"):
        raise click.UsageError("--wait and --no-wait were given; omit one")


def run(
    broker: Broker,
    verb: str,
    where: Mapping[str, Any],
    *,
    yes: int | str | None,
    dry_run: bool,
    wait: str = FOREVER,
    no_wait: bool = False,
    named: bool = False,
    **options: Unpack[OperationOptions],
) -> None:
    """Change all items that match. `where` names a status: the one that the verb is for.

    `named`: the items were named one by one, so no confirmation is needed.
    """
    check_wait(no_wait)
    if dry_run:
        planned: dict[str, Any] = {name: options.get(name) for name in PlanOptions.__annotations__}
        print_plan(broker.plan_operation(verb, **planned, **where))
        return
    final = verb == "purge"
    count = broker.count(**where)
    if not count:
        print_json({"matched": 0, "operation": None}) if as_json() else print_line("Nothing matches; nothing was done.")
        click.get_current_context().exit(error_output.NOTHING)
    count = min(count, options.get("limit") or count)
    if not named or yes is not None:
        confirm(verb, count, yes, final=final)
    if final:
        options["confirm"] = count
    operation = broker.start_operation(verb, **options, **where)
    continue_operation(broker, operation, wait=wait, no_wait=no_wait)


def continue_operation(broker: Broker, operation: Operation, *, wait: str = FOREVER, no_wait: bool = False) -> None:
    """Drive an operation, unless `no_wait`, and print its state."""
    if not no_wait:
        operation = drive_operation(broker, operation, wait)
        finish_moves(broker)
    print_operation(operation)
    if no_wait:
        return
    if operation.status is not OperationStatus.FINISHED:
        click.get_current_context().exit(error_output.STOPPED)
    click.get_current_context().exit(error_output.exit_of_change(operation.changed, sum(operation.skipped.values())))


def print_operation(operation: Operation, *, in_full: bool = False) -> None:
    """Print the state of an operation, and the commands to type next. `in_full`: more details follow."""
    if as_json():
        print_json(operation)
        return
    id = short(operation.id)
    of = "" if operation.expected is None else f" of {operation.expected:,}"
    limit = "" if operation.limit is None else f", limit {operation.limit:,}"
    print_line(f"{operation.verb} {id}: {coloured(operation.status.value)}, {operation.changed:,}{of} changed{limit}")
    if operation.skipped:
        print_line(f"  skipped: {format_counts(operation.skipped)}")
        for code, samples in operation.samples.items():
            print_line(f"    {code}: {', '.join(map(short, samples))}")
    if operation.problem:
        print_line(f"  problem: {escape_line(operation.problem)}")
    if not operation.ended:
        if operation.canary_ids:
            count = len(operation.canary_ids)
            print_note(f"  it waits until workers have completed {count} canar{'y' if count == 1 else 'ies'}")
        if not in_full:
            print_note(f"  show it:       {command_line(f'operation show {id}')}")
        print_note(f"  continue here: {command_line(f'operation resume {id}')}")
        print_note(f"  cancel it:     {command_line(f'operation cancel {id}')}")
    elif operation.changed and operation.verb in REVERSE:
        print_note(f"  undo it: {command_line(f'undo {id}')}")


def print_plan(plan: OperationPlan) -> None:
    """Print what a change would do."""
    if as_json():
        print_json({**to_json_value(plan), "dry_run": True})
        return
    print_line("Nothing was changed; this would happen:")
    print_line(str(plan))
