"""Run an operation again and again, with a fault at another point each time, and look at what is left of the file.

Points are of one kind if the same is done to the same file in the same step: they follow each other in runs, such as
the pages that a transaction appends to the log. A crash at the first and at the last point of each run, and at some
between, meets every kind, and what is there when it begins and when it ends. Those between are not the same for a kill
as for a power cut. With `./dev soak` it is at every point.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from tests.acceptance.children import Ended, Say, run
from tests.acceptance.faults import Fault, Faults
from tests.acceptance.operations import Operation, open_broker
from tests.acceptance.places import Broken, State, state
from tests.sizes import THOROUGH

from redrive.stores.sqlite import checkpoint

STRIDE = 1 if THOROUGH else 15
"""Between the first and the last point of a run. Odd, since a page is two writes: its header, and itself."""
ACK = b"ack\n"

Plant = Callable[[], None]
"""Plants a bug in the child."""


class Prepared(NamedTuple):
    """A file to start from, what the steps need, and the states that the steps lead through."""

    template: Path
    context: Any
    states: list[State]


def prepare(operation: Operation, folder: Path) -> Prepared:
    """Make the file, and run the operation once without a fault."""
    template, context = folder / "template.db", None
    if operation.prepare is not None:
        with open_broker(template, durability="relaxed") as broker:
            context = operation.prepare(broker)
    reference = folder / "reference.db"
    _copy(template, reference)
    broker = open_broker(reference, operation.later, durability="relaxed")
    states = [state(reference)]
    for step in operation.steps:
        step(broker, context)
        states.append(state(reference))
    broker.close()
    return Prepared(template, context, states)


def crash_everywhere(
    operation: Operation, folder: Path, fault: Fault = Fault.KILL, plant: Plant | None = None, **options: Any
) -> int:
    """Crash at every kind of point that the operation has. Gives how many points it has.

    Raises Broken where an acknowledged step is not there, a step is there in part, or an item is not in one place.
    """
    prepared = prepare(operation, folder)

    def crash(point: int) -> Ended:
        path = folder / f"{point}.db"
        _copy(prepared.template, path)
        ended = run(partial(_operate, operation, prepared, path, fault, point, plant, options))
        _check(operation, prepared, path, ended.said.count(ACK), point)
        for left in folder.glob(f"{path.name}*"):
            left.unlink()
        return ended

    said = crash(0).said
    for point in chosen_points(said, fault):
        crash(point)
    return count_points(said)


def count_points(said: bytes) -> int:
    """How many points there were, of an operation that ran through, and said their kinds and its acknowledgements."""
    return said.count(b"\n") - said.count(ACK)


def chosen_points(said: bytes, fault: Fault) -> Iterator[int]:
    """Those of them at which it happens."""
    before, begin = 0, max(1, STRIDE // 2) if fault in (Fault.POWER_CUT, Fault.IO_ERROR) else STRIDE
    for kind, same in groupby(said.splitlines(keepends=True)):
        if kind != ACK:
            last = before + len(list(same))
            yield before + 1
            yield from range(before + 1 + begin, last, STRIDE)
            if last > before + 1:
                yield last
            before = last


def _operate(
    operation: Operation,
    prepared: Prepared,
    path: Path,
    fault: Fault,
    point: int,
    plant: Plant | None,
    options: dict[str, Any],
    say: Say,
) -> None:
    """In the child. Point 0 is none: it runs through, and loses power at the end if that is the fault."""
    faults = Faults(fault, seed=point)
    if operation.checkpoint_pages is not None:
        checkpoint.CHECKPOINT_PAGES = operation.checkpoint_pages
    if plant is not None:
        plant()
    if operation.prepare is None:
        faults.arm(point, note=say)
    broker = open_broker(path, operation.later, **options)
    if operation.prepare is not None:
        faults.arm(point, note=say)
    for step in operation.steps:
        step(broker, prepared.context)
        say(ACK)
    if faults.fault is Fault.POWER_CUT:
        faults.cut_power()


def _check(operation: Operation, prepared: Prepared, path: Path, acknowledged: int, point: int) -> None:
    """Open the file as the next process would, look at it, and go on working with it."""
    try:
        with open_broker(path, operation.later, durability="relaxed") as broker:
            left = state(path)
            allowed = prepared.states[acknowledged : acknowledged + 2]
            if left not in allowed:
                raise Broken(f"{acknowledged} steps were acknowledged and the file holds {left}, not {allowed}")
            broker.create_queue("probe")
            broker.put("probe", point)
            broker.complete(broker.lease("probe")[0])
            for operation in broker.list_operations(unfinished=True):
                ended = broker.run_operation(operation.id)
                if not ended.ended or ended.examined != ended.expected:
                    raise Broken(f"{ended} was driven to its end and did not meet what was expected")
        state(path)
    except Broken as broken:
        raise Broken(f"{operation.name}, point {point}: {broken}") from broken


def _copy(template: Path, path: Path) -> None:
    if template.exists():
        shutil.copyfile(template, path)
