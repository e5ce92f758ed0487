"""A full disk and an I/O error at every kind of point: a typed error, nothing half done, and the broker goes on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.acceptance.children import Say, run
from tests.acceptance.crashing import Prepared, chosen_points, count_points, prepare
from tests.acceptance.faults import Fault, Faults
from tests.acceptance.operations import OPERATIONS, Operation, open_broker
from tests.acceptance.places import state

from redrive import Broker, RedriveError
from redrive.errors import DiskFull, OutcomeUnknown, StoreError

NAMES = ("put", "complete", "fail, retried", "fail, dead queue", "delete a queue")
FEWEST_POINTS = 5
NO_ERROR = "no error"

every_operation = pytest.mark.parametrize(
    "operation",
    [operation for operation in OPERATIONS if operation.name in NAMES],
    ids=lambda operation: operation.name,
)


@every_operation
@pytest.mark.parametrize("fault", [Fault.DISK_FULL, Fault.IO_ERROR])
def test_call_gets_a_typed_error_and_the_broker_goes_on(operation: Operation, fault: Fault, tmp_path: Path) -> None:
    prepared = prepare(operation, tmp_path)

    def meet(point: int, work: Callable[..., None]) -> bytes:
        path = tmp_path / f"{point}.db"
        path.write_bytes(prepared.template.read_bytes())
        return run(partial(work, operation, path, fault, point, prepared)).said

    said = meet(0, _rehearse)
    outcomes = {meet(point, _meet).decode() for point in chosen_points(said, fault)}
    print(f"{operation.name}: {count_points(said)} points ({fault}), {sorted(outcomes)}")
    assert count_points(said) >= FEWEST_POINTS
    assert outcomes <= ({"DiskFull"} if fault is Fault.DISK_FULL else {"OutcomeUnknown", "StoreFailed"})


def _rehearse(operation: Operation, path: Path, fault: Fault, point: int, prepared: Prepared, say: Say) -> None:
    """In the child: do it without an error, and say which points there are."""
    faults = Faults(fault)
    broker = open_broker(path, operation.later)
    faults.arm(point, note=say)
    operation.steps[0](broker, prepared.context)
    faults.arm(0)
    broker.close()


def _meet(operation: Operation, path: Path, fault: Fault, point: int, prepared: Prepared, say: Say) -> None:
    """In the child: meet the error, look what is left, and do it again without one."""
    faults = Faults(fault)
    broker = open_broker(path, operation.later)
    faults.arm(point)
    before, after = prepared.states
    outcome = _try(operation, broker, prepared.context)
    faults.arm(0)
    left = state(path)
    assert left == after or (left == before and outcome != NO_ERROR), left
    assert left == before or outcome in (NO_ERROR, "OutcomeUnknown"), left
    if left == before:
        operation.steps[0](broker, prepared.context)
    broker.close()
    assert state(path) == after
    say(outcome.encode())


def _try(operation: Operation, broker: Broker, context: object) -> str:
    try:
        operation.steps[0](broker, context)
    except (StoreError, OutcomeUnknown) as error:
        return type(error).__name__
    return NO_ERROR


def test_queue_that_a_full_disk_did_not_take_is_not_remembered(tmp_path: Path) -> None:
    """What was read inside a transaction that was rolled back must not stay in memory."""
    path = tmp_path / "redrive.db"
    open_broker(path).close()

    def work(say: Say) -> None:
        faults = Faults(Fault.DISK_FULL)
        broker = open_broker(path)
        broker.list_queues()
        faults.arm(1)
        with pytest.raises(DiskFull):
            broker.create_queue("jobs")
        faults.arm(0)
        with pytest.raises(RedriveError, match="jobs"):
            broker.put("jobs", 1)
        broker.create_queue("jobs")
        broker.put("jobs", 1)

    run(work)
    assert len(state(path).items) == 1
