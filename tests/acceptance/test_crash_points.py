"""kill -9, and a power cut, at every kind of write, sync, truncation and deletion of every operation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.acceptance.crashing import ACK, chosen_points, count_points, crash_everywhere
from tests.acceptance.faults import Fault
from tests.acceptance.operations import OPERATIONS, Operation
from tests.sizes import THOROUGH

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


def test_first_and_last_point_of_each_run_are_chosen_and_some_between() -> None:
    """Forty pages and a sync, an acknowledgement, and two more pages."""
    said = b"write wal\n" * 40 + b"sync wal\n" + ACK + b"write wal\n" * 2
    assert count_points(said) == 43
    ends = {1, 40, 41, 42, 43}
    between = []
    for fault in (Fault.KILL, Fault.POWER_CUT):
        chosen = list(chosen_points(said, fault))
        assert ends < set(chosen) <= set(range(1, 44))
        assert chosen == sorted(set(chosen))
        between.append(set(chosen) - ends)
    assert THOROUGH or not between[0] & between[1]
