"""A full disk and an I/O error at every point: a typed error, nothing half done, and the broker goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.acceptance.children import Say, run
from tests.acceptance.crashing import prepare
from tests.acceptance.faults import Fault, Faults
from tests.acceptance.operations import OPERATIONS, Operation, open_broker
from tests.acceptance.places import State, state

from redrive import Broker, RedriveError
from redrive.errors import DiskFull, OutcomeUnknown, StoreError

NAMES = ("put", "complete", "fail, retried", "fail, dead queue", "delete a queue")
MAX_POINTS = 500
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
    outcomes = []
    for point in range(1, MAX_POINTS):
        path = tmp_path / f"{point}.db"
        path.write_bytes(prepared.template.read_bytes())
        ended = run(partial(_meet, operation, path, fault, point, prepared.context, prepared.states))
        outcome = ended.said.decode()
        if outcome == NO_ERROR:
            break
        outcomes.append(outcome)
    print(f"{operation.name}: {len(outcomes)} points ({fault}), {sorted(set(outcomes))}")
    assert len(outcomes) >= FEWEST_POINTS
    assert set(outcomes) <= ({"DiskFull"} if fault is Fault.DISK_FULL else {"OutcomeUnknown", "StoreFailed"})


def _meet(
    operation: Operation, path: Path, fault: Fault, point: int, context: object, states: list[State], say: Say
) -> None:
    """In the child: meet the error, look what is left, and do it again without one."""
    faults = Faults(fault)
    broker = open_broker(path, operation.later)
    faults.arm(point)
    before, after = states
    outcome = _try(operation, broker, context)
    faults.arm(0)
    left = state(path)
    assert left == after or (left == before and outcome != NO_ERROR), left
    assert left == before or outcome in (NO_ERROR, "OutcomeUnknown"), left
    if left == before:
        operation.steps[0](broker, context)
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
