"""`redrive dead export|import`: items as lines of JSON."""

from __future__ import annotations

import os
import stat
import sys
from typing import IO, Any, cast

import click
import msgspec

from redrive.cli import error_output
from redrive.cli.bulk_change import progress_bar
from redrive.cli.commands.shell_completion import complete_queue
from redrive.cli.common_options import as_json, command, command_line, was_given
from redrive.cli.output import print_json, print_line, print_note
from redrive.cli.selection import condition_options, conditions
from redrive.cli.store_target import open_target
from redrive.errors import InvalidInput
from redrive.model.item import Status
from redrive.model.sqlite_url import OWNER_ONLY
from redrive.model.text import pluralize, visible_json


@command("export")
@condition_options()
@click.option("--status", type=click.Choice([*map(str, Status), "any"]), default=Status.DEAD.value, show_default=True,
              help="Only items in this status; any selects all.")  # fmt: skip
@click.option("--to", "target", type=click.Path(dir_okay=False, allow_dash=True), default="-",
              help="The file to write; default: stdout.")  # fmt: skip
@click.option(
    "--secrets",
    is_flag=True,
    help="Also write values that look like secrets. Without it, items with such values cannot be imported.",
)
@click.option("--cursor", help="Continue after the cursor of an interrupted export.")
def export(status: str, target: str, secrets: bool, cursor: str | None) -> None:
    """Write items as lines of JSON, with payload, history and deaths (docs/reference/export-format.md).

    Only the owner of the file may read it (0600). The audit records who uses --secrets.

    \b
    redrive dead export -q orders-dead --secrets --to dead.jsonl
    redrive dead import dead.jsonl --url sqlite:///other.db
    """
    with open_target() as broker:
        where = conditions(broker, status=status) if was_given("status") else {"status": status, **conditions(broker)}
        total = broker.count(**where)
        count = 0
        in_terminal = target == "-" and sys.stdout.isatty()  # elsewhere the bytes are not escaped
        with _written(target) as file, progress_bar("export", total, hidden=in_terminal) as shown:
            for line in broker.export(cursor=cursor, redacted=not secrets, **where):
                file.write(visible_json(line.decode()).encode() if in_terminal else line)
                count += not line.startswith(b'{"format":1,"cursor"')
                shown.at(count)
            file.flush()
    print_note(f"{pluralize(count, 'item')} written" + ("" if target == "-" else f" to {target}"))


@command("import")
@click.argument("source", type=click.File("rb"), default="-", metavar="[FILE]")
@click.option("--queue", "-q", metavar="QUEUE", shell_complete=complete_queue,
              help="Put all items into this queue; default: the queues with the names in the export.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only read the lines, and count their items.")
def import_(source: IO[bytes], queue: str | None, dry_run: bool) -> None:
    """Put the items of an export from a FILE or stdin. Items that were imported before are ignored.

    Every item gets a new id, and keeps its history. After an interruption, import the same file again.
    """
    with open_target() as broker:
        if queue is not None:
            broker.get_queue(queue)
        if dry_run:
            _print(_counted(source, {each.name for each in broker.list_queues()}, queue))
            return
        with progress_bar("import", None) as shown:
            done = broker.import_items(source, queue=queue, progress=lambda now: shown.at(now.imported + now.ignored))
    _print({"dry_run": False, "imported": done.imported, "ignored": done.ignored})
    if not done.imported and not done.ignored:
        click.get_current_context().exit(error_output.NOTHING)


def _written(target: str) -> IO[bytes]:
    """Open the file to write, which only its owner may read."""
    if target == "-":
        return cast("IO[bytes]", click.open_file(target, "wb"))
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), OWNER_ONLY)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.chmod(target if sys.platform == "win32" else descriptor, OWNER_ONLY)
                os.truncate(descriptor, 0)
            return open(descriptor, "wb")
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise click.BadParameter(f"{target!r} cannot be written: {error.strerror}", param_hint="--to") from None


class _Line(msgspec.Struct, frozen=True):
    """The fields of a line of an export that decide whether it can be imported."""

    format: int
    queue: str | None = None
    cursor: str | None = None
    redacted: bool = False


def _counted(source: IO[bytes], queues: set[str], queue: str | None) -> dict[str, Any]:
    """Count the items of the lines, without checking whether they were imported before."""
    items, missing, redacted = 0, set(), 0
    for number, text in enumerate(source, start=1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"line {number} is no line of an export: {error}") from None
        name = queue or line.queue
        if line.cursor is None and name is not None:
            items += 1
            redacted += line.redacted
            if name not in queues:
                missing.add(name)
    return {"dry_run": True, "items": items, "redacted": redacted, "missing_queues": sorted(missing)}


def _print(done: dict[str, Any]) -> None:
    if as_json():
        print_json(done)
        return
    if not done["dry_run"]:
        print_line(f"{pluralize(done['imported'], 'item')} imported, {done['ignored']:,} were there already")
        return
    print_line(f"{pluralize(done['items'], 'item')} would be imported")
    if done["redacted"]:
        print_line(
            f"  {done['redacted']:,} of them cannot be imported: their secrets are redacted; export them with --secrets"
        )
    for name in done["missing_queues"]:
        print_line(f"  queue {name} does not exist: {command_line(f'queue create {name}')}, or give --queue")
