"""`redrive queue …` as a person types it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from tests.terminal.cli import Cli, kill

FIXTURE_QUEUES = ("jobs", "mails")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(f"sqlite:///{tmp_path}/store.db")
    for name in FIXTURE_QUEUES:
        cli("queue", "create", name)
    return cli


def push(cli: Cli, *values: object, queue: str = "jobs") -> list[str]:
    return [cli.json("queue", "push", queue, json.dumps(value))["id"] for value in values]


def test_list_without_a_queue_counts_items_by_status(cli: Cli) -> None:
    with cli.broker() as broker:
        kill(broker, "jobs", [1, 2])
        broker.put_many("jobs", [3])
        broker.lease("jobs")
        broker.put_many("jobs", [4, 5, 6])
    jobs, mails = cli.json("queue", "list")
    assert (jobs["name"], mails["name"]) == FIXTURE_QUEUES
    assert {name: jobs["stats"][name] for name in ("pending", "active", "dead_letters")} == {
        "pending": 3,
        "active": 1,
        "dead_letters": 2,
    }
    result = cli("queue", "list")
    assert result.stdout.splitlines()[1].split()[:5] == ["jobs", "3", "1", "0", "2"]
    assert "2 dead letters: redrive dead groups shows the causes" in result.stderr


def test_holders_of_an_item_are_shown(cli: Cli) -> None:
    (id,) = push(cli, 1)
    with cli.broker() as broker:
        for name in ("ann", "bob"):
            broker.hold([id], name, lasting=True)
    assert cli("queue", "list", "jobs").stdout.splitlines()[1].endswith("held by ann, bob")
    assert cli.json("queue", "list", "jobs")["items"][0]["held_by"] == ["ann", "bob"]
    with cli.broker() as broker:
        broker.bury_items([id])
    assert "held by" in (shown := cli("dead", "show", id).stdout)
    assert "ann, bob" in shown


def test_list_with_a_queue_has_its_items(cli: Cli) -> None:
    first, second = push(cli, {"n": 1}, {"n": 2})
    assert [item["id"] for item in cli.json("queue", "list", "jobs")["items"]] == [second, first]
    lines = cli("queue", "list", "jobs", "--oldest").stdout.splitlines()
    assert lines[1].startswith(f"{first[:8]}  jobs   pending")
    assert lines[1].endswith('{"n":1}')
    assert cli("queue", "list", "mails").stdout == "queue mails is empty\n"
    assert cli("queue", "list", "jobs", "--status", "dead").stdout == "nothing in jobs is dead\n"


def test_list_goes_on_with_a_cursor(cli: Cli) -> None:
    ids = push(cli, 1, 2, 3)
    page = cli.json("queue", "list", "jobs", "--limit", "2", "--oldest")
    rest = cli.json("queue", "list", "jobs", "--limit", "2", "--oldest", "--cursor", page["cursor"])
    assert [item["id"] for item in page["items"] + rest["items"]] == ids
    assert "cursor" not in rest


def test_create_again_with_other_settings_is_refused_and_says_what_to_type(cli: Cli) -> None:
    cli("queue", "create", "jobs")
    result = cli("queue", "create", "jobs", "--max-size", "3", exits=5)
    assert "redrive queue update jobs changes them" in result.stderr


def test_show_has_settings_counts_and_workers(cli: Cli) -> None:
    cli("queue", "update", "jobs", "--attempts", "3", "--cooldown", "30s")
    shown = cli("queue", "show", "jobs").stdout
    assert "retry  attempts 3, cooldown 30s" in shown
    assert "workers: none alive" in shown
    told = cli.json("queue", "show", "jobs")
    assert told["stats"]["pending"] == 0
    assert told["workers"] == []
    assert told["settings"]["retry"] == {"attempts": 3, "cooldown": "30s"}


def test_unknown_queue_is_not_found_and_says_what_to_type(cli: Cli) -> None:
    for words in (["show"], ["update", "--attempts", "3"], ["pause"], ["delete"], ["drain"], ["list"], ["watch"]):
        error = cli.error("queue", words[0], "nothing", *words[1:], exits=4)
        assert error["code"] == "queue_not_found"
        assert error["details"] == {"queue": "nothing", "namespace": "default"}
    assert "redrive queue list shows all queues" in cli("queue", "show", "nothing", exits=4).stderr


def test_pause_and_resume(cli: Cli) -> None:
    assert "redrive queue resume jobs resumes it" in cli("queue", "pause", "jobs").stdout
    assert cli.json("queue", "show", "jobs")["paused"] is True
    assert cli.json("queue", "resume", "jobs")["paused"] is False


def test_delete_asks_for_the_number_of_items(cli: Cli) -> None:
    push(cli, 1, 2)
    assert "2 items would be removed" in cli("queue", "delete", "jobs", "--dry-run").stdout
    assert "add --yes 2" in cli("queue", "delete", "jobs", exits=10).stderr
    assert cli.error("queue", "delete", "jobs", "--yes", "3", exits=10)["code"] == "confirm_mismatch"
    assert len(cli.json("queue", "list")) == 2
    cli("queue", "delete", "jobs", "--yes", "2")
    cli("queue", "delete", "mails")
    assert cli.json("queue", "list") == []


# Push


def test_push_takes_json_text_a_file_and_stdin(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b'{"from": "file"}')
    cli("queue", "push", "jobs", '{"from": "argument"}')
    cli("queue", "push", "jobs", input='{"from": "stdin"}')
    cli("queue", "push", "jobs", "-", input='"dash"')
    cli("queue", "push", "jobs", "--file", str(file))
    cli("queue", "push", "jobs", "--text", "no {JSON")
    cli("queue", "push", "jobs", "--content-type", "image/png", input=b"\xff\x00")
    items = cli.json("queue", "list", "jobs", "--oldest")["items"]
    assert [item.get("payload") for item in items[:4]] == [
        {"from": "argument"},
        {"from": "stdin"},
        "dash",
        {"from": "file"},
    ]
    assert (items[4]["payload"], items[4]["encoding"]) == ("no {JSON", "utf8")
    assert (items[5]["payload"], items[5]["encoding"]) == ("/wA=", "base64")


def test_push_takes_the_options_of_a_put(cli: Cli) -> None:
    options = ("--header", "tenant=blue", "--delay", "1h", "--priority", "9", "--key", "k", "--expire", "1d")
    id = cli.json("queue", "push", "jobs", "1", *options)["id"]
    again = cli.json("queue", "push", "jobs", "1", *options)
    assert (again["id"], again["duplicate"]) == (id, True)
    item = cli.json("dead", "show", id)
    assert (item["headers"], item["priority"], item["idempotency_key"]) == ({"tenant": "blue"}, 9, "k")
    assert item["ready_at"] > item["put_at"]
    assert item["expire_deadline"] is not None
    until = cli.json("queue", "push", "jobs", "1", "--expire-at", "2100-01-01T01:00:00+01:00")["id"]
    assert cli.json("dead", "show", until)["expire_deadline"] == "2100-01-01T00:00:00.000000Z"
    both = cli("queue", "push", "jobs", "1", "--expire-at", "2100-01-01", "--expire", "1d", exits=2)
    assert "--expire and --expire-at were given; omit one" in both.stderr
    assert "'tomorrow' is not a time" in cli("queue", "push", "jobs", "1", "--expire-at", "tomorrow", exits=2).stderr


def test_reschedule_changes_from_when_items_may_be_leased(cli: Cli) -> None:
    id = cli.json("queue", "push", "jobs", "1", "--delay", "1h")["id"]
    (later,) = cli.json("queue", "reschedule", id, "--at", "2100-01-01T00:00", "--note", "not now")
    assert (later["status"], later["ready_at"]) == ("pending", "2100-01-01T00:00:00.000000Z")
    later = cli("queue", "reschedule", id, "--at", "2100-01-01T00:00")
    assert "reschedule: pending in jobs, may be leased from 2100-01-01 00:00:00" in later.stdout
    assert "reschedule: pending in jobs, may be leased from 20" in cli("queue", "reschedule", id).stdout
    with cli.broker() as broker:
        assert [lease.id for lease in broker.lease("jobs", 1)] == [id]
        assert [entry.note for entry in broker.get(id).history] == ["not now", None, None]
    assert cli.error("queue", "reschedule", id, exits=9)["code"] == "item_active"
    assert (
        "--delay and --at were given"
        in cli("queue", "reschedule", id, "--at", "2100-01-01", "--delay", "1s", exits=2).stderr
    )


def test_push_takes_a_retry_policy_in_toml_or_json(cli: Cli) -> None:
    policy = {"attempts": 5, "delays": ["1s", "1m"]}
    for text in ('{attempts=5, delays=["1s", "1m"]}', json.dumps(policy)):
        id = cli.json("queue", "push", "jobs", "1", "--retry", text)["id"]
        assert cli.json("dead", "show", id)["overrides"] == {"retry": policy}
    assert "retry  attempts 5, delays 1s, 1m" in cli("dead", "show", id).stdout
    cli("queue", "push", "jobs", "--lines", "--retry", "{attempts=2}", input="1\n2\n")
    with cli.broker() as broker:
        kept = [lease.overrides.retry for lease in broker.lease("jobs", 9)]
    assert [retry and retry.attempts for retry in kept] == [5, 5, 2, 2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("5", "retry must be a table"),
        ("{cooldown='1s'}", "retry.attempts is missing"),
        ("{attempts=5, delay='soon'}", "retry.delay must be one of"),
        ("{attempts=5", "retry must be a table, not str"),
    ],
)
def test_push_with_a_retry_policy_that_cannot_be_says_why(cli: Cli, text: str, problem: str) -> None:
    assert problem in cli("queue", "push", "jobs", "1", "--retry", text, exits=3).stderr
    assert cli.json("queue", "show", "jobs")["stats"]["pending"] == 0


def test_push_of_what_is_not_json_says_how_to_write_a_text(cli: Cli) -> None:
    assert "--text" in cli("queue", "push", "jobs", "hello", exits=3).stderr


def test_misspelt_queue_is_told_with_the_one_that_was_meant(cli: Cli) -> None:
    told = cli.error("queue", "push", "jbos", "1", exits=4)
    assert told["message"].startswith("queue 'jbos' does not exist (did you mean jobs?)\n")
    assert "did you mean" not in cli("queue", "show", "elsewhere", exits=4).stderr


def test_push_of_nothing_says_where_a_payload_comes_from(cli: Cli) -> None:
    told = cli("queue", "push", "jobs", input="", exits=3).stderr
    assert "there is no payload" in told
    assert "as an argument" in told


def test_push_of_lines_puts_an_item_for_each(cli: Cli) -> None:
    lines = "".join(f"{number}\n\n" for number in range(2_500))
    assert cli.json("queue", "push", "jobs", "--lines", input=lines) == {"queue": "jobs", "put": 2_500}
    assert cli.json("queue", "show", "jobs")["stats"]["pending"] == 2_500


def test_push_of_lines_that_breaks_off_says_how_many_were_put(cli: Cli) -> None:
    lines = "1\n" * 1_500 + "{broken\n"
    result = cli("queue", "push", "jobs", "--lines", input=lines, exits=3)
    assert "before this, 1,000 items were put into jobs" in result.stderr
    assert "line 1,501" in result.stderr
    assert cli.json("queue", "show", "jobs")["stats"]["pending"] == 1_000


@pytest.mark.parametrize("words", [["1", "--file", __file__], ["--lines", "--key", "k"], ["--lines", "1"]])
def test_contradictory_options_of_push_are_a_mistake(cli: Cli, words: list[str]) -> None:
    cli("queue", "push", "jobs", *words, exits=2)


# Single items


def test_retry_is_for_dead_and_failed_items_and_says_so(cli: Cli) -> None:
    (pending,) = push(cli, 1)
    result = cli("queue", "retry", pending[:8], exits=5)
    assert (
        f"cannot retry item {pending[:8]}: it is pending, and retry is for items that are dead or failed"
        in result.stderr
    )
    with cli.broker() as broker:
        (dead,) = kill(broker, "mails", [1])
    assert "pending in mails" in cli("queue", "retry", dead[:8]).stdout


def test_retry_of_many_by_status_and_conditions(cli: Cli) -> None:
    with cli.broker() as broker:
        broker.update_queue("jobs", retry={"attempts": 3, "cooldown": "1h"})
        broker.put_many("jobs", [1, 2])
        for lease in broker.lease("jobs", 2):
            broker.fail(lease, "soon")
        kill(broker, "mails", [1, 2, 3])
    plan = cli.json("queue", "retry", "--all-dead", "--dry-run")
    assert (plan["changed"], plan["dry_run"]) == (3, True)
    assert cli.json("queue", "retry", "--all-dead", "--yes", "3")["status"] == "finished"
    assert cli.json("queue", "retry", "--status", "failed", "-q", "jobs", "--yes", "any")["changed"] == 2
    assert [each["stats"]["pending"] for each in cli.json("queue", "list")] == [2, 3]


@pytest.mark.parametrize("words", [[], ["--all-dead", "7f3a90c1"], ["--all-dead", "--status", "failed"]])
def test_retry_of_nobody_knows_what_is_a_mistake(cli: Cli, words: list[str]) -> None:
    cli("queue", "retry", *words, exits=2)


def test_fail_done_and_drop(cli: Cli) -> None:
    a, b, c = push(cli, 1, 2, 3)
    (failed,) = cli.json("queue", "fail", a[:8], "--error", "the address is wrong")
    assert (failed["status"], failed["dead_reason"]) == ("dead", "retries_exhausted")
    assert cli.json("dead", "show", a)["deaths"][0]["cause"]["title"] == "Error: the address is wrong"
    assert "completed, and not kept" in cli("queue", "done", b).stdout
    assert f"redrive undo {c[:8]}" in cli("queue", "drop", c).stdout
    assert cli.error("queue", "drop", c, exits=5)["code"] == "wrong_status"


def test_drop_says_until_when_it_can_be_undone_and_undo_who_did_it(cli: Cli) -> None:
    a, b, c = push(cli, 1, 2, 3)
    (dropped,) = cli.json("queue", "drop", a[:8])
    assert dropped["status"] == "archived"
    item = cli.json("dead", "show", a)
    assert item["history"][-1]["event"] == "dropped"
    at, until = (datetime.fromisoformat(text) for text in (item["history"][-1]["at"], dropped["undo_until"]))
    assert until - at == timedelta(days=7)
    shown = cli("dead", "show", a)
    actor = item["history"][-1]["actor"]
    assert f"{actor} dropped it at {item['history'][-1]['at'][:10]}" in shown.stderr
    assert f"Restore it: redrive undo {a[:8]}" in shown.stderr
    assert [each["id"] for each in cli.json("queue", "list", "jobs", "--oldest")["items"]] == [b, c]
    assert cli.json("queue", "list", "jobs", "--status", "archived")["items"][0]["id"] == a
    assert cli.json("undo", a[:8], "--dry-run")["changed"] == 1
    (undone,) = cli.json("undo", a[:8])
    assert (undone["status"], undone["undone"]["actor"]) == ("pending", actor)
    assert undone["undone"]["at"] == item["history"][-1]["at"]
    text = cli("queue", "drop", a, b).stdout.splitlines()
    assert [line[:8] for line in text] == [a[:8], b[:8]]
    assert all("dropped; until 20" in line and f": redrive undo {line[:8]}" in line for line in text)
    assert f"undo: pending in jobs; {actor} dropped it at 20" in cli("undo", a).stdout
    cli("queue", "update", "jobs", "--keep-dropped", "0s")
    assert "removed permanently" in cli("queue", "drop", a).stdout
    assert cli.error("undo", a, exits=4)["code"] == "item_not_found"


def test_item_that_a_worker_has_needs_force(cli: Cli) -> None:
    (id,) = push(cli, 1)
    with cli.broker() as broker:
        broker.lease("jobs", worker="worker-7")
    result = cli("queue", "drop", id[:8], exits=9)
    assert "being worked on by worker 'worker-7'" in result.stderr
    assert "--force" in result.stderr
    cli("queue", "drop", id[:8], "--force")


def test_of_several_items_each_stands_for_itself(cli: Cli) -> None:
    with cli.broker() as broker:
        (dead,) = kill(broker, "mails", [1])
    (pending,) = push(cli, 1)
    good, bad = cli.json("queue", "retry", dead, pending, exits=1)
    assert (good["status"], bad["error"]["code"]) == ("pending", "wrong_status")
    (other,) = push(cli, 2)
    cli("queue", "retry", pending, other, exits=5)


# Drain and prune


def test_drain_drops_what_waits_and_nothing_else(cli: Cli) -> None:
    with cli.broker() as broker:
        kill(broker, "jobs", [0])
        broker.put("jobs", 1)
        broker.lease("jobs")
        broker.put_many("jobs", range(5))
    assert cli.json("queue", "drain", "jobs", "--dry-run")["matched"] == 5
    cli("queue", "drain", "jobs", "--yes", "4", exits=10)
    drained = cli.json("queue", "drain", "jobs", "--yes", "5")
    assert (drained["dropped"], drained["undo_until"] > "2026") == (5, True)
    stats = cli.json("queue", "show", "jobs")["stats"]
    assert (stats["pending"], stats["active"], stats["dead"], stats["archived"]) == (0, 1, 1, 5)
    assert cli("queue", "drain", "jobs", exits=12).stdout == "There is nothing to be dropped.\n"


def test_drained_items_come_back_together(cli: Cli) -> None:
    push(cli, *range(5))
    told = cli("queue", "drain", "jobs", "--yes", "any")
    assert "5 items dropped: pending 5" in told.stdout
    restore = "dead restore -q jobs --where dropped=true"
    assert f"this restores all dropped items: redrive {restore}" in told.stderr
    cli(*restore.split(), "--yes", "5")
    assert cli.json("queue", "show", "jobs")["stats"]["pending"] == 5


def test_drain_of_a_dead_queue_warns_that_these_are_dead_letters(cli: Cli) -> None:
    cli("queue", "create", "orders", "--dead-queue", "mails")
    with cli.broker() as broker:
        kill(broker, "orders", [1, 2])
    assert "2 items in mails are dead letters" in cli("queue", "drain", "mails", "--dry-run").stderr


def test_prune_removes_what_is_over(cli: Cli) -> None:
    cli("queue", "update", "jobs", "--keep-completed", "1d")
    with cli.broker() as broker:
        broker.put_many("jobs", range(3))
        for lease in broker.lease("jobs", 3):
            broker.complete(lease)
        kill(broker, "mails", [1, 2])
    cli("dead", "archive", "-q", "mails", "--yes", "2")
    assert cli.json("queue", "prune", "--older-than", "1h", "--dry-run")["matched"] == 0
    found = cli.json("queue", "prune", "--dry-run")
    assert found["by_status"] == {"completed": 3, "archived": 2}
    assert cli.json("queue", "prune", "jobs", "--yes", "3")["removed"] == 3
    assert cli.json("queue", "prune", "--yes", "2")["removed"] == 2
    with cli.broker() as broker:
        kill(broker, "mails", [1])
    assert cli.json("queue", "prune", "--status", "dead", "--yes", "1")["by_status"] == {"dead": 1}
    assert not cli.json("queue", "list", "mails", "--status", "archived")["items"]


def test_prune_removes_what_was_dropped(cli: Cli) -> None:
    (id,) = push(cli, 1)
    cli("queue", "drop", id)
    assert cli.json("queue", "prune", "--yes", "1")["removed"] == 1
    assert cli.error("undo", id, exits=4)["code"] == "item_not_found"


def test_archive_takes_items_of_any_status(cli: Cli) -> None:
    a, b = push(cli, 1, 2)
    assert "archive: archived in jobs" in cli("dead", "archive", a).stdout
    cli("dead", "archive", "--where", "status=pending", "-q", "jobs", "--yes", "1")
    cli("dead", "restore", a, b)
    cli("dead", "archive", a, b, "--note", "later", "--yes", "2")
    assert cli.json("queue", "show", "jobs")["stats"]["archived"] == 2


# Watch and logs


def test_watch_writes_a_line_for_each_queue_and_each_change(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(seconds: float) -> None:
        push(cli, 1)

    monkeypatch.setattr("redrive.cli.commands.queue_watch.sleep", change)
    lines = [json.loads(line) for line in cli("queue", "watch", "--times", "2").stdout.splitlines()]
    assert [(line["queue"], line["pending"]) for line in lines] == [("jobs", 0), ("mails", 0), ("jobs", 1)]


def test_logs_tell_what_happened_to_all_or_one(cli: Cli) -> None:
    with cli.broker() as broker:
        first, second = kill(broker, "jobs", [1, 2], ValueError("no"))
        broker.redrive(first)
    kinds = [entry["kind"] for entry in cli.json("queue", "logs")["entries"]]
    assert kinds == ["dead", "dead", "redriven"]
    lines = cli("queue", "logs", first[:8]).stdout.splitlines()
    assert [first[:8] in line for line in lines] == [True, True]
    assert "redriven in jobs by test" in lines[-1]
    assert len(cli.json("queue", "logs", "--kind", "dead", "-q", "jobs")["entries"]) == 2
    followed = cli("queue", "logs", "--follow", "--wait", "10ms", "-o", "json").stdout.splitlines()
    assert [json.loads(line)["kind"] for line in followed] == kinds
    assert second
    cli("queue", "logs", "--wait", "1s", exits=2)
