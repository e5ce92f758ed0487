"""What the peer scripts share: a record of every connection they open, and the JSON line they print."""

import json
import sqlite3
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.load import Step, run_one, run_threads

FULL = 2
BUSY_TIMEOUT_SECONDS = 60

_opened: list[sqlite3.Connection] = []
_connect = sqlite3.connect


def record_connections() -> None:
    """From now on, remember every connection of this process. To be called before the peer opens one."""
    setattr(sqlite3, "connect", _recording_connect)  # noqa: B010 (mypy refuses the plain assignment)


def _recording_connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
    connection: sqlite3.Connection = _connect(*args, **kwargs)
    _opened.append(connection)
    return connection


def read_back(pragma: str) -> set[Any]:
    """The value of a pragma on every connection of this process that is still open."""
    values = set()
    for connection in _opened:
        try:
            row = connection.execute(f"PRAGMA {pragma}").fetchone()
        except sqlite3.ProgrammingError as error:
            if "closed" not in str(error):
                raise
            continue
        values.add(row[0])
    return values


def set_full_sync() -> None:
    """Sets synchronous=FULL on every connection opened so far."""
    for connection in _opened:
        try:
            connection.execute("PRAGMA synchronous=FULL")
        except sqlite3.ProgrammingError as error:
            if "closed" not in str(error):
                raise


def main(name: str, open_steps: Callable[[Path, str, int], Sequence[Step]]) -> None:
    """Arguments: scenario (put or cycle), threads, an empty directory. Prints one line of JSON."""
    scenario, threads, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    record_connections()
    steps = open_steps(directory, scenario, threads)
    items, seconds = run_one(steps[0]) if threads == 1 else run_threads(steps)
    # Read back after the run, on the very connections that did the work, whichever thread opened them.
    synchronous, journal = read_back("synchronous"), read_back("journal_mode")
    assert synchronous == {FULL}, f"{name} ran with synchronous={synchronous}"
    assert len(journal) == 1, f"{name} ran with journal_mode={journal}"
    result = {
        "peer": name,
        "version": version(name),
        "scenario": scenario,
        "threads": threads,
        "items": items,
        "seconds": seconds,
        "rate": items / seconds,
        "synchronous": FULL,
        "journal_mode": journal.pop(),
        "connections": len(_opened),
        "sqlite": sqlite3.sqlite_version,
    }
    print(json.dumps(result))
