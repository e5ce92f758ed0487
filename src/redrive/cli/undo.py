"""`redrive undo`: take a change back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.broker.operations import REVERSE
from redrive.cli import bulk, exits, ids
from redrive.cli.confirming import confirm, confirm_options
from redrive.cli.connection import opened
from redrive.cli.items import change
from redrive.cli.options import as_json, command, to_type
from redrive.cli.printing import print_json, say, short
from redrive.errors import InvalidInput, ItemNotFound, NotFound, OperationNotFound
from redrive.model.operation import Operation

if TYPE_CHECKING:
    from redrive.broker.broker import Broker


class NothingToUndo(NotFound):
    """Neither an operation nor an item has that id."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(
            f"neither an operation nor an item has the id '{id}'\n  {to_type('operation list')} shows the operations"
        )


@command("undo", short_help="Take back a redrive, an archive, or a whole operation.")
@click.argument("typed", metavar="ID", nargs=-1, required=True)
@confirm_options(final=False)
def undo(typed: tuple[str, ...], dry_run: bool, yes: int | str | None) -> None:
    """Take back an operation, or the redrive of single items.

    Of an operation, the number of items is asked back, as when it was started.

    Of a redrive or retry, what nobody has worked on since is dead again, as it was. An archive is taken back by a
    restore, a restore by an archive. A purge cannot be taken back.

    \b
    redrive undo 3c51d2aa       the operation that `redrive operation list` shows
    redrive undo 7f3a90c1       the redrive of an item
    """
    with opened() as broker:
        operation = _operation(broker, typed[0]) if len(typed) == 1 else None
        if operation is not None:
            _undo_operation(broker, operation, dry_run, yes)
            return
        try:
            whole = ids.item_ids(broker, typed)
        except ItemNotFound as error:
            raise NothingToUndo(error.id) from None
        if dry_run:
            bulk.print_plan(broker.plan("undo", ids=whole))
        else:
            change(broker, whole, "undo", broker.undo, yes=yes)


def _operation(broker: Broker, typed: str) -> Operation | None:
    """The operation of that id. None where there is none: it is one of an item."""
    try:
        return broker.operation(ids.operation_id(broker, typed))
    except OperationNotFound:
        return None


def _undo_operation(broker: Broker, done: Operation, dry_run: bool, yes: int | str | None) -> None:
    id = short(done.id)
    if not done.ended:
        raise InvalidInput(f"operation {id} is {done.status}; end it first: {to_type(f'operation cancel {id}')}")
    if done.verb not in REVERSE:
        raise InvalidInput(f"{done.verb} cannot be taken back; {', '.join(sorted(REVERSE))} can")
    verb, status = REVERSE[done.verb]
    where: dict[str, Any] = {"operation": done.id, "status": status}
    if dry_run:
        bulk.print_plan(broker.plan(verb, **where))
        return
    count = broker.count(**where)
    if not count:
        nothing = "Nothing is left to be taken back; nothing was done."
        print_json({"matched": 0, "operation": None}) if as_json() else say(nothing)
        click.get_current_context().exit(exits.NOTHING)
    confirm("take back", count, yes, final=False)
    bulk.go_on(broker, broker.undo_operation(done.id))
