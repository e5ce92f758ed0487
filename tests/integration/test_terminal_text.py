"""What comes from items and commands, in a real terminal and in the log of a real worker: nothing of it acts."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.terminal.cli import run_here

from redrive import connect

REDRIVE = Path(sys.executable).with_name("redrive")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
EVIL = "a\x1b]0;title\x07b\x9b31mc\x7fd\u202ee\u2066f\u2028g\u200bh\rforged"
OUR_COLOURS = re.compile(r"\x1b\[(0|[39][0-7])m")
FORGED = "2026-01-01T00:00:00Z WARNING redrive.worker: item_dead item=1"


def in_a_terminal(url: str, words: Sequence[str]) -> str:
    """What a terminal is sent when a person types this."""
    mine, theirs = pty.openpty()
    environment = {**CLEAN, "REDRIVE_URL": url, "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen([REDRIVE, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            chunk = os.read(mine, 65_536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not chunk:
            break
        seen += chunk
    process.wait(240)
    os.close(mine)
    return seen.decode()


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    with connect(url, maintenance=False) as broker:
        broker.create_queue("jobs", feed="all")
        broker.put("jobs", {EVIL: EVIL}, headers={"kind": EVIL}, idempotency_key="k")
        (lease,) = broker.lease("jobs", worker="w")
        broker.fail(lease, f"{EVIL} happened")
        broker.put("jobs", EVIL.encode(), content_type="text/plain")
        broker.create_queue("others")
        other = broker.put_failed("others", 1, "boom")
        broker.redrive(other.id, note=EVIL)
    return url


@pytest.mark.parametrize(
    "words",
    [
        ("dead", "show", "ID"),
        ("-o", "json", "dead", "show", "ID"),
        ("dead", "list"),
        ("dead", "groups"),
        ("dead", "export", "--status", "any"),
        ("queue", "logs", "-q", "jobs"),
        ("queue", "list", "jobs", "--status", "pending"),
        ("dead", "redrive", "--all", "--dry-run"),
        ("dead", "search", "happened"),
        ("audit",),
    ],
    ids=" ".join,
)
def test_terminal_is_sent_nothing_that_it_would_act_upon(url: str, words: tuple[str, ...]) -> None:
    with connect(url, maintenance=False) as broker:
        id = broker.find().items[0].id
    seen = in_a_terminal(url, [id if word == "ID" else word for word in words])
    assert "\\u202e" in seen  # or it shows nothing of what is foreign, and this tests nothing
    text = OUR_COLOURS.sub("", seen).replace("\r\n", "")
    assert text.isprintable(), ascii(text)


def test_export_elsewhere_is_exact(url: str) -> None:
    done = subprocess.run(
        [REDRIVE, "dead", "export"], env={**CLEAN, "REDRIVE_URL": url}, capture_output=True, check=True
    )
    with connect(url, maintenance=False) as broker:
        assert done.stdout == b"".join(broker.export())
    assert "\u202e".encode() in done.stdout


def stderr_of_worker(folder: Path, *options: str) -> str:
    """What `redrive work` writes to stderr, whose command writes lines like those of the log."""
    lines = (FORGED, '{"event": "forged"}', f"x\u2028{FORGED}\r{EVIL}", "password=hunter2 ACME-123456")
    (folder / "lines").write_bytes("\n".join(lines).encode())
    (folder / "redrive.toml").write_text(
        'url = "sqlite:///jobs.db"\n[queue.jobs]\n'
        'redact.patterns = ["ACME-[0-9]{6}"]\n'
        '[worker.w]\nqueue = "jobs"\nrun = "cat lines >&2"\nshell = true\n'
    )
    for words in (["config", "apply"], ["queue", "push", "jobs", "1"]):
        assert run_here(folder, words, CLEAN).exit_code == 0
    command = [REDRIVE, "work", "--until-idle", *options]
    done = subprocess.run(command, cwd=folder, env=CLEAN, check=True, capture_output=True, timeout=240)
    return done.stderr.decode()


def test_command_cannot_break_a_log_in_json(tmp_path: Path) -> None:
    told = [json.loads(line) for line in stderr_of_worker(tmp_path, "--log-json").splitlines()]
    lines = [each for each in told if each["event"] == "command_stderr"]
    assert [each["line"] for each in lines][:2] == [FORGED, '{"event": "forged"}']
    assert lines[-1]["line"] == "password=[redacted] [redacted]"
    assert {each["queue"] for each in lines} == {"jobs"}
    assert len({each["item"] for each in lines}) == 1
    assert "forged" not in {each["event"] for each in told}


def test_command_cannot_forge_lines_of_the_log(tmp_path: Path) -> None:
    log = stderr_of_worker(tmp_path)
    assert log.count("command_stderr") == 4
    assert all(re.match(r"20\d\d-\S+Z [A-Z]+ +redrive\.\w+: \w+", line) for line in log.splitlines()), log
    assert not any(line.startswith(FORGED) for line in log.splitlines())
    assert log.replace("\n", "").isprintable()
