"""The retry processor in processes: `redrive work module:dlq`, several at once, and killed in the middle of a retry."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.until import until

from redrive import connect
from redrive.capture import DeadLetterQueue, DeadLetterStatus
from redrive.testing.fake_clock import PATIENCE_SECONDS
from redrive.worker.dispatcher import Dispatcher

MODULE = """
import os, pathlib, time

from redrive.capture import DeadLetterQueue

dlq = DeadLetterQueue(os.environ["CALLS"])
folder = pathlib.Path(os.environ["FOLDER"])


def retry(task, **extra):
    with (folder / f"runs-{task}").open("a") as runs:
        runs.write(f"{os.getpid()}\\n")
    if task == "hangs" and (folder / "runs-hangs").read_text().count("\\n") == 1:
        time.sleep(3600)
    return {"status": "completed", "pid": os.getpid()}


dlq.set_callback(retry)
"""


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/calls.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@contextmanager
def processor(url: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`redrive work calls:dlq`, until the block ends."""
    (folder / "calls.py").write_text(MODULE)
    environment = {**os.environ, "CALLS": url, "FOLDER": str(folder)}
    command = [sys.executable, "-m", "redrive", "work", "calls:dlq", *options]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)


def runs(folder: Path, task: str) -> list[str]:
    path = folder / f"runs-{task}"
    return path.read_text().split() if path.exists() else []


def test_two_processors_run_each_task_once_and_statistics_know_of_them(url: str, tmp_path: Path) -> None:
    with connect(url) as broker:
        dlq = DeadLetterQueue(broker)
        for number in range(20):
            dlq.enqueue(f"task-{number}", f"t{number}", "down", retry_policy="immediate")
        with processor(url, tmp_path), processor(url, tmp_path):
            until(lambda: dlq.get_statistics()["status_breakdown"]["completed"] == 20)
            until(lambda: dlq.get_statistics()["is_processor_running"])
        assert all(len(runs(tmp_path, f"t{number}")) == 1 for number in range(20))
        assert dlq.get_statistics()["lifetime_stats"]["retry_success"] == 20


def test_task_whose_process_is_killed_is_tried_again_without_using_up_a_retry(url: str, tmp_path: Path) -> None:
    with connect(url) as broker:
        dlq = DeadLetterQueue(broker)
        dlq.enqueue("one", "hangs", "down", retry_policy="immediate", max_retries=1)
        with processor(url, tmp_path):
            until(lambda: runs(tmp_path, "hangs"))
            os.kill(int(runs(tmp_path, "hangs")[0]), signal.SIGKILL)
            until(lambda: dlq.get_statistics()["status_breakdown"]["completed"] == 1)
        task = dlq.get_task("one")
        assert task is not None
        assert (task.status, task.retry_count) == (DeadLetterStatus.COMPLETED, 0)
        assert len(runs(tmp_path, "hangs")) == 2


SCRIPT = """
from redrive.capture import DeadLetterQueue

dlq = DeadLetterQueue("sqlite:///calls.db")


@dlq.guard(policy="immediate", on_failure="handle")
def charge(order: int) -> str:
    if __name__ == "__main__":
        raise ConnectionError("no answer")
    return "paid"


if __name__ == "__main__":
    charge(7)
"""


@pytest.mark.parametrize("command", [["calls.py"], ["-m", "calls"]])
def test_call_that_fails_in_a_script_is_retried_by_a_worker_that_imports_it(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(SCRIPT)
    for words in (command, ["-m", "redrive", "work", "calls:dlq", "--until-idle"]):
        subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, timeout=120, check=True)
    with DeadLetterQueue(f"sqlite:///{tmp_path}/calls.db") as dlq:
        (task,) = dlq.list_tasks()
        assert (task.status, task.result) == (DeadLetterStatus.COMPLETED, "paid")
        assert task.task["function"] == "calls.charge"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_module_without_a_function_is_refused(url: str, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text(
        "from redrive.capture import DeadLetterQueue\ndlq = DeadLetterQueue('sqlite:///x.db')\n"
    )
    command = [sys.executable, "-m", "redrive", "work", "empty:dlq"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "no function can run the tasks of 'captured'" in done.stderr


def test_task_that_does_not_end_is_returned_before_the_queue_is_shut_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker notices up to a second later that it is to wait no more, and a store may be slow to take the task."""
    began, end = threading.Event(), threading.Event()
    return_running = Dispatcher.return_running

    def return_slowly(dispatcher: Dispatcher, reason: str) -> bool:
        threading.Event().wait(0.3)
        return return_running(dispatcher, reason)

    monkeypatch.setattr(Dispatcher, "return_running", return_slowly)

    def hangs(task: object) -> None:
        began.set()
        end.wait()

    with connect(f"sqlite:///{tmp_path}/calls.db") as broker:
        dlq = DeadLetterQueue(broker)
        dlq.enqueue("one", 1, "down", retry_policy="immediate")
        dlq.start_retry_processor(hangs)
        try:
            assert began.wait(PATIENCE_SECONDS)
            assert dlq.stop_retry_processor(timeout=0.1)
            task = dlq.get_task("one")
            assert task is not None
            assert task.status is DeadLetterStatus.PENDING
        finally:
            end.set()
