"""`redrive audit`: plain words for people, stable ones for programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.terminal.cli import Cli

from redrive import connect
from redrive.auth import token_store
from redrive.auth.principal import TOKENS_NAMESPACE
from redrive.capture import DeadLetterQueue
from redrive.cli.commands.audit import WORDS, describe_entry
from redrive.clock import Instant
from redrive.contract.queries import AuditEntry
from redrive.model.manual_change import MANUAL_VERBS
from redrive.testing import FakeClock


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(f"sqlite:///{tmp_path}/store.db")


def entry(verb: str, note: str | None = None, ids: tuple[str, ...] = ()) -> AuditEntry:
    return AuditEntry(1, Instant(0), "ann", verb, None, ids, 0, note)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("start redrive", "redrive started"),
        ("set cancelled redrive", "redrive cancelled"),
        ("set paused archive", "archive paused"),
        ("set running archive", "archive resumed"),
        ("set stopped purge", "purge stopped"),
        ("set rate redrive", "redrive rate changed"),
        ("delete_queue", "queue deleted"),
        ("redrive", "redriven"),
        ("create_token", "token created"),
        ("of_a_later release", "of_a_later release"),
    ],
)
def test_verbs_are_plain_english(verb: str, said: str) -> None:
    assert describe_entry(entry(verb, ids=("1",))) == said


def test_operation_that_has_ended_is_told_from_a_change_of_single_items() -> None:
    assert describe_entry(entry("redrive", "operation 0a1b: why not")) == "redrive finished"
    assert describe_entry(entry("redrive", "operation on her own", ids=("1",))) == "redriven"


def test_every_verb_by_hand_has_its_words() -> None:
    assert {verb.value for verb in MANUAL_VERBS} <= WORDS.keys()


def test_table_has_words_and_json_has_verbs(cli: Cli) -> None:
    cli("queue", "create", "jobs")
    cli("queue", "pause", "jobs")
    with cli.broker() as broker:
        broker.cancel_operation(broker.start_operation("archive", queue="jobs", paused=True).id)
    printed = cli("audit").stdout
    assert [word in printed for word in ("archive cancelled", "archive started", "queue paused")] == [True] * 3
    assert [row["verb"] for row in cli.json("audit")] == ["set cancelled archive", "start archive", "pause_queue"]


def test_who_shows_or_exports_secrets_is_in_the_audit(cli: Cli, tmp_path: Path) -> None:
    with connect(cli.url, maintenance=False) as broker, DeadLetterQueue(broker) as dlq:
        broker.create_queue("jobs")
        letter = broker.put("jobs", {"password": "hunter2hunter2"}).id
        broker.bury_items(letter)
        dlq.enqueue("t", {"password": "hunter2hunter2"}, error="boom")
    cli("dead", "show", letter)
    cli("capture", "show", "t")
    cli("dead", "export", "--to", str(tmp_path / "some"))
    assert {row["verb"] for row in cli.json("audit")} == {"bury"}
    assert "hunter2hunter2" in cli("dead", "show", letter, "--secrets").stdout
    assert "hunter2hunter2" in cli("capture", "show", "t", "--secrets").stdout
    cli("dead", "export", "-q", "jobs", "--secrets", "--to", str(tmp_path / "all"))
    cli("dead", "export", "--secrets")
    rows = cli.json("audit")[:4]
    assert [row["verb"] for row in rows] == ["export", "export", "reveal", "reveal"]
    assert [row["note"].partition(" of ")[2] for row in rows] == [
        *("all queues", "queue 'jobs'", "queue 'captured'", "queue 'jobs'"),
    ]
    assert letter in rows[-1]["note"]
    assert all(row["actor"] for row in rows)
    printed = cli("audit").stdout
    assert ("secrets exported" in printed, "secrets shown" in printed) == (True, True)


def test_tokens_stand_among_the_rest_page_by_page(cli: Cli) -> None:
    clock = FakeClock()
    with connect(cli.url, maintenance=False, clock=clock) as broker:
        broker.create_queue("jobs")
    for number in range(3):
        with connect(cli.url, maintenance=False, clock=clock) as broker:
            broker.pause_queue("jobs") if number % 2 == 0 else broker.resume_queue("jobs")
        clock.advance("1m")
        with connect(cli.url, maintenance=False, clock=clock, namespace=TOKENS_NAMESPACE) as broker:
            made = token_store.create(broker.core.clock, f"t{number}", ["viewer"], created_by="ann")
            broker.run_flow(made)
        clock.advance("1m")
    whole = cli.json("audit")
    told = [row.get("note") or row["verb"] for row in whole]
    assert told == ["t2: viewer", "pause_queue", "t1: viewer", "resume_queue", "t0: viewer", "pause_queue"]
    paged, before = [], ()
    for _ in range(3):
        page = cli.json("audit", "--limit", "1", *before)
        paged += page
        before = ("--before", page[-1]["number"])
    assert paged == whole
    assert cli.json("audit", "--namespace", TOKENS_NAMESPACE) == whole[::2]
