"""`redrive` as a process of its own, in the folder of a project."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.integration.projects import Project
from tests.until import until


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "redrive", *arguments]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}


@contextmanager
def working(
    project: Project, *arguments: str, verb: str = "work", log: str = "log", workers: int = 1
) -> Iterator[subprocess.Popen[bytes]]:
    """The command, from when there are that many workers to the end of the block; then it is killed if it still runs.

    `log` is the name of the file that it writes to.
    """
    with open(project.folder / log, "wb") as file:
        process = subprocess.Popen(
            command(verb, *arguments),
            cwd=project.folder,
            env=environment(),
            stdout=file,
            stderr=file,
            process_group=0,
        )
    try:
        until(lambda: process.poll() is not None or len(project.broker.workers()) >= workers)
        assert process.poll() is None, project.text(log)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
