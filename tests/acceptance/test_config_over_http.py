"""Workers of a redrive.toml that reach the store through a server, with a token that may work and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.projects import Project
from tests.servers.http import HttpServer
from tests.until import until

from redrive import connect
from redrive.broker.flows import external_polls
from redrive.config import load
from redrive.config.runtime import ConfigRuntime
from redrive.errors import Forbidden, Unauthorized

FILE = """
url = "sqlite:///jobs.db"

[queue.jobs]
retry = { attempts = 2 }

[queue.tickets]
type = "external"
list = "cat tickets.json"
claim = "./take.sh"

[worker.w]
queue = "jobs"
run = "./run.sh"

[worker.fixer]
queue = "tickets"
run = "./run.sh"
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    project.write(FILE)
    project.command("run.sh", 'echo "$(cat)" >> done')  # in one write, since two run beside each other
    project.command("take.sh", "exit 0")
    (tmp_path / "tickets.json").write_text('[{"id":7}]')
    yield project
    project.broker.close()


@pytest.fixture
def server(project: Project, tmp_path: Path) -> Iterator[HttpServer]:
    server = HttpServer(f"sqlite:///{project.folder}/jobs.db", tmp_path)
    yield server
    server.process.kill()
    server.process.wait()


def token(project: Project, name: str, *roles: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    options = [option for role in roles for option in ("--role", role)]
    done = subprocess.run(
        [sys.executable, "-m", "redrive", "token", "create", name, *options, "-o", "json"],
        cwd=project.folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    made: str = json.loads(done.stdout)["token"]
    return made


def asks_for_tokens(server: HttpServer) -> bool:
    """It does so from the second after the first was made."""
    try:
        connect(server.url).close()
    except Unauthorized:
        return True
    return False


def test_server_applies_the_file_and_a_worker_with_a_small_token_works(
    project: Project, server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    until(lambda: {queue.name for queue in project.broker.list_queues()} == {"jobs", "tickets"})
    secret = token(project, "worker", "consumer", "producer")
    until(lambda: asks_for_tokens(server))
    project.put({"n": 1})
    project.broker.put("tickets", "one that is there, and that a consumer may not look at", delay="1h")
    with connect(server.url, token=secret) as broker:
        with pytest.raises(Forbidden):
            broker.update_queue("jobs", max_size=5)
        running = ConfigRuntime(broker, load(project.file), watch=False)
        running.start()
        until(lambda: project.has("done") and len(project.text("done").splitlines()) == 2)
        running.stop()
    assert "config_not_applied" in caplog.text
    assert caplog.text.count("external_keys_only") == 1
    until(lambda: project.broker.stats("tickets").completed_total == 1)
    assert sorted(project.text("done").splitlines()) == ['{"id":7}', '{"n":1}']
    listing = project.broker.run_flow(external_polls.external_queue("tickets"))
    assert listing is not None
    assert (listing.polls, listing.objects, listing.added) == (1, 1, 1)


def test_object_that_was_dropped_runs_again_where_the_token_lets_the_worker_look(
    project: Project, server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    until(lambda: {queue.name for queue in project.broker.list_queues()} == {"jobs", "tickets"})
    secret = token(project, "worker", "consumer", "operator")
    until(lambda: asks_for_tokens(server))
    project.command("run.sh", "cat >> done; echo >> done; exit 1")
    with connect(server.url, token=secret) as broker:
        for runs in (1, 2):
            for _ in range(2):
                ConfigRuntime(broker, load(project.file), watch=False).run_until_idle()
            assert project.text("done").splitlines() == ['{"id":7}'] * runs
            (dead,) = project.broker.find(queue="tickets").items
            project.broker.drop(dead.id)
    assert "external_keys_only" not in caplog.text


def test_admin_applies_the_file_through_a_server_that_has_none(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = HttpServer(f"sqlite:///{project.folder}/jobs.db", tmp_path_factory.mktemp("elsewhere"))
    try:
        with connect(server.url, token=token(project, "boss", "admin")) as broker:
            running = ConfigRuntime(broker, load(project.file), watch=False, workers=())
            running.start()
            running.stop()
    finally:
        server.process.kill()
        server.process.wait()
    assert project.broker.get_queue("jobs").settings.retry.attempts == 2


@pytest.mark.parametrize("url", ["jobs.db", "of-another-name.db"])
def test_server_runs_the_workers_of_the_file_on_the_store_that_is_named(project: Project, url: str) -> None:
    project.write(FILE.replace("jobs.db", url))
    server = HttpServer(f"sqlite:///{project.folder}/jobs.db", project.folder, "--work")
    try:
        until(lambda: "jobs" in {queue.name for queue in project.broker.list_queues()})
        project.put({"n": 1})
        until(lambda: project.broker.stats("jobs").completed_total == 1)
        project.write(FILE.replace("jobs.db", url).replace("attempts = 2", "attempts = 9"))
        until(lambda: project.broker.get_queue("jobs").settings.retry.attempts == 9)
    finally:
        server.process.terminate()
        assert server.process.wait(240) == 0
    assert str(project.file) in server.log.read_text()
    assert not project.has("of-another-name.db")
