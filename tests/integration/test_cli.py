"""The command as an executable: on every store, in pipes, in a terminal, and interrupted."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.servers.http import HttpServer
from tests.terminal.cli import Cli, kill
from tests.until import until

REDRIVE = Path(sys.executable).with_name("redrive")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_") and name != "NO_COLOR"}


@pytest.fixture(params=["sqlite", "postgres", "redis", "server"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "sqlite":
            yield f"sqlite:///{tmp_path}/store.db"
        case "server":
            server = HttpServer(f"sqlite:///{tmp_path}/store.db", tmp_path)
            yield server.url
            server.stop()
        case store:
            yield request.getfixturevalue(f"{store}_url")


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


def run(url: str, *words: str, exits: int = 0, input: str | None = None) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [REDRIVE, *words],
        env={**CLEAN, "REDRIVE_URL": url},
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == exits, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result


# On every store


def test_life_of_a_dead_letter_on_every_store(url: str) -> None:
    cli = Cli(url)
    cli("queue", "create", "dead-letters")
    cli("queue", "create", "jobs", "--dead-queue", "dead-letters", "--attempts", "1", "--feed", "all")
    cli("queue", "push", "jobs", '{"n": 1}', "--header", "tenant=blue")
    cli("queue", "push", "jobs", "--lines", input='{"n": 2}\n{"n": 3}\n')
    with cli.broker() as broker:
        for lease in broker.lease("jobs", 3, worker="worker-1"):
            broker.fail(lease, ConnectionError(f"gateway refused {lease.value['n']}"))
    told = cli.json("dead", "groups")
    assert (told["dead"], told["queues"]) == (3, {"dead-letters": 3})
    group = told["groups"][0]["fingerprint"][:8]
    (blue,) = cli.json("dead", "list", "--where", "headers.tenant=blue")["items"]
    assert "gateway refused 1" in cli("dead", "show", blue["id"][:8]).stdout
    assert len(cli.json("dead", "search", "gateway", "refused")["items"]) == 3
    assert cli.json("dead", "redrive", "--group", group, "--dry-run")["queues"] == {"jobs": 3}
    done = cli.json("dead", "redrive", "--group", group, "--yes", "3")
    assert (done["status"], done["changed"]) == ("finished", 3)
    assert cli.json("undo", done["id"][:8], "--yes", "3")["changed"] == 3
    (first, *_) = cli.json("dead", "list", "--limit", "1")["items"]
    mended = cli.json("dead", "redrive", first["id"][:8], "--edit", '{"n": 10}')["ids"][0]
    assert cli.json("dead", "show", mended)["payload"] == {"n": 10}
    assert cli.json("dead", "archive", "-q", "dead-letters", "--yes", "2")["changed"] == 2
    assert cli.json("dead", "purge", "--all", "--yes", "3")["changed"] == 3
    assert cli.json("queue", "drain", "jobs", "--yes", "1")["dropped"] == 1
    verbs = [entry["verb"] for entry in cli.json("audit")]
    assert {"redrive", "undo", "archive", "purge", "drop"} <= set(verbs)
    cli("queue", "delete", "jobs", "--yes", "1")


def test_errors_have_the_same_exit_codes_on_every_store(url: str) -> None:
    cli = Cli(url)
    cli("queue", "create", "jobs", "--max-size", "1")
    id = cli.json("queue", "push", "jobs", "1", "--key", "k")["id"]
    assert cli.error("queue", "push", "jobs", "2", exits=9)["code"] == "queue_full"
    assert cli.error("queue", "push", "jobs", "2", "--key", "k", exits=5)["code"] == "idempotency_conflict"
    assert cli.error("queue", "push", "nothing", "1", exits=4)["code"] == "queue_not_found"
    assert cli.error("queue", "retry", id[:8], exits=5)["code"] == "wrong_status"
    assert cli.error("queue", "create", "jobs", exits=5)["code"] == "queue_exists"
    assert cli.error("queue", "drop", "0" * 32, exits=4)["code"] == "item_not_found"


def test_doctor_and_bench_on_every_store(url: str) -> None:
    cli = Cli(url)
    cli("queue", "create", "jobs")
    found = {check["name"]: check for check in json.loads(cli_any(cli, "doctor", "-o", "json"))["checks"]}
    assert found["reachable"]["state"] == "ok"
    assert found["clock"]["state"] == "ok"
    assert found["leases"]["state"] == "ok"
    assert all(each["items"] > 0 for each in cli.json("bench", "--seconds", "0.05", "--callers", "8")["figures"])
    assert cli.json("queue", "list", "--namespace", "redrive-bench") == []


def cli_any(cli: Cli, *words: str) -> str:
    """What a command prints, however it ends."""
    from click.testing import CliRunner

    from redrive.cli.main import redrive

    return CliRunner().invoke(redrive, words, env={"REDRIVE_URL": cli.url}).stdout


def test_server_lets_a_token_do_what_it_is_for(tmp_path: Path) -> None:
    store = Cli(f"sqlite:///{tmp_path}/store.db")
    store("queue", "create", "jobs")
    with store.broker() as broker:
        kill(broker, "jobs", [{"n": 1}])
    viewer, operator = (store.json("token", "create", role, "--role", role)["token"] for role in ("viewer", "operator"))
    server = HttpServer(store.url, tmp_path)
    try:
        cli = Cli(server.url)
        assert cli.error("queue", "list", exits=7)["code"] == "unauthorized"
        assert cli.json("dead", "groups", "--token", viewer)["dead"] == 1
        assert cli.error("dead", "redrive", "--all", "--yes", "1", "--token", viewer, exits=7)["code"] == "forbidden"
        assert cli.error("queue", "create", "other", "--token", operator, exits=7)["code"] == "forbidden"
        assert cli.json("dead", "redrive", "--all", "--yes", "1", "--token", operator)["changed"] == 1
        checks = {
            check["name"]: check
            for check in json.loads(cli_any(cli, "doctor", "-o", "json", "--token", viewer))["checks"]
        }
        assert {check["state"] for check in checks.values()} <= {"ok", "warn"}
        assert checks["clock"]["finding"].startswith("not checked")
    finally:
        server.stop()
    assert Cli(server.url).error("queue", "list", exits=6)["code"] == "store_unavailable"


# As an executable


def test_executable_and_module_are_the_same(file_url: str) -> None:
    run(file_url, "queue", "create", "jobs")
    by_module = subprocess.run(
        [sys.executable, "-m", "redrive", "queue", "list", "-o", "json"],
        env={**CLEAN, "REDRIVE_URL": file_url},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    first, second = json.loads(by_module.stdout), json.loads(run(file_url, "queue", "list", "-o", "json").stdout)
    assert [each["name"] for each in first] == [each["name"] for each in second] == ["jobs"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        ([], 0),
        (["queue"], 2),
        (["--nonsense"], 2),
        (["queue", "list", "--url", "nonsense"], 3),
        (["queue", "show", "nothing"], 4),
        (["queue", "retry", "--all-dead"], 10),
        (["queue", "list", "--url", "sqlite:////no/such/folder/x.db"], 6),
    ],
    ids=str,
)
def test_exit_code_is_that_of_the_process(file_url: str, words: list[str], code: int) -> None:
    with Cli(file_url).broker() as broker:
        broker.create_queue("jobs")
        kill(broker, "jobs", [1])
    run(file_url, *words, exits=code)


def test_error_is_a_line_or_two_on_stderr(file_url: str) -> None:
    run(file_url, "queue", "create", "jobs")
    result = run(file_url, "queue", "show", "nothing", exits=4)
    assert result.stdout == ""
    assert result.stderr.startswith("redrive: queue 'nothing' does not exist\n")
    assert len(result.stderr.splitlines()) <= 2
    error = json.loads(run(file_url, "queue", "show", "nothing", "-o", "json", exits=4).stderr)
    assert error.keys() == {"code", "message", "details"}


def test_closed_pipe_ends_it_quietly(file_url: str) -> None:
    with Cli(file_url).broker() as broker:
        broker.create_queue("jobs")
        broker.put_many("jobs", ["x" * 500] * 1_000)
    for words in ("queue list jobs --limit 1000", "queue list jobs --limit 1000 -o json", "dead export --status any"):
        shell = f"'{REDRIVE}' {words} | head -n 1"
        result = subprocess.run(
            ["sh", "-c", shell], env={**CLEAN, "REDRIVE_URL": file_url}, capture_output=True, text=True, timeout=240
        )
        assert result.returncode == 0
        assert len(result.stdout.splitlines()) == 1
        assert result.stderr == ""


def test_there_are_colours_in_a_terminal_only(file_url: str) -> None:
    run(file_url, "queue", "create", "jobs")
    run(file_url, "queue", "push", "jobs", "1")
    assert "\x1b" not in run(file_url, "queue", "list", "jobs").stdout
    assert "\x1b[36mpending\x1b[0m" in in_a_terminal(file_url, ["queue", "list", "jobs"])
    assert "\x1b" not in in_a_terminal(file_url, ["queue", "list", "jobs"], NO_COLOR="1")


def test_long_work_shows_how_far_it_got_in_a_terminal_only(file_url: str) -> None:
    run(file_url, "queue", "create", "jobs")
    with Cli(file_url).broker() as broker:
        broker.bury_items([receipt.id for receipt in broker.put_many("jobs", range(30))])
        shown = in_a_terminal(file_url, ["dead", "redrive", "--all", "--rate", "100/s", "--yes", "any"], NO_COLOR="1")
        assert re.search(r"redrive \w{8} ━+.* \d+/30 ", shown), shown
        broker.bury_items([item.id for item in broker.find(status="pending").items])
    silent = run(file_url, "dead", "redrive", "--all", "--yes", "any")
    assert "━" not in silent.stdout + silent.stderr


def in_a_terminal(url: str, words: Sequence[str], typed: str = "", **environment: str) -> str:
    """What a person sees who types this in a terminal of 100 columns."""
    mine, theirs = pty.openpty()
    os.set_inheritable(theirs, True)
    process = subprocess.Popen(
        [REDRIVE, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**CLEAN, "REDRIVE_URL": url, "TERM": "xterm", "COLUMNS": "100", **environment},
    )
    os.close(theirs)
    if typed:
        os.write(mine, typed.encode())
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


def test_terminal_asks_the_number_back_and_shows_a_bar(file_url: str) -> None:
    with Cli(file_url).broker() as broker:
        broker.create_queue("jobs")
        kill(broker, "jobs", list(range(30)))
    shown = in_a_terminal(file_url, ["dead", "redrive", "-q", "jobs", "--rate", "100/s"], "30\n")
    assert "This will redrive 30 items." in shown
    assert "30/30" in shown
    assert "30 of 30 changed" in shown


def started(url: str, *words: str) -> subprocess.Popen[str]:
    # A shell that runs things in the background makes them deaf to Ctrl-C; a person's does not.
    return subprocess.Popen(
        [REDRIVE, *words],
        env={**CLEAN, "REDRIVE_URL": url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )


def test_interrupt_leaves_the_operation_in_the_store_and_says_how_to_go_on(file_url: str) -> None:
    with Cli(file_url).broker() as broker:
        broker.create_queue("jobs")
        kill(broker, "jobs", list(range(100)))
        process = started(file_url, "dead", "redrive", "-q", "jobs", "--rate", "10/s", "--yes", "100")
        until(lambda: any(operation.changed for operation in broker.list_operations()))
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=240)
        (operation,) = broker.list_operations()
    assert process.returncode == 130
    assert "Traceback" not in told
    assert f"redrive operation resume {operation.id[:8]}" in told
    assert f"redrive operation cancel {operation.id[:8]}" in told
    assert operation.status == "running"
    assert 0 < operation.changed < 100


def test_interrupt_ends_what_follows_without_a_traceback(file_url: str) -> None:
    run(file_url, "queue", "create", "jobs", "--feed", "all")
    process = started(file_url, "queue", "logs", "--follow", "-o", "json")
    assert process.stdout is not None
    with Cli(file_url).broker() as broker:
        broker.put("jobs", 1)
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=240)
    assert json.loads(first)["kind"] == "put"
    assert process.returncode == 130
    assert "Traceback" not in told


def test_version_takes_at_most_three_times_as_long_as_nothing_at_all() -> None:
    """Of the processor, in turns: what else the machine does meanwhile is the same for both, or of no account."""

    def cost(*command: str | Path) -> float:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return used.ru_utime + used.ru_stime

    took = [(cost(REDRIVE, "--version"), cost(sys.executable, "-c", "pass")) for _ in range(20)]
    version, nothing = map(min, zip(*took, strict=True))
    assert version <= 3 * nothing, took
