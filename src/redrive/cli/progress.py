"""Progress of long work: a bar in a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redrive.cli.options import as_json, to_type
from redrive.cli.printing import remark, short
from redrive.model.operation import Operation, OperationStatus

if TYPE_CHECKING:
    from rich.progress import Progress

    from redrive.broker.broker import Broker


class Bar:
    """How far something got. Does nothing where nobody looks."""

    def __init__(self, progress: Progress | None, title: str, total: int | None) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task(title, total=total)

    def at(self, done: int, title: str | None = None) -> None:
        """So many are done."""
        if self._progress is not None and self._task is not None:
            if title is None:
                self._progress.update(self._task, completed=done)
            else:
                self._progress.update(self._task, completed=done, description=title)


@contextmanager
def bar(title: str, total: int | None, *, hidden: bool = False) -> Iterator[Bar]:
    """A bar on stderr, while this runs. With no total, it only moves. `hidden` where the output is in its place."""
    if hidden or as_json() or not sys.stderr.isatty():
        yield Bar(None, title, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, title, total)


def drive(broker: Broker, operation: Operation, wait: str) -> Operation:
    """Make the steps of an operation here, with a bar, until it has ended or the time is over."""
    title = f"{operation.verb} {short(operation.id)}"
    try:
        with bar(title, operation.expected) as shown:

            def progress(now: Operation) -> None:
                watching = now.status is OperationStatus.WATCHING
                shown.at(now.met, f"{title}: waits for {len(now.canary_ids)} canaries" if watching else title)

            progress(broker.operation(operation.id))
            return broker.drive(operation.id, wait=wait, progress=progress)
    except KeyboardInterrupt:
        id = short(operation.id)
        remark(
            f"\nThe operation {id} is not cancelled: it lives in the store, and goes on wherever a worker or a server "
            f"has that open.\n  go on here: {to_type(f'operation resume {id}')}\n"
            f"  end it:     {to_type(f'operation cancel {id}')}"
        )
        raise
