"""`redrive serve --work` is told to stop while a command runs: once, and once more."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.servers.http import HttpServer
from tests.until import until

from redrive import connect
from redrive.testing.fake_clock import PATIENCE_SECONDS


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_command_that_runs_may_finish_and_its_item_is_completed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    (tmp_path / "redrive.toml").write_text(
        f'url = "{url}"\n[queue.jobs]\n[worker.w]\nqueue = "jobs"\n'
        'run = "touch began; until [ -e go ]; do sleep 0.01; done"\nshell = true\n'
    )
    server = HttpServer(url, tmp_path, "--work")
    with connect(url, maintenance=False) as broker:
        broker.put("jobs", 1)
        until((tmp_path / "began").exists)
        broker.put("jobs", 2)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "server_stopped" in server.log.read_text())
        (tmp_path / "go").touch()
        assert server.process.wait(PATIENCE_SECONDS) == 0
        stats = broker.stats("jobs")
        assert (stats.active, stats.pending) == (0, 1), "the first is done, the second nobody leased"


def test_second_signal_ends_commands_and_gives_their_items_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    (tmp_path / "redrive.toml").write_text(
        f'url = "{url}"\n[queue.jobs]\n[worker.w]\nqueue = "jobs"\nrun = "echo $$ > began.new; mv began.new began; '
        'exec sleep 600"\nshell = true\n'
    )
    server = HttpServer(url, tmp_path, "--work", "--shutdown-timeout", "10m")
    began = tmp_path / "began"
    with connect(url, maintenance=False) as broker:
        broker.put("jobs", 1)
        until(began.exists)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "server_stopped" in server.log.read_text())
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_SECONDS) in (0, 130)
        assert not is_alive(int(began.read_text()))
        stats = broker.stats("jobs")
        assert (stats.active, stats.pending) == (0, 1)
