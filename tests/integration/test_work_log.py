"""The log of `redrive work`, as it comes out of its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import logging
from redrive import App

{setup}
app = App("sqlite:///jobs.db")
jobs = app.queue("jobs")

@jobs.task
def greet():
    logging.getLogger("shop").info("good morning")
"""


def log_of(folder: Path, setup: str, *options: str) -> list[str]:
    """What a worker writes to stderr that runs one task."""
    (folder / "shop.py").write_text(PROGRAM.format(setup=setup))
    subprocess.run([sys.executable, "-c", "from shop import greet; greet.put()"], cwd=folder, check=True)
    command = [sys.executable, "-m", "redrive", "work", "shop:app", "--until-idle", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=True)
    return done.stderr.splitlines()


@pytest.mark.parametrize("options", [(), ("--processes", "1")], ids=["threads", "processes"])
def test_what_a_task_logs_is_in_the_log(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert any(line.endswith("INFO    shop: good morning") for line in log_of(tmp_path, "", *options))


def test_logging_of_the_app_holds_in_its_worker(tmp_path: Path) -> None:
    lines = log_of(tmp_path, "logging.basicConfig(level='INFO', format='mine %(name)s %(message)s')")
    assert "mine shop good morning" in lines
    assert all(line.startswith("mine ") for line in lines)


@pytest.mark.parametrize("options", [(), ("--processes", "1")], ids=["threads", "processes"])
def test_log_is_json_where_that_is_asked_for(tmp_path: Path, options: tuple[str, ...]) -> None:
    told = [json.loads(line) for line in log_of(tmp_path, "", "--log-json", *options)]
    assert {"worker_started", "good morning", "worker_stopped"} <= {each["event"] for each in told}


DEADLY = """
import os
from redrive import App

app = App("sqlite:///jobs.db")

@app.queue("jobs", max_losses=1).task
def leave():
    print("about to leave")
    os._exit(3)
"""


@pytest.mark.parametrize("options", [(), ("--processes", "1")], ids=["threads", "processes"])
def test_what_a_task_printed_is_there_though_it_killed_its_process(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "shop.py").write_text(DEADLY)
    subprocess.run([sys.executable, "-c", "from shop import leave; leave.put()"], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "redrive", "work", "shop:app", "--until-idle", *options]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, cwd=tmp_path, env=buffered, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "about to leave\n"
