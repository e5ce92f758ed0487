"""`redrive breaker list|open|close`, and where else a breaker that is not closed is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.terminal.cli import Cli, kill

from redrive.model.breaker import fingerprint_kind

WAITS_IN_JOBS = {"queue": "jobs", "kind": "queue", "state": "open", "waiting": 2}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(f"sqlite:///{tmp_path}/store.db")
    with cli.broker() as broker:
        broker.create_queue("morgue-of-jobs")
        broker.create_queue("jobs", retry={"attempts": 3}, dead_queue="morgue-of-jobs")
        broker.create_queue("mails")
        broker.put_many("jobs", [1, 2])
    return cli


def with_broker(cli: Cli, act: Callable[[Any], Any]) -> Any:
    with cli.broker() as broker:
        return act(broker)


def kinds(cli: Cli, *queue: str) -> list[tuple[str, str]]:
    return [(each["queue"], each["kind"]) for each in cli.json("breaker", "list", *queue)]


def test_breaker_of_a_queue_is_opened_listed_and_closed(cli: Cli) -> None:
    assert cli("breaker", "list").stdout == "No circuit breaker is open.\n"
    opened = cli("breaker", "open", "jobs", "--for", "10m", "--note", "mail server moves")
    assert opened.stdout.startswith("breaker queue of jobs is open: 2 items waiting, next probe in ")
    assert "redrive breaker close jobs" in opened.stderr
    assert with_broker(cli, lambda broker: broker.lease("jobs")) == []
    (told,) = cli.json("breaker", "list")
    assert {key: told[key] for key in WAITS_IN_JOBS} == WAITS_IN_JOBS
    shown = cli("breaker", "list").stdout
    head, row = (line.split() for line in shown.splitlines())
    assert head == ["QUEUE", "BREAKER", "STATE", "OPENED", "WAITING", "PROBE", "WHY"]
    assert row[:3] == ["jobs", "queue", "open"]
    assert "mail server moves" in shown
    assert cli("breaker", "list", "mails").stdout == "No circuit breaker of mails is open.\n"
    assert cli("breaker", "close", "jobs", "--note", "it is back").stdout == "breaker queue of jobs is closed\n"
    assert kinds(cli) == []
    assert len(with_broker(cli, lambda broker: broker.lease("jobs", 9))) == 2


def test_one_that_is_open_is_not_changed_and_the_command_says_so(cli: Cli) -> None:
    cli("breaker", "open", "jobs", "--for", "10m")
    again = cli("breaker", "open", "jobs", "--for", "7d")
    assert again.stdout.startswith("breaker queue of jobs is open already, and not changed: 2 items waiting")
    assert "in 7d" not in again.stdout
    assert "close it first: redrive breaker close jobs" in again.stderr


def test_close_says_which_other_breakers_of_the_queue_are_open(cli: Cli) -> None:
    cli("breaker", "open", "jobs")
    cli("breaker", "open", "jobs", "--class", "network")
    assert "1 other breaker of jobs not closed: redrive breaker list jobs" in cli("breaker", "close", "jobs").stderr
    assert "other breaker" not in cli("breaker", "close", "jobs", "--class", "network").stderr


def test_rules_of_several_breakers_are_told_apart(cli: Cli) -> None:
    cli("queue", "update", "mails", "--set", "breakers.queue={failures=3}", "--set", "breakers.network={share=0.5}")
    shown = cli("queue", "show", "mails").stdout
    assert shown.startswith("mails: created ")
    assert "  breakers  queue {failures 3, " in shown
    assert "}, network {" in shown


def test_breaker_of_a_class_holds_what_failed_like_that_and_releases_it(cli: Cli) -> None:
    def fail(broker: Any) -> None:
        for lease, error in zip(broker.lease("jobs", 2), (ConnectionError("down"), ValueError("bad")), strict=True):
            broker.fail(lease, error)

    with_broker(cli, fail)
    assert cli.json("breaker", "open", "jobs", "--class", "network")["waiting"] == 1
    assert [lease.value for lease in with_broker(cli, lambda broker: broker.lease("jobs", 9))] == [2]
    told = cli.json("breaker", "close", "jobs", "--class", "network")
    assert told == {"queue": "jobs", "kind": "network", "released": 1}
    assert [lease.value for lease in with_broker(cli, lambda broker: broker.lease("jobs", 9))] == [1]


def test_fingerprint_is_named_by_its_first_digits(cli: Cli) -> None:
    with_broker(cli, lambda broker: kill(broker, "mails", [1], ConnectionError("down")))
    (group,) = cli.json("dead", "groups")["groups"]
    fingerprint = group["fingerprint"]
    cli("breaker", "open", "jobs", "--fingerprint", fingerprint[:8])
    assert kinds(cli) == [("jobs", fingerprint_kind(fingerprint))]
    shown = cli("breaker", "list")
    assert f" {fingerprint_kind(fingerprint[:8])} " in shown.stdout
    assert f"breaker close jobs --fingerprint {fingerprint[:8]}" in shown.stderr
    other = ("0" if fingerprint[0] != "0" else "1") * 16
    cli("breaker", "open", "jobs", "--fingerprint", other)
    assert cli.error("breaker", "close", "jobs", "--fingerprint", "77", exits=4)["code"] == "not_found"
    cli("breaker", "close", "jobs", "--fingerprint", fingerprint[:4])
    assert kinds(cli) == [("jobs", fingerprint_kind(other))]
    near = fingerprint_kind(f"{other[:15]}f")
    with_broker(cli, lambda broker: broker.open_breaker("jobs", near))
    assert "several fingerprint ids" in cli("breaker", "close", "jobs", "--fingerprint", other[:8], exits=3).stderr


@pytest.mark.parametrize(
    ("arguments", "exits", "told"),
    [
        (["open", "jobs", "--class", "weather"], 2, "is not one of"),
        (["open", "jobs", "--class", "network", "--fingerprint", "ab" * 8], 2, "omit one"),
        (["open", "jobs", "--for", "soon"], 3, "is not a duration"),
        (["open", "jobs", "--for", "0s"], 3, "open_for"),
        (["open", "jobs", "--fingerprint", "ab"], 4, "redrive dead groups"),
        (["open", "nothing"], 4, "redrive queue list"),
        (["list", "nothing"], 4, "redrive queue list"),
        (["close", "nothing"], 4, "redrive queue list"),
        (["close", "jobs"], 4, "redrive breaker list jobs"),
        (["close", "jobs", "--class", "network"], 4, "breaker 'network' of queue 'jobs' is not open"),
    ],
)
def test_mistake_changes_nothing_and_is_told(cli: Cli, arguments: list[str], exits: int, told: str) -> None:
    assert told in cli("breaker", *arguments, exits=exits).stderr
    assert kinds(cli) == []


def test_audit_and_log_of_the_queue_say_who_did_it(cli: Cli) -> None:
    cli("breaker", "open", "jobs", "--class", "network", "--note", "switch broken")
    cli("breaker", "close", "jobs", "--class", "network")
    audit = cli("audit").stdout
    assert "switch broken" in audit
    assert [entry["kind"] for entry in cli.json("queue", "logs")["entries"]] == ["breaker_opened", "breaker_closed"]
    first, last = cli("queue", "logs").stdout.splitlines()
    assert "breaker_opened in jobs for network by " in first
    assert "breaker_closed in jobs for network by " in last


def test_dead_groups_mark_those_whose_cause_has_a_breaker(cli: Cli) -> None:
    def die(broker: Any) -> None:
        for lease, error in zip(broker.lease("jobs", 2), (ConnectionError("down"), ValueError("bad")), strict=True):
            broker.fail(lease, error, final=True)

    with_broker(cli, die)
    assert "BREAKER" not in cli("dead", "groups").stdout
    cli("breaker", "open", "mails", "--class", "network")
    assert "BREAKER" not in cli("dead", "groups").stdout, "no letter of that class is of this queue"
    cli("breaker", "open", "jobs", "--class", "network")
    marked = {each["error_class"]: each["breakers"] for each in cli.json("dead", "groups")["groups"]}
    assert [each["kind"] for each in marked["network"]] == ["network"]
    assert marked["validation"] == []
    shown = cli("dead", "groups")
    rows = {line.split()[2]: line.split()[3] for line in shown.stdout.splitlines()[2:]}
    assert (rows["CLASS"], rows["network"], rows["validation"] != "open") == ("BREAKER", "open", True)
    assert "breaker network of jobs: open since " in shown.stderr
    cli("breaker", "close", "jobs", "--class", "network")
    with_broker(cli, lambda broker: broker.open_breaker("mails", _kind_of(broker, "validation")))
    marked = {each["error_class"]: each["breakers"] for each in cli.json("dead", "groups")["groups"]}
    assert (len(marked["validation"]), marked["network"]) == (1, [])


def _kind_of(broker: Any, error_class: str) -> str:
    (group,) = (each for each in broker.groups() if each.error_class == error_class)
    return fingerprint_kind(group.fingerprint)


def test_queue_list_show_and_doctor_show_an_open_breaker(cli: Cli) -> None:
    cli("breaker", "open", "jobs", "--for", "10m", "--note", "mail server moves")
    listed = cli("queue", "list")
    assert listed.stdout.splitlines()[1].split()[-1] == "breaker"
    assert "redrive breaker list" in listed.stderr
    told = {
        each["name"]: [breaker["kind"] for breaker in each["stats"]["breakers"]] for each in cli.json("queue", "list")
    }
    assert told == {"jobs": ["queue"], "mails": [], "morgue-of-jobs": []}
    shown = cli("queue", "show", "jobs")
    assert "breaker queue of jobs: open since " in shown.stdout
    assert "(mail server moves); 2 items waiting, next probe " in shown.stdout
    assert "redrive breaker close jobs" in shown.stderr
    (breaker,) = cli.json("queue", "show", "jobs")["stats"]["breakers"]
    assert breaker["waiting"] == 2
    checks = {check["name"]: check for check in cli.json("doctor", exits=1)["checks"]}
    assert checks["breaker"]["state"] == "warn"
    assert "mail server moves" in checks["breaker"]["finding"]
    assert "redrive breaker list" in checks["breaker"]["advice"]
    assert checks["store"]["state"] == "ok"
    cli("breaker", "close", "jobs")
    assert "breaker" not in {check["name"] for check in cli.json("doctor", exits=1)["checks"]}
    assert "breaker" not in cli("queue", "show", "jobs").stdout


def test_queue_that_a_retry_after_has_closed_is_shown(cli: Cli) -> None:
    def refuse(broker: Any) -> None:
        broker.update_queue("jobs", retry_after="gate")
        (lease, *_) = broker.lease("jobs")
        broker.fail(lease, TooManyRequests())

    with_broker(cli, refuse)
    assert cli("queue", "list").stdout.splitlines()[1].split()[-1] == "retry-after"
    assert "gives no leases until " in cli("queue", "show", "jobs").stdout
    (gate,) = cli.json("queue", "show", "jobs")["gates"]
    assert gate["name"] == "retry_after"


class TooManyRequests(Exception):
    """As clients of HTTP raise it."""

    status_code = 429
    retry_after = 600
