"""An item is taken away from the command that runs for it: the command ends, and no other run begins beside it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.by_file import working
from tests.integration.projects import Project
from tests.until import until

from redrive import Task
from redrive.worker.app_loader import load_app

HOLDS_ON = """
trap '' TERM
for pid in $(cat pids 2>/dev/null); do
    if [ -e /proc/$pid ] && ! grep -q '^State:.Z' /proc/$pid/status 2>/dev/null; then echo $pid >> beside; fi
done
[ "$(cat begun 2>/dev/null | grep -c "$REDRIVE_ID")" -lt ${HOLDING:-1} ] || exit 0
echo $$ >> pids
sleep 1000 &
echo $! >> pids
timeout 1000 sleep 1000 &  # makes a group of its own
echo $! >> pids
echo "$REDRIVE_ID" >> begun
while :; do wait; sleep 0.1; done
"""
"""The first runs of an item neither end nor heed SIGTERM, and start others. Each run says which it meets alive.

They count what has begun and not deliveries: one that a busy machine lost before that is not waited for in vain.
"""


TASKS = """
import os, subprocess, time
from redrive import App, Context

app = App("sqlite:///redrive.db")
jobs = app.queue("jobs", lease_timeout="5s", keep_completed="1h")

def lives(pid):
    try:
        return "State:\\tZ" not in open(f"/proc/{pid}/status").read()
    except (FileNotFoundError, ProcessLookupError):
        return False

@jobs.task
def hold(context: Context) -> None:
    with open("pids", "a+") as pids, open("beside", "a") as beside:
        pids.seek(0)
        beside.writelines(filter(lives, pids.read().split()))
    if not os.path.getsize("beside"):
        os.remove("beside")
    if os.path.exists("begun"):
        return
    other = subprocess.Popen(["sleep", "1000"])
    with open("pids", "a") as pids:
        print(os.getpid(), other.pid, file=pids)
    with open("begun", "a") as begun:
        print(context.id, file=begun)
    other.wait()
"""
"""The same as a task."""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/redrive.db")
    yield project
    project.broker.close()
    for pid in pids(project):
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)


def set_up(project: Project, *, settings: str = "", options: str = "", grace: str = "200ms") -> None:
    project.command("run.sh", HOLDS_ON)
    project.write(
        f'[queue.jobs]\n{settings}\n[worker.w]\nqueue = "jobs"\nrun = "./run.sh"\nkill_grace = "{grace}"\n{options}\n'
    )


def pids(project: Project) -> list[int]:
    return [int(pid) for pid in project.text("pids").split()] if project.has("pids") else []


def has_begun(project: Project, times: int = 1) -> bool:
    return project.has("begun") and len(project.text("begun").split()) >= times


def is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def all_are_gone(project: Project) -> bool:
    return all(is_gone(pid) for pid in pids(project))


@pytest.mark.parametrize("concurrency", [1, 3])
def test_item_that_is_brought_back_by_force_runs_again_when_its_commands_have_ended(
    project: Project, concurrency: int
) -> None:
    set_up(project, options=f'concurrency = {concurrency}\nenv = {{ HOLDING = "2" }}')
    with working(project):
        id = project.put(1)
        for times in (1, 2):
            until(lambda times=times: has_begun(project, times))
            project.broker.retry(id, force=True)
        until(lambda: project.broker.stats("jobs").completed_total == 1)
        assert all_are_gone(project)
    assert not project.has("beside")


def test_item_that_is_dropped_by_force_frees_its_slot(project: Project) -> None:
    set_up(project)
    with working(project):
        dropped = project.put(1)
        until(lambda: has_begun(project))
        project.broker.drop(dropped, force=True)
        project.put(2)
        until(lambda: has_begun(project, 2))
        assert all(is_gone(pid) for pid in pids(project)[:3])


@pytest.mark.parametrize(("verb", "arguments"), [("work", []), ("serve", ["--work", "--port", "0"])])
def test_commands_end_with_a_worker_that_is_killed(project: Project, verb: str, arguments: list[str]) -> None:
    set_up(project)
    with working(project, *arguments, verb=verb) as process:
        project.put(1)
        until(lambda: has_begun(project))
        process.kill()
        until(lambda: all_are_gone(project))


def test_item_of_a_worker_that_was_killed_waits_for_the_end_of_its_command(project: Project) -> None:
    # Its command lives on for the grace, well beyond the lease.
    set_up(project, settings='lease_timeout = "2s"', grace="8s")
    with working(project) as process:
        project.put(1)
        until(lambda: has_begun(project))
        with working(project, log="log2", workers=2):
            process.kill()
            until(lambda: project.broker.stats("jobs").completed_total == 1)
            assert all_are_gone(project)
    assert not project.has("beside")
    assert "run_waits" in project.text("log2")


def test_item_of_a_worker_that_sleeps_waits_until_that_one_wakes_and_ends_its_command(project: Project) -> None:
    set_up(project, settings='lease_timeout = "3s"')
    with working(project) as asleep:
        project.put(1)
        until(lambda: has_begun(project))
        with working(project, log="log2", workers=2):
            asleep.send_signal(signal.SIGSTOP)
            until(lambda: "run_waits" in project.text("log2"))
            assert not project.broker.stats("jobs").completed_total
            asleep.send_signal(signal.SIGCONT)
            until(lambda: project.broker.stats("jobs").completed_total == 1)
            assert all_are_gone(project)
    assert not project.has("beside")
    assert "lease_lost" in project.text("log")


@pytest.fixture
def hold(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Task[..., Any]]:
    monkeypatch.chdir(project.folder)
    name = f"tasks_{os.getpid()}_{time.monotonic_ns()}"
    (project.folder / f"{name}.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(project.folder))
    with load_app(f"{name}:app") as app:
        app.create_queues(app.broker)
        yield app.tasks["hold"]
    sys.modules.pop(name)


def test_task_that_is_brought_back_by_force_runs_again_when_its_process_has_ended(
    project: Project, hold: Task[..., Any]
) -> None:
    spec = f"{hold.function.__module__}:app"
    with working(project, spec, "--processes", "2"), working(project, spec, "--processes", "2", log="log2", workers=2):
        id = hold.put().id
        until(lambda: has_begun(project))
        project.broker.retry(id, force=True)
        until(lambda: project.get(id).status == "completed")
        assert all_are_gone(project)
    assert not project.has("beside")


def test_task_of_a_worker_that_sleeps_runs_again_when_that_one_wakes_and_ends_its_process(
    project: Project, hold: Task[..., Any]
) -> None:
    spec = f"{hold.function.__module__}:app"
    with working(project, spec, "--processes", "1") as supervisor:
        id = hold.put().id
        until(lambda: has_begun(project))
        asleep = next(info.pid for info in project.broker.workers())
        with working(project, spec, "--processes", "1", log="log2", workers=2):
            supervisor.send_signal(signal.SIGSTOP)  # it would take its worker for dead
            os.kill(asleep, signal.SIGSTOP)
            until(lambda: "run_waits" in project.text("log2"))
            os.kill(asleep, signal.SIGCONT)
            until(lambda: project.get(id).status == "completed")
            assert all_are_gone(project)
            supervisor.send_signal(signal.SIGCONT)
    assert not project.has("beside")
