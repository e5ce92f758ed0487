"""Several processes apply one redrive.toml at once: two servers, or a server and a worker, started together."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from redrive import Broker, connect
from redrive.broker.flows import queues as flows_queues
from redrive.config.apply import apply
from redrive.config.loader import parse

PROCESSES, ROUNDS = 4, 8


def text(round: int) -> str:
    """A file that changes queues, makes one more, and says what becomes of its dead, each time otherwise."""
    queues = [f"[queue.q{n}]\nmax_size = {round + 1}\n" for n in range(3)]
    new = f"[queue.new{round}]\ndead_queue = 'dead{round}'\n"
    return "".join([*queues, "keep_dead = '1d'\n" if round % 2 else "", new])


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def apply_together(brokers: list[Broker], text: str, file: Path) -> list[BaseException]:
    """Each in a thread, at the same moment. What went wrong."""
    together, errors = threading.Barrier(len(brokers)), list[BaseException]()

    def run(broker: Broker) -> None:
        together.wait()
        try:
            apply(broker, parse(text, file))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(broker,)) for broker in brokers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_whoever_is_second_finds_it_done_and_undoes_nothing(url: str, tmp_path: Path) -> None:
    file = tmp_path / "redrive.toml"
    brokers = [connect(url, maintenance=False) for _ in range(PROCESSES)]
    try:
        for round in range(ROUNDS):
            assert apply_together(brokers, text(round), file) == []
            queues = {queue.name: queue for queue in brokers[0].list_queues()}
            assert [queues[f"q{n}"].settings.max_size for n in range(3)] == [round + 1] * 3
            assert (queues["q2"].settings.keep_dead is None) is (round % 2 == 0)
            assert queues[f"new{round}"].settings.dead_queue == f"dead{round}"
            managed_now = brokers[0].run_flow(flows_queues.list_managed())
            assert managed_now.keys() == {"q0", "q1", "q2", f"new{round}"}
        assert {entry.verb for entry in brokers[0].audit(1000)} == {"update_queue"}  # and none was deleted
    finally:
        for broker in brokers:
            broker.close()


def test_servers_that_start_at_the_same_moment_both_serve(tmp_path: Path) -> None:
    file = tmp_path / "redrive.toml"
    url = f"sqlite:///{tmp_path}/redrive.db"
    with connect(url, maintenance=False) as broker:
        apply(broker, parse(text(0), file))
    file.write_text(f"[server]\nport = 0\n{text(1)}")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("REDRIVE_")}
    command = [sys.executable, "-m", "redrive", "serve"]
    servers = [
        subprocess.Popen(command, cwd=tmp_path, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(3)
    ]
    try:
        for server in servers:
            assert server.stdout is not None
            told = ""
            while "Stop: Ctrl-C" not in told:
                line = server.stdout.readline()
                assert line, told
                told += line
            assert "error" not in told.lower(), told
    finally:
        for server in servers:
            server.terminate()
            server.communicate(timeout=240)
    with connect(url, maintenance=False) as broker:
        assert {queue.name for queue in broker.list_queues()} >= {"q0", "q1", "q2", "new1", "dead1"}
        assert broker.get_queue("q0").settings.max_size == 2
