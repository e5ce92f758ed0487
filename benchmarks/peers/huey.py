# /// script
# dependencies = ["huey==3.5.4"]
# ///
"""huey, SqliteHuey: WAL, fsync=True, one connection shared by all threads under its own lock.

dequeue + execute is what its consumer's worker does; drained side by side, neither was faster beyond the noise. huey
takes a task out of the database before it runs: a crash loses it, and a cycle has one durable write less than put,
lease, complete.
"""

from collections.abc import Sequence
from pathlib import Path

from huey import SqliteHuey

from benchmarks.load import Step, payload
from benchmarks.peers.peer import BUSY_TIMEOUT_SECONDS, main

PAYLOAD = payload()


def no_operation(value: object) -> None:
    """Returns None, so that huey writes no result."""


def open_steps(directory: Path, scenario: str, threads: int) -> Sequence[Step]:
    huey = SqliteHuey(filename=str(directory / "huey.db"), fsync=True, timeout=BUSY_TIMEOUT_SECONDS)

    work = huey.task()(no_operation)

    def put() -> int:
        work(PAYLOAD)
        return 1

    def cycle() -> int:
        work(PAYLOAD)
        huey.execute(huey.dequeue())
        return 1

    return [{"put": put, "cycle": cycle}[scenario]] * threads


if __name__ == "__main__":
    main("huey", open_steps)
