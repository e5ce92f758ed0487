"""kill -9, and a power cut, at every kind of write, sync, truncation and deletion of every operation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.acceptance.crashing import ACK, chosen_points, count_points, crash_everywhere
from tests.acceptance.faults import Fault
from tests.acceptance.operations import OPERATIONS, Operation

FEWEST_POINTS = 5
"""An operation with fewer was not interrupted where it matters."""

every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
Report = Callable[[str, object], None]


@every_operation
@pytest.mark.parametrize("fault", [Fault.KILL, Fault.POWER_CUT])
def test_acknowledged_steps_are_there_and_every_item_is_in_one_place(
    operation: Operation, fault: Fault, tmp_path: Path, record_property: Report
) -> None:
    points = crash_everywhere(operation, tmp_path, fault)
    record_property("points", points)
    print(f"{operation.name}: {points} points ({fault})")
    assert points >= FEWEST_POINTS, f"{operation.name} has {points} points"


def test_first_and_last_point_of_each_run_are_chosen() -> None:
    """Twenty pages and a sync, an acknowledgement, and two more pages."""
    said = b"write wal\n" * 20 + b"sync wal\n" + ACK + b"write wal\n" * 2
    assert count_points(said) == 23
    assert {1, 20, 21, 22, 23} <= set(chosen_points(said)) <= set(range(1, 24))
    assert len(list(chosen_points(said))) == len(set(chosen_points(said)))
