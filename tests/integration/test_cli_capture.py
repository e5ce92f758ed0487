"""`redrive capture` and `redrive demo capture`: on every store, on a server with tokens, and in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.servers.http import HttpServer
from tests.terminal.blocks import Console, commands
from tests.terminal.cli import Cli

from redrive import connect
from redrive.capture import CaptureFullError, DeadLetterQueue, DeadLetterStatus
from redrive.capture.failure_templates import list_templates
from redrive.config.apply import apply
from redrive.config.loader import parse
from redrive.errors import Forbidden, IdempotencyConflict, Unauthorized

PAGE = Path(__file__).parents[2] / "docs/guides/capture.md"
MODULE = """
import os

from redrive.capture import AsyncDeadLetterQueue, DeadLetterQueue


def retry(task, **extra):
    if task == "fails":
        raise ConnectionError("still down")
    return {"status": "completed", "of": task}


async def retry_async(task, **extra):
    return retry(task, **extra)


dlq = DeadLetterQueue(os.environ["CALLS"])
dlq.set_callback(retry)
on_a_loop = AsyncDeadLetterQueue(os.environ["CALLS"])
on_a_loop.set_callback(retry_async)
other = 7
"""


@pytest.fixture(params=["sqlite", "postgres", "redis", "server"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "sqlite":
            yield f"sqlite:///{tmp_path}/calls.db"
        case "server":
            server = HttpServer(f"sqlite:///{tmp_path}/calls.db", tmp_path)
            yield server.url
            server.stop()
        case store:
            yield request.getfixturevalue(f"{store}_url")


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/calls.db"


def fill(url: str) -> None:
    """A task that waits, two that are exhausted."""
    with DeadLetterQueue(url) as dlq:
        dlq.enqueue("waits", {"n": 1}, "Connection timeout", metadata={"password": "hunter2"})
        for number in (1, 2):
            dlq.enqueue(f"no-{number}", {"n": number}, PermissionError(f"no access to {number}"), max_retries=0)


def test_life_of_a_captured_task_on_every_store(url: str) -> None:
    cli = Cli(url)
    fill(url)
    status = cli.json("capture", "status")
    assert status["status_breakdown"] == {"pending": 1, "retrying": 0, "exhausted": 2, "completed": 0, "archived": 0}
    assert status["error_categories"]["permission"] == 2
    page = cli("capture", "status")
    assert "not running in any process: nothing is retried" in page.stdout
    assert re.search(r"^ +2  +(now|\d+s ago)  PermissionError: no access to <n>$", page.stdout, re.M)
    assert "redrive capture retry --exhausted" in page.stderr
    listed = cli.json("capture", "list", "--limit", "2")
    assert [task["task_id"] for task in listed["tasks"]] == ["no-2", "no-1"]
    (last,) = cli.json("capture", "list", "--cursor", listed["cursor"])["tasks"]
    assert (last["task_id"], last["metadata"]) == ("waits", {"password": "[redacted]"})
    assert cli.json("capture", "list", "--category", "network", "--since", "1h")["tasks"] == [last]
    assert cli.json("capture", "list", "--before", "1h")["tasks"] == []
    assert cli.json("capture", "show", "waits") == last
    assert cli.json("capture", "show", last["item_id"][:8]) == last
    assert cli.json("capture", "show", "waits", "--secrets")["metadata"] == {"password": "hunter2"}
    (due,) = cli.json("capture", "retry", "waits")
    assert (due["success"], due["is_due"], due["is_processor_running"]) == (False, True, False)
    assert cli.json("capture", "archive", "no-1")[0]["status"] == "archived"
    assert cli.json("capture", "restore", "no-1")[0]["status"] == "exhausted"
    assert cli.json("capture", "retry", "--exhausted", "--yes", "2")["changed"] == 2
    assert cli.json("capture", "status")["status_breakdown"]["pending"] == 3
    audit = ["retry", "start retry", "restore", "archive", "retry", "reveal"]
    assert [entry["verb"] for entry in cli.json("audit")] == audit


def test_errors_of_capture_have_the_same_exit_codes_on_every_store(url: str) -> None:
    cli = Cli(url)
    fill(url)
    assert cli.error("capture", "status", "-q", "other", exits=4)["code"] == "queue_not_found"
    assert cli.error("capture", "show", "unknown", exits=4)["code"] == "not_found"
    assert cli.error("capture", "show", "0123abcd", exits=4)["code"] == "not_found"
    assert cli.error("capture", "retry", "unknown", exits=4)["code"] == "not_found"
    assert cli.error("capture", "restore", "waits", exits=5)["code"] == "wrong_status"
    assert cli.json("capture", "archive", "waits")[0]["status"] == "archived"
    assert cli.error("capture", "archive", "waits", exits=5)["code"] == "wrong_status"
    assert cli.json("capture", "restore", "waits")[0]["status"] == "pending"
    assert cli.error("capture", "retry", "--exhausted", exits=10)["code"] == "confirm_mismatch"
    several = cli.json("capture", "archive", "no-1", "unknown", exits=1)
    assert (several[0]["status"], several[1]["error"]["code"]) == ("archived", "not_found")
    for wrong in (
        ["retry"],
        ["retry", "waits", "--exhausted"],
        ["retry", "waits", "--rate", "5/s"],
        ["retry", "--exhausted", "--app", "calls:dlq"],
        ["list", "--status", "dead"],
        ["list", "--category", "odd"],
        ["list", "--since", "yesterday"],
        ["restore"],
    ):
        cli("capture", *wrong, exits=2)


def test_clear_drops_what_waits_or_is_exhausted_and_says_how_to_undo_it(url: str) -> None:
    cli = Cli(url)
    fill(url)
    count = cli.json("capture", "clear", "--dry-run")["matched"]
    assert count == cli.json("capture", "status")["queue_size"]
    assert cli.error("capture", "clear", exits=10)["code"] == "confirm_mismatch"
    assert cli.error("capture", "clear", "--yes", str(count + 1), exits=10)["code"] == "confirm_mismatch"
    cleared = cli("capture", "clear", "--yes", str(count))
    assert f"{count} tasks dropped" in cleared.output
    assert "dead restore -q captured --where dropped=true" in cleared.output
    cli("dead", "restore", "-q", "captured", "--where", "dropped=true", "--yes", str(count))
    removed = cli.json("capture", "clear", "--final", "--yes", str(count))
    assert removed == {"dry_run": False, "matched": count, "removed": count, "undo_until": None}
    assert cli.json("capture", "list", "--status", "archived")["tasks"] == []
    cli("capture", "clear", exits=12)


def test_queue_that_does_not_exist_is_not_created_by_a_command(file_url: str) -> None:
    cli = Cli(file_url)
    cli("queue", "create", "jobs")
    for words in (["status"], ["list"], ["show", "a"], ["retry", "a"], ["archive", "a"], ["restore", "a"], ["clear"]):
        refused = cli("capture", *words, exits=4)
        assert "nothing was captured in 'captured' yet: there is no such queue" in refused.stderr
        assert "queue create captured" not in refused.stderr
    assert [queue["name"] for queue in cli.json("queue", "list")] == ["jobs"]


def test_app_runs_tasks_here(tmp_path: Path, file_url: str) -> None:
    (tmp_path / "calls.py").write_text(MODULE)
    with DeadLetterQueue(file_url) as dlq:
        for task_id, task in (("a", "works"), ("b", "fails"), ("c", "works")):
            item_id = dlq.enqueue(task_id, task, "down", max_retries=0).item_id

    def run(*words: str, exits: int) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "redrive", "capture", "retry", *words],
            cwd=tmp_path,
            env={**os.environ, "CALLS": file_url},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == exits, done.stderr
        return done

    assert "a  the task succeeded" in run("a", "--app", "calls:dlq", exits=0).stdout
    assert (
        "the retry failed; the task is exhausted as before: still down"
        in run("b", "--app", "calls:dlq", exits=5).stderr
    )
    assert "no task 'unknown'" in run("unknown", "--app", "calls:dlq", exits=4).stderr
    both = json.loads(run("b", item_id[:8], "--app", "calls:on_a_loop", "-o", "json", exits=1).stdout)
    assert (both[0]["error"]["code"], both[1]["result"]) == ("task_failed", {"status": "completed", "of": "works"})
    completed = run(item_id[:8], "--app", "calls:dlq", exits=5).stderr
    assert "task 'c' is completed" in completed
    assert "not an App" in run("a", "--app", "calls:other", exits=3).stderr
    assert "the module says which store it is" in run("a", "--app", "calls:dlq", "--url", file_url, exits=2).stderr
    with DeadLetterQueue(file_url) as dlq:
        assert [task.task_id for task in dlq.list_tasks(DeadLetterStatus.COMPLETED)] == ["c", "a"]


def test_templates_are_listed_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli = Cli("")
    shown = cli.json("capture", "templates")["templates"]
    assert [each["name"] for each in shown] == [each.name for each in list_templates()]
    disk = next(each for each in shown if each["name"] == "disk-full")
    assert (disk["category"], disk["policy"], disk["max_retries"]) == ("resource", "linear", 2)
    assert "disk-full" in cli("capture", "templates", "--category", "resource").stdout
    assert "disk-full" not in cli("capture", "templates", "--category", "network").stdout
    assert list(tmp_path.iterdir()) == []


def test_guide_shows_the_status_that_there_is(tmp_path: Path) -> None:
    (block,) = [block for block in commands(PAGE) if block[0] == "redrive capture status"]
    with DeadLetterQueue(f"sqlite:///{tmp_path}/calls.db") as dlq:
        dlq.set_callback(lambda task: {"status": task})
        dlq.enqueue("done", "completed", "Connection timeout")
        dlq.retry_task("done")
        for number in (1, 2):
            dlq.enqueue(f"no-{number}", "failed", PermissionError(f"no access to {number}"), max_retries=0)
        dlq.enqueue("waits", "failed", "Connection timeout")
        dlq.retry_task("waits")
        dlq.retry_task("waits")
    console = Console(tmp_path)
    console.run("export REDRIVE_URL=sqlite:///calls.db")
    console.check(*block)


class Served(NamedTuple):
    """A server with a capture queue of 100 tasks, and a token for each role in that queue."""

    url: str
    tokens: dict[str, str]


@pytest.fixture
def served(tmp_path: Path, file_url: str) -> Iterator[Served]:
    with connect(file_url) as broker:
        apply(broker, parse("[capture]\nmax_size = 100\n", tmp_path / "redrive.toml"))
    create = partial(Cli(file_url).json, "token", "create")
    roles = ("capturer", "viewer", "operator")
    tokens = {role: create(role, "--role", role, "--queue", "captured")["token"] for role in roles}
    server = HttpServer(file_url, tmp_path)
    yield Served(server.url, tokens)
    server.stop()


def test_program_that_may_only_capture_does_that_and_reads_nothing(served: Served) -> None:
    url, tokens = served
    with connect(url, token=tokens["capturer"]) as broker, DeadLetterQueue(broker) as dlq:
        task = dlq.enqueue("wf_1", {"n": 1}, ConnectionRefusedError("no"), metadata={"team": "x"}, repos=["a"])
        assert (task.task_id, task.task, task.repos, task.status) == ("wf_1", {"n": 1}, ["a"], "pending")
        assert (task.error, task.template, task.max_retries) == ("no", "connection-refused", 3)

        @dlq.guard(name="guarded", key=lambda number: f"call-{number}")
        def guarded(number: int) -> None:
            raise TimeoutError("late")

        with pytest.raises(TimeoutError) as raised:
            guarded(7)
        assert raised.value.__notes__ == ["captured as task 'call-7' in 'captured'"]
        again = dlq.enqueue("wf_1", {"n": 1}, "again", repos=["a"])
        assert again.item_id == task.item_id
        with pytest.raises(IdempotencyConflict):
            dlq.enqueue("wf_1", "another", "error")
        for number in range(98):
            dlq.enqueue(f"more-{number}", 1, "down")
        with pytest.raises(CaptureFullError, match="has 100 tasks, and max_size is 100"):
            dlq.enqueue("too much", 1, "down")
        for refused in (
            lambda: dlq.get_task("wf_1"),
            lambda: dlq.list_tasks(),
            lambda: dlq.archive_task("wf_1"),
            lambda: dlq.retry_task("wf_1"),
            lambda: broker.put("captured", 1),
            lambda: broker.lease("captured"),
        ):
            with pytest.raises(Forbidden):
                refused()
        with pytest.raises(Forbidden):
            DeadLetterQueue(broker, "new").enqueue("a", 1, "down")
    cli = Cli(url)
    shown = cli.json("capture", "show", "wf_1", "--token", tokens["operator"])
    assert (shown["last_error"], shown["item_id"]) == ("again", task.item_id)


def test_program_with_a_url_takes_its_token_from_the_environment(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unauthorized, match="needs a token"):
        DeadLetterQueue(served.url)
    monkeypatch.setenv("REDRIVE_TOKEN", served.tokens["capturer"])
    with DeadLetterQueue(served.url) as dlq:
        assert dlq.enqueue("wf_1", {"n": 1}, "no").task_id == "wf_1"


def test_commands_on_a_server_do_what_the_token_is_for(served: Served, file_url: str) -> None:
    url, tokens = served
    fill(file_url)
    cli = Cli(url)
    status = cli.json("capture", "status", "--token", tokens["viewer"])
    assert (status["error_categories"]["permission"], status["retry_policies"]["exponential"]) == (2, 3)
    assert status == {**cli.json("capture", "status", "--token", tokens["operator"])}
    cli("capture", "status", "--token", tokens["viewer"])
    listed = cli.json("capture", "list", "--token", tokens["viewer"])["tasks"]
    assert [(task["hidden"], "task" in task) for task in listed] == [(True, False)] * 3
    id = listed[0]["item_id"]
    assert cli.json("capture", "show", id[:8], "--token", tokens["viewer"])["task_id"] == id
    for words in (["retry", id], ["archive", id], ["list", "--policy", "never"], ["show", "no-1"]):
        assert cli.error("capture", *words, "--token", tokens["viewer"], exits=7)["code"] == "forbidden"
    for words in (["list"], ["show", "no-1"], ["retry", "no-1"]):
        assert cli.error("capture", *words, "--token", tokens["capturer"], exits=7)["code"] == "forbidden"
    assert cli.json("capture", "archive", "no-1", "--token", tokens["operator"])[0]["status"] == "archived"
    assert cli.json("capture", "retry", "no-2", "--token", tokens["operator"])[0]["is_due"]
    assert [entry["actor"] for entry in Cli(file_url).json("audit")][:2] == ["operator", "operator"]


def test_demo_captures_retries_and_brings_the_rest_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    url = f"sqlite:///{tmp_path}/demo.db"
    cli = Cli(url)
    told = cli.json("demo", "capture", "--url", url)
    assert (told["captured"], told["retried"], told["brought_back"]) == (48, 84, 12)
    assert (told["completed"], told["exhausted"], told["pending"]) == (48, 0, 0)
    assert cli.json("capture", "status")["lifetime_stats"]["manually_retried"] == 12
    refused = cli("demo", "capture", "--url", url, exits=5)
    assert "there are queues called captured already" in refused.stderr
    assert "memory://" in cli("demo", "capture", "--url", "memory://", exits=5).stderr


def test_demo_draws_a_table_in_a_terminal(tmp_path: Path) -> None:
    shown = terminal(tmp_path, "demo", "capture")
    assert "captured  retried  pending  retrying  exhausted  completed" in shown
    assert "$ redrive capture retry --exhausted --yes 12" in shown
    assert "All 48 captured calls are completed." in shown
    assert "item_failed" not in shown


def terminal(folder: Path, *words: str) -> str:
    """What a command shows in a terminal."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TMPDIR": str(folder), "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-m", "redrive", *words], env=environment, cwd=folder, stdin=child, stdout=child, stderr=child
    )
    os.close(child)
    shown = b""
    while True:
        try:
            read = os.read(parent, 65536)
        except OSError:  # the terminal is closed
            break
        if not read:
            break
        shown += read
    os.close(parent)
    assert process.wait(240) == 0, shown
    return re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", shown.decode())
