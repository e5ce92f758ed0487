"""A failed test shows what its servers logged, and others show nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.servers import failure_log

TEST = """
import pytest
from tests.servers import postgres, redis

class Logged(redis.Server):
    def __init__(self, folder):
        self.folder, self.port = folder, 1
        (folder / "log").write_text("".join(f"line {number} of {folder.name}\\n" for number in range(100)))

class Cluster(redis.Cluster):
    def __init__(self, *servers):
        self.servers = list(servers)

@pytest.fixture(scope="session")
def server(tmp_path_factory):
    return Logged(tmp_path_factory.mktemp("server"))

@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    return Cluster(Logged(tmp_path_factory.mktemp("first")), Logged(tmp_path_factory.mktemp("second")))

def test_that_succeeds(server):
    pass

def test_that_asks_for_it_by_name(request):
    request.getfixturevalue("server")
    assert False

def test_without_a_server():
    assert False

def test_on_a_cluster(cluster):
    assert False
"""


def test_failed_test_shows_the_last_lines_of_the_logs_of_its_servers(tmp_path: Path) -> None:
    (tmp_path / "test_servers.py").write_text(TEST)
    environment = {**os.environ, "PYTHONPATH": str(Path(failure_log.__file__).parents[2])}
    command = [sys.executable, "-m", "pytest", "-p", "tests.servers.failure_log", "--rootdir", tmp_path, tmp_path]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    by_name, without, cluster = done.stdout.split("___ test_")[1:]
    assert [by_name.count(" of server0"), without.count("line "), cluster.count(" of first0")] == [40, 0, 40]
    assert "line 59 of server0" not in by_name
    assert "line 60 of server0" in by_name
    assert "line 99 of second0" in cluster
