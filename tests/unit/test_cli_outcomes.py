"""What a command on many items exits with: all, some or none of them changed; and options that go with no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.terminal.cli import Cli, kill

ALL, SOME, NONE = 0, 1, 12


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(f"sqlite:///{tmp_path}/store.db")
    cli("queue", "create", "jobs")
    return cli


BULK = {
    "queue retry": ("queue", "retry", "--all-dead"),
    "queue retry in a queue": ("queue", "retry", "--all-dead", "-q", "jobs"),
    "queue retry of failed ones": ("queue", "retry", "--status", "failed"),
    "dead redrive": ("dead", "redrive", "--all"),
    "dead redrive with conditions": ("dead", "redrive", "-q", "jobs"),
    "dead redrive with edits": ("dead", "redrive", "--all", "--edit", '{"n": 1}'),
    "dead archive": ("dead", "archive", "--all"),
    "dead restore": ("dead", "restore", "--all"),
    "dead purge": ("dead", "purge", "--all"),
    "queue drain": ("queue", "drain", "jobs"),
    "queue prune": ("queue", "prune"),
    "queue prune of dead ones": ("queue", "prune", "--status", "dead"),
}
every_bulk = pytest.mark.parametrize("command", BULK.values(), ids=BULK.keys())


@every_bulk
def test_command_that_changes_nothing_says_so_by_its_exit_code(cli: Cli, command: tuple[str, ...]) -> None:
    cli(*command, exits=NONE)
    cli(*command, "-o", "json", exits=NONE)
    cli(*command, "--dry-run", exits=ALL)


@every_bulk
def test_number_that_was_given_for_nothing_is_no_reason_to_go_on(cli: Cli, command: tuple[str, ...]) -> None:
    cli(*command, "--yes", "3", exits=NONE)


def test_command_that_changes_all_exits_with_0(cli: Cli) -> None:
    with cli.broker() as broker:
        kill(broker, "jobs", [{"n": 0}, {"n": 2}])
    for command in ("dead archive", "dead restore", "queue retry"):
        options = ("--all-dead",) if command == "queue retry" else ("--all",)
        cli(*command.split(), *options, "--yes", "2", exits=ALL)
    operation = cli.json("operation", "list")[0]
    cli("undo", operation["id"], "--yes", "2", exits=ALL)
    cli("undo", operation["id"], exits=NONE)
    cli("dead", "redrive", "--all", "--edit", '{"n": 1}', "--yes", "2", exits=ALL)


def test_operation_that_left_all_out_changed_nothing(cli: Cli) -> None:
    cli("queue", "create", "morgue")
    cli("queue", "create", "orders", "--dead-queue", "morgue")
    with cli.broker() as broker:
        kill(broker, "orders", [1, 2])
        broker.update_queue("orders", dead_queue=None)
        broker.delete_queue("orders")
    left = cli.json("dead", "redrive", "--all", "--yes", "2", exits=NONE)
    assert (left["changed"], sum(left["skipped"].values())) == (0, 2)


def test_operation_that_left_some_out_exits_with_1(cli: Cli) -> None:
    cli("queue", "create", "morgue")
    cli("queue", "create", "orders", "--dead-queue", "morgue")
    with cli.broker() as broker:
        kill(broker, "orders", [1, 2])
        kill(broker, "jobs", [3])
        broker.update_queue("orders", dead_queue=None)
        broker.delete_queue("orders")
    left = cli.json("dead", "redrive", "--all", "--yes", "3", exits=SOME)
    assert (left["changed"], sum(left["skipped"].values())) == (1, 2)


def test_lines_that_are_none_put_and_import_nothing(cli: Cli) -> None:
    cli("queue", "push", "jobs", "--lines", input="\n\n", exits=NONE)
    cli("dead", "import", "-", input="", exits=NONE)


def test_what_was_imported_before_is_there_as_it_should_be(cli: Cli) -> None:
    with cli.broker() as broker:
        kill(broker, "jobs", [1])
    lines = cli("dead", "export", "--secrets").stdout
    cli("queue", "create", "other")
    cli("dead", "import", "-", "-q", "other", input=lines, exits=ALL)
    cli("dead", "import", "-", "-q", "other", input=lines, exits=ALL)


def test_delete_of_a_queue_with_a_lease_names_a_command_that_there_is(cli: Cli) -> None:
    with cli.broker() as broker:
        broker.put("jobs", 1)
        (lease,) = broker.lease("jobs", worker="w")
    told = cli("queue", "delete", "jobs", "--yes", "1", exits=9).stderr
    assert f"redrive queue retry {lease.id[:8]} --force" in told
    cli("queue", "retry", lease.id[:8], "--force")
    cli("queue", "delete", "jobs", "--yes", "1")


IGNORED = {
    "items of no queue": ("queue", "list", "--status", "dead"),
    "limit of no items": ("queue", "list", "--limit", "5"),
    "cursor of no items": ("queue", "list", "--cursor", "x"),
    "order of no items": ("queue", "list", "--oldest"),
    "share of no canaries": ("dead", "redrive", "--all", "--canary-success", "0.5"),
    "wait and no wait": ("dead", "redrive", "--all", "--wait", "5s", "--no-wait"),
    "wait and no wait of retry": ("queue", "retry", "--all-dead", "--wait", "5s", "--no-wait"),
    "wait and no wait of resume": ("operation", "resume", "7f3a90c1", "--wait", "5s", "--no-wait"),
    "another status to purge": ("dead", "purge", "--where", "status=dead"),
    "another status to restore": ("dead", "restore", "--where", "status=dead"),
    "two statuses to retry": ("queue", "retry", "--status", "failed", "--where", "status=dead"),
    "two statuses to list": ("dead", "list", "--archived", "--where", "status=dead"),
    "two statuses to export": ("dead", "export", "--status", "any", "--where", "status=dead"),
    "two queues": ("dead", "list", "-q", "jobs", "--where", "queue=mails"),
    "two conditions": ("dead", "list", "--where", "error_class=network", "--where", "error_class=resource"),
    "two values of a header": ("dead", "list", "--where", "headers.a=1", "--where", "headers.a=2"),
    "words twice": ("dead", "search", "gateway", "--where", "words=mail"),
    "two types": ("queue", "push", "jobs", "x", "--text", "--content-type", "text/html"),
    "host of no metrics": ("work", "--metrics-host", "0.0.0.0"),
    "setting twice": ("queue", "update", "jobs", "--max-size", "5", "--set", "max_size=6"),
    "retry twice": ("queue", "update", "jobs", "--attempts", "5", "--set", "retry.attempts=6"),
    "retry whole and in part": ("queue", "update", "jobs", "--set", 'retry="never"', "--attempts", "5"),
    "force of many": ("dead", "redrive", "--all", "--force"),
}


@pytest.mark.parametrize("command", IGNORED.values(), ids=IGNORED.keys())
def test_option_that_would_be_ignored_is_refused(cli: Cli, command: tuple[str, ...]) -> None:
    cli(*command, exits=2)


@pytest.mark.parametrize("command", ["queue retry", "dead redrive", "dead archive"])
def test_number_that_was_given_with_ids_must_be_theirs(cli: Cli, command: str) -> None:
    with cli.broker() as broker:
        (id,) = kill(broker, "jobs", [1])
    cli(*command.split(), id, "--yes", "2", exits=10)
    assert cli.json("dead", "list")["items"][0]["id"] == id
    cli(*command.split(), id, "--yes", "1")


def test_same_condition_twice_is_no_contradiction(cli: Cli) -> None:
    cli("dead", "list", "-q", "jobs", "--where", "queue=jobs")
    cli("dead", "archive", "--where", "status=dead", "--dry-run")
