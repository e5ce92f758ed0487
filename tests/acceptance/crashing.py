"""Run an operation again and again, with a fault one point later each time, and look at what is left of the file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.acceptance.children import Ended, Say, run
from tests.acceptance.faults import Fault, Faults
from tests.acceptance.operations import Operation, open_broker
from tests.acceptance.places import Broken, State, state

from redrive.stores.sqlite import checkpoint

MAX_POINTS = 5_000
ACK = b"a"

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
    """Crash at the first point, the second, … until the operation survives. Gives the number of points.

    Raises Broken where an acknowledged step is not there, a step is there in part, or an item is not in one place.
    """
    prepared = prepare(operation, folder)
    for point in range(1, MAX_POINTS):
        path = folder / f"{point}.db"
        _copy(prepared.template, path)
        ended = run(partial(_operate, operation, prepared, path, fault, point, plant, options))
        _check(operation, prepared, path, ended.said.count(ACK), point)
        for left in folder.glob(f"{path.name}*"):
            left.unlink()
        if not ended.killed:
            return point - 1
        if _was_last(operation, ended):
            return point
    raise AssertionError(f"{operation.name} has more than {MAX_POINTS} points")


def _was_last(operation: Operation, ended: Ended) -> bool:
    """A power cut after the last acknowledgement."""
    return ended.said.count(ACK) == len(operation.steps)


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
    """In the child."""
    faults = Faults(fault, seed=point)
    if operation.checkpoint_pages is not None:
        checkpoint.CHECKPOINT_PAGES = operation.checkpoint_pages
    if plant is not None:
        plant()
    if operation.prepare is None:
        faults.arm(point)
    broker = open_broker(path, operation.later, **options)
    if operation.prepare is not None:
        faults.arm(point)
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
            for operation in broker.operations(unfinished=True):
                ended = broker.drive(operation.id)
                if not ended.ended or ended.met != ended.expected:
                    raise Broken(f"{ended} was driven to its end and did not meet what was expected")
        state(path)
    except Broken as broken:
        raise Broken(f"{operation.name}, point {point}: {broken}") from broken


def _copy(template: Path, path: Path) -> None:
    if template.exists():
        shutil.copyfile(template, path)
