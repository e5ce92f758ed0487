"""`redrive work` with a redrive.toml, as a process of its own: signals, edits, and what it says when it cannot."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.by_file import command, environment, working
from tests.integration.projects import Project
from tests.until import until

FAILS_UNTIL_TOLD = "touch begun; until [ -e go ]; do sleep 0.01; done; echo 'no luck' >&2; exit 1"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/redrive.db")
    yield project
    project.broker.close()


def run(project: Project, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=project.folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        **options,
    )


def worker(settings: str = "") -> str:
    return f'[queue.jobs]\n{settings}\n[worker.w]\nqueue = "jobs"\nrun = "./run.sh"\n'


def test_edit_while_it_runs_holds_for_the_next_failure(project: Project) -> None:
    project.command("run.sh", FAILS_UNTIL_TOLD)
    project.write(worker())
    with working(project) as process:
        id = project.put(1)
        until(lambda: project.has("begun"))
        project.write(worker('retry = { attempts = 3, cooldown = "1h" }'))
        until(lambda: project.broker.get_queue("jobs").settings.retry.attempts == 3)
        (project.folder / "go").touch()
        until(lambda: project.get(id).status == "failed")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 0
    assert project.failure(id).text == "no luck"


def test_stop_waits_for_what_runs(project: Project) -> None:
    project.command("run.sh", "touch begun; until [ -e go ]; do sleep 0.01; done")
    project.write(worker())
    with working(project) as process:
        project.put(1)
        until(lambda: project.has("begun"))
        process.send_signal(signal.SIGINT)
        until(lambda: " stopping " in project.text("log"))
        (project.folder / "go").touch()
        assert process.wait(240) == 0
    assert project.broker.stats("jobs").completed_total == 1


def test_second_signal_stops_at_once(project: Project) -> None:
    project.command("run.sh", "touch begun; exec sleep 300")
    project.write(worker())
    with working(project) as process:
        id = project.put(1)
        until(lambda: project.has("begun"))
        until(lambda: signalled(process, project))  # one that follows too soon is taken for the same
        assert process.wait(240) == 0
    item = project.get(id)
    assert (item.status, item.counters.attempts) == ("pending", 0)


def signalled(process: subprocess.Popen[bytes], project: Project) -> bool:
    process.send_signal(signal.SIGTERM)
    return "stopping_now" in project.text("log")


def test_item_of_a_worker_that_was_killed_is_lost_once_and_done_by_the_next(project: Project) -> None:
    project.command("run.sh", 'echo $$ >> pids; [ "$REDRIVE_LOSSES" = 1 ] || exec sleep 300')
    project.write(worker('lease_timeout = "4s"'))  # a busy machine loses it only by the kill
    with working(project) as process:
        id = project.put(1)
        until(lambda: project.has("pids"))
        process.kill()
        process.wait()
    assert project.get(id).status == "active"
    with working(project):
        until(lambda: project.broker.stats("jobs").completed_total == 1)


def test_workers_are_chosen_by_name(project: Project) -> None:
    project.command("run.sh", "echo $REDRIVE_QUEUE >> done")
    project.write(worker() + '[queue.mails]\n[worker.m]\nqueue = "mails"\nrun = "./run.sh"\n')
    assert run(project, "config", "apply").returncode == 0
    for queue in ("jobs", "mails"):
        project.put(1, queue)
    assert run(project, "work", "m", "--until-idle").returncode == 0
    assert project.text("done") == "mails\n"


def test_exit_codes_are_seen_whoever_started_it(project: Project) -> None:
    project.command("run.sh", "echo x >> runs; sleep 0.1; exit $(cat)")
    project.write(worker())
    assert run(project, "config", "apply").returncode == 0
    done, failed = project.put(0), project.put(3)
    ignoring = lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # noqa: E731
    assert run(project, "work", "--until-idle", preexec_fn=ignoring).returncode == 0
    assert not project.broker.find(ids=[done]).items
    assert (project.failure(failed).exit_code, project.text("runs")) == (3, "x\nx\n")


def test_mistake_in_the_file_is_told_and_nothing_begins(project: Project) -> None:
    project.write("[queue.jobs]\nlease_timeout = 'soon'\nmax_sise = 1\n")
    done = run(project, "work")
    assert done.returncode == 3
    assert "redrive.toml:2: queue.jobs.lease_timeout: 'soon' is not a duration" in done.stderr
    assert "redrive.toml:3: queue.jobs.max_sise: is not a setting of a queue (did you mean max_size?)" in done.stderr
    assert "Traceback" not in done.stderr
    assert project.broker.list_queues() == ()


def test_without_a_file_and_an_app_it_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        command("work"), cwd=tmp_path, env={**environment(), "REDRIVE_CONFIG": ""}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "there is no redrive.toml here or above" in done.stderr


def test_options_of_apps_are_refused_for_the_file(project: Project) -> None:
    project.write("")
    done = run(project, "work", "--concurrency", "3")
    assert done.returncode == 2
    assert "--concurrency is for the tasks of an app" in done.stderr


def test_file_shows_no_password(project: Project) -> None:
    project.write('url = "postgresql://ann:hunter2hunter2@db/x"\n[queue.jobs]\nmax_size = 5\n')
    for arguments in ((), ("-o", "json")):
        done = run(project, "config", "show", *arguments)
        assert done.returncode == 0, done.stderr
        assert "max_size" in done.stdout
        assert "hunter2" not in done.stdout


def test_managed_setting_is_refused_on_the_command_line_until_it_is_released(project: Project) -> None:
    project.write("[queue.jobs]\nmax_size = 5\n")
    assert "created  jobs" in run(project, "config", "apply").stdout
    refused = run(project, "queue", "update", "jobs", "--max-size", "6")
    assert refused.returncode != 0
    assert "redrive.toml" in refused.stderr, refused.stderr
    assert run(project, "config", "release", "jobs").returncode == 0
    assert project.broker.update_queue("jobs", max_size=6).settings.max_size == 6
