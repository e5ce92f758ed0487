"""A second opinion on the crash points: strace kills the process at its n-th system call that writes.

Skipped where there is no strace, or where it may not trace.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.acceptance.crashing import prepare
from tests.acceptance.operations import OPERATIONS, Operation
from tests.acceptance.places import state
from tests.sizes import THOROUGH

STRIDES = {"put": 6, "fail, dead queue": 13, "redrive from a dead queue": 13}
"""Operation → how far two points are apart, since each takes a program that starts; 1 with `./dev soak`."""
MAX_POINTS = 500
FEWEST_KILLS = 3
CALLS = "pwrite64,fdatasync,fsync,ftruncate,unlink"
PROGRAM = """
import pickle, sys
from pathlib import Path
from tests.acceptance.operations import OPERATIONS, open_broker
name, path, context = sys.argv[1], Path(sys.argv[2]), pickle.loads(bytes.fromhex(sys.argv[3]))
operation = next(operation for operation in OPERATIONS if operation.name == name)
broker = open_broker(path, operation.later)
operation.steps[0](broker, context)
print("done", flush=True)
"""


def _traced(arguments: list[str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={CALLS}", *arguments, *command],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(__file__).parents[2],
    )


@pytest.fixture(scope="module", autouse=True)
def _strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("there is no strace on this machine")
    if _traced([], "true").returncode:
        pytest.skip("strace may not trace here")


@pytest.mark.parametrize(
    "operation",
    [each for each in OPERATIONS if each.name in STRIDES],
    ids=lambda operation: operation.name,
)
def test_kill_at_a_system_call_leaves_all_or_nothing(operation: Operation, tmp_path: Path) -> None:
    prepared = prepare(operation, tmp_path)
    context = pickle.dumps(prepared.context).hex()
    kills = 0
    for point in range(1, MAX_POINTS, 1 if THOROUGH else STRIDES[operation.name]):
        path = tmp_path / f"{point}.db"
        path.write_bytes(prepared.template.read_bytes())
        ended = _traced(
            ["-e", f"inject={CALLS}:signal=SIGKILL:when={point}"],
            *(sys.executable, "-c", PROGRAM, operation.name, str(path), context),
        )
        left, done = state(path), "done" in ended.stdout
        assert left == prepared.states[1] or (left == prepared.states[0] and not done), f"point {point}: {left}"
        if ended.returncode == 0:
            break
        kills += 1
    print(f"{operation.name}: {kills} kills up to point {point}")
    assert kills >= FEWEST_KILLS, ended.stderr
