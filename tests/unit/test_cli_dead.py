"""`redrive dead …`, `redrive operation …` and `redrive undo`, at 3 a.m."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.terminal.cli import Cli, kill

from redrive.cli.commands.demo import fill


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(f"sqlite:///{tmp_path}/store.db")
    with cli.broker() as broker:
        fill(broker)
    return cli


def group(cli: Cli, place: int = 0) -> str:
    fingerprint: str = cli.json("dead", "groups")["groups"][place]["fingerprint"]
    return fingerprint


def test_first_line_of_groups_tells_how_many_died_and_where(cli: Cli) -> None:
    result = cli("dead", "groups")
    assert result.stdout.splitlines()[0] == "110 dead letters: orders-dead 90, mails 20"
    assert "ConnectionError: order <n>: the payment gateway at <address> refused" in result.stdout.splitlines()[3]
    assert "redrive dead show" in result.stderr
    told = cli.json("dead", "groups")
    assert (told["dead"], told["queues"]) == (110, {"mails": 20, "orders-dead": 90})
    assert [each["count"] for each in told["groups"]] == [78, 20, 12]
    assert cli("dead", "groups", "-q", "mails").stdout.startswith("20 dead letters: mails 20\n")
    assert cli("dead", "groups", "-q", "orders").stdout == "There are no dead letters in orders.\n"


def test_tables_fit_into_a_hundred_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for words in (["dead", "groups"], ["dead", "list"], ["queue", "list"], ["queue", "list", "mails"], ["audit"]):
        assert max(map(len, cli(*words).stdout.splitlines())) <= 100, words


def test_show_tells_what_why_and_what_to_type_next(cli: Cli) -> None:
    item = cli.json("dead", "list", "--where", "error_class=validation", "--limit", "1")["items"][0]
    result = cli("dead", "show", item["id"][:8])
    for text in (
        "ValueError: order",
        "retries exhausted after 1 attempt",
        "raise ValueError(",
        '"api_key":"[redacted]"',
        "history:",
        "failed (delivery 1) by worker-1",
        "first in     orders",
    ):
        assert text in result.stdout
    assert f"redrive dead redrive {item['id'][:8]}" in result.stderr
    assert "key-" not in result.stdout
    assert "-0815" in cli("dead", "show", item["id"], "--secrets").stdout


def test_search_and_list_take_conditions(cli: Cli) -> None:
    def found(*words: str) -> int:
        return len(cli.json("dead", *words, "--limit", "1000")["items"])

    assert found("search", "payment", "gateway") == 78
    assert found("search", "gatew*", "-q", "mails") == 0
    assert found("list", "--error-type", "TimeoutError") == 20
    assert found("list", "--group", group(cli)[:6]) == 78
    assert found("list", "--since", "1h") == 110
    assert found("list", "--until", "1h") == 0
    assert found("list", "--since", "2020-01-01T00:00") == 110
    assert found("list", "--where", "origin_queue=orders", "--where", "min_attempts=1") == 90
    assert found("list", "--where", "held=true") == 0
    assert cli("dead", "search", "nothing", "like", "it").stdout == "No dead letter has all of these words.\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--where", "kolour=red"], "is not a condition"),
        (["--where", "queue"], "is not NAME=VALUE"),
        (["--where", "min_attempts=few"], "is a number"),
        (["--where", "held=perhaps"], "held is true or false"),
        (["--since", "yesterday"], "neither how long ago"),
    ],
)
def test_mistake_in_a_condition_is_told(cli: Cli, words: list[str], problem: str) -> None:
    assert problem in cli("dead", "list", *words, exits=2).stderr


def test_condition_that_no_item_can_meet_is_invalid(cli: Cli) -> None:
    assert cli.error("dead", "list", "--where", "reason=boredom", exits=3)["code"] == "invalid_input"
    assert cli.error("dead", "list", "--group", "ffffff", exits=4)["code"] == "not_found"


# Ids


def test_ids_are_known_by_their_first_digits(cli: Cli) -> None:
    id = cli.json("dead", "list", "--limit", "1")["items"][0]["id"]
    assert cli.json("dead", "show", id[:8])["id"] == id
    assert cli.json("dead", "show", id[:8].upper())["id"] == id


@pytest.mark.parametrize(("typed", "code"), [("abc", 3), ("xyzw", 3), ("0" * 33, 3), ("0" * 32, 4), ("00000000", 4)])
def test_id_of_nothing_is_told(cli: Cli, typed: str, code: int) -> None:
    cli("dead", "show", typed, exits=code)


def test_ambiguous_digits_list_the_candidates(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.cli.selection.SHORTEST", 1)
    ids = [item["id"] for item in cli.json("dead", "list", "--limit", "1000")["items"]]
    digit = next(digit for digit in "0123456789abcdef" if sum(id.startswith(digit) for id in ids) > 1)
    error = cli.error("dead", "show", digit, exits=3)
    assert error["code"] == "invalid_name"
    assert len(error["details"]["candidates"]) > 1
    assert "dead in mails" in error["message"] or "pending in orders-dead" in error["message"]


# Bringing back


def test_redrive_of_one_item(cli: Cli) -> None:
    item = cli.json("dead", "list", "-q", "orders-dead", "--limit", "1")["items"][0]
    (settled,) = cli.json("dead", "redrive", item["id"][:8], "--note", "one to try")
    assert (settled["queue"], settled["status"]) == ("orders", "pending")
    back = cli.json("dead", "show", settled["id"])
    assert back["history"][-1]["note"] == "one to try"
    assert f"redrive undo {settled['id'][:8]}" in cli("dead", "show", settled["id"]).stderr
    (undone,) = cli.json("undo", settled["id"][:8])
    assert undone["queue"] == "orders-dead"


def test_redrive_of_a_group_is_planned_asked_back_done_and_undone(cli: Cli) -> None:
    chosen = ("--group", group(cli)[:8])
    assert "78 of 78 items would be changed" in cli("dead", "redrive", *chosen, "--dry-run").stdout
    assert "add --yes 78" in cli("dead", "redrive", *chosen, exits=10).stderr
    assert "and --yes 5 was given" in cli("dead", "redrive", *chosen, "--yes", "5", exits=10).stderr
    assert cli.json("dead", "groups")["dead"] == 110
    done = cli.json("dead", "redrive", *chosen, "--yes", "78", "--note", "back")
    assert (done["status"], done["changed"], done["note"]) == ("finished", 78, "back")
    assert "undo: 78 of 78 items would be changed" in cli("undo", done["id"][:8], "--dry-run").stdout
    assert "add --yes 78" in cli("undo", done["id"][:8], exits=10).stderr
    assert "and --yes 5 was given" in cli("undo", done["id"][:8], "--yes", "5", exits=10).stderr
    assert cli.json("dead", "groups")["dead"] == 32
    assert cli.json("undo", done["id"][:8], "--yes", "78")["changed"] == 78
    assert cli.json("dead", "groups")["dead"] == 110


def test_number_is_asked_back_in_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.cli.bulk_change.in_a_terminal", lambda: True)
    refused = cli("dead", "redrive", "-q", "mails", input="19\n", exits=10)
    assert "This will redrive 20 items." in refused.stderr
    assert "that is not the number; nothing was done" in refused.stderr
    assert "finished, 20 of 20" in cli("dead", "redrive", "-q", "mails", input="20\n").stdout


def test_nothing_that_matches_has_an_exit_code_of_its_own(cli: Cli) -> None:
    assert cli("dead", "redrive", "-q", "orders", exits=12).stdout == "Nothing matches; nothing was done.\n"


def test_it_must_be_clear_which_items_are_meant(cli: Cli) -> None:
    for verb in ("redrive", "archive", "restore", "purge"):
        assert "Give ids, or conditions" in cli("dead", verb, exits=2).stderr
        assert "omit one of the two" in cli("dead", verb, "7f3a90c1", "--all", exits=2).stderr


def test_redrive_to_another_queue_with_a_rate(cli: Cli) -> None:
    cli("queue", "create", "later")
    done = cli.json("dead", "redrive", "-q", "mails", "--to", "later", "--rate", "6000/m", "--yes", "any")
    assert (done["to"], done["rate"], done["changed"]) == ("later", 100.0, 20)
    assert cli.json("queue", "show", "later")["stats"]["pending"] == 20
    assert (
        cli.error("dead", "redrive", "--all", "--to", "nowhere", "--yes", "any", exits=4)["code"] == "queue_not_found"
    )
    cli("dead", "redrive", "--all", "--rate", "fast", exits=2)


def test_limit_changes_the_oldest_only(cli: Cli) -> None:
    chosen = ("dead", "redrive", "-q", "mails", "--limit", "3")
    assert "3 of 20 items would be changed" in cli(*chosen, "--dry-run").stdout
    assert "this would redrive 3 items, and --yes 20 was given" in cli(*chosen, "--yes", "20", exits=10).stderr
    assert "finished, 3 of 3 changed, limit 3" in cli(*chosen, "--yes", "3").stdout
    edited = cli.json("dead", "redrive", "-q", "mails", "--edit", '{"to": "x"}', "--limit", "2", "--yes", "2")
    assert (edited["matched"], edited["changed"]) == (2, 2)
    ids = [item["id"] for item in cli.json("dead", "list", "-q", "mails", "--limit", "4")["items"]]
    assert cli.json("dead", "archive", *ids, "--limit", "1")["changed"] == 1
    cli("dead", "archive", "--all", "--limit", "0", exits=2)


def test_limit_takes_the_oldest_of_the_named_ones_that_can_be_edited(cli: Cli) -> None:
    with cli.broker() as broker:
        oldest, *others = [item.id for item in broker.find(queue="mails", order="oldest", limit=3).items]
        pending = broker.put("mails", {"to": "y"}).id
    named = ("dead", "redrive", pending, *others, oldest, "--edit", '{"to": "x"}', "--limit", "1")
    assert [each["id"] for each in cli.json(*named, "--dry-run")["samples"]] == [oldest]
    assert cli.json(*named)["changed"] == 1
    with cli.broker() as broker:
        left = {item.id for item in broker.find(queue="mails", limit=1000).items}
    assert (oldest in left, left.issuperset(others)) == (False, True)


def test_canaries_hold_the_rest_back_until_they_have_completed(cli: Cli) -> None:
    chosen = ("dead", "redrive", "-q", "mails", "--canary", "3", "--yes", "20")
    watching = cli.json(*chosen, "--wait", "10ms", exits=11)
    assert (watching["status"], watching["changed"]) == ("watching", 3)
    with cli.broker() as broker:
        for lease in broker.lease("mails", 3):
            broker.complete(lease)
    assert cli.json("operation", "resume", watching["id"][:8])["changed"] == 20
    assert cli.error("operation", "cancel", watching["id"][:8], exits=5)["code"] == "operation_ended"


def test_canaries_that_die_again_stop_it(cli: Cli) -> None:
    started = cli.json("dead", "redrive", "-q", "mails", "--canary", "3", "--yes", "20", "--wait", "10ms", exits=11)
    with cli.broker() as broker:
        for lease in broker.lease("mails", 3):
            broker.fail(lease, "still broken")
    result = cli("operation", "resume", started["id"][:8], exits=11)
    assert "stopped, 3 of 20 changed" in result.stdout
    assert "problem: " in result.stdout


def test_operation_without_waiting_is_listed_shown_and_cancelled(cli: Cli) -> None:
    started = cli.json("dead", "redrive", "--all", "--yes", "any", "--no-wait")
    assert (started["status"], started["changed"]) == ("running", 0)
    assert cli.json("operation", "list", "--unfinished")[0]["id"] == started["id"]
    assert "started" in cli("operation", "show", started["id"][:8]).stdout
    assert cli.json("operation", "cancel", started["id"][:8])["status"] == "cancelled"
    assert cli.json("operation", "list", "--unfinished") == []
    assert cli.error("operation", "show", "00000000", exits=4)["code"] == "operation_not_found"


def test_archive_restore_and_purge(cli: Cli) -> None:
    one = cli.json("dead", "list", "-q", "mails", "--limit", "1")["items"][0]["id"]
    assert cli.json("dead", "archive", one[:8])[0]["status"] == "archived"
    assert "redrive dead restore" in cli("dead", "show", one[:8]).stderr
    assert cli.json("dead", "archive", "-q", "mails", "--yes", "19")["changed"] == 19
    assert len(cli.json("dead", "list", "--archived", "-q", "mails")["items"]) == 20
    assert cli.json("dead", "restore", one[:8])[0]["status"] == "dead"
    assert cli.json("dead", "purge", "--all", "--dry-run")["changed"] == 19
    cli("dead", "purge", "--all", "--yes", "any", exits=2)
    cli("dead", "purge", "--all", "--yes", "20", exits=10)
    assert cli.json("dead", "purge", "--all", "--yes", "19")["changed"] == 19
    assert cli.error("dead", "purge", one, exits=5)["code"] == "wrong_status"


def test_operation_is_paused_slowed_down_and_resumed(cli: Cli) -> None:
    id = cli.json("dead", "redrive", "-q", "mails", "--yes", "any", "--no-wait", "--rate", "1/h")["id"]
    paused = cli("operation", "pause", id[:8]).stdout
    assert f"redrive {id[:8]}: paused, 0 of 20 changed" in paused
    assert cli.json("operation", "rate", id[:8], "60000/m")["rate"] == 1000
    assert cli.error("operation", "rate", id[:8], "fast", exits=2)["code"] == "usage"
    assert cli.json("operation", "show", id[:8])["status"] == "paused"
    assert cli.json("operation", "resume", id[:8])["changed"] == 20
    assert cli.error("operation", "pause", id[:8], exits=5)["code"] == "operation_ended"


def test_items_that_are_named_can_be_an_operation_too_and_nobody_is_asked(cli: Cli) -> None:
    one, two, three = (item["id"][:8] for item in cli.json("dead", "list", "-q", "mails", "--limit", "3")["items"])
    done = cli.json("dead", "redrive", one, two, "--rate", "50/s")
    assert (done["rate"], done["changed"]) == (50.0, 2)
    assert cli.json("dead", "redrive", three, "--dry-run")["changed"] == 1
    assert cli.json("dead", "archive", three, "--note", "why")["note"] == "why"
    assert cli.json("dead", "restore", three, "--no-wait")["status"] == "running"
    planned = cli.json("queue", "retry", one, "--dry-run")
    assert (planned["changed"], planned["skipped"]) == (0, {"wrong_status": 1})
    assert "--force is for items named by ID" in cli("dead", "redrive", one, "--rate", "5/s", "--force", exits=2).stderr
    assert "--force is for items named by ID" in cli("queue", "retry", "--all-dead", "--force", exits=2).stderr


# Editing


def values(cli: Cli, queue: str) -> list[Any]:
    return [item["payload"] for item in cli.json("queue", "list", queue, "--limit", "1000")["items"]]


def test_edit_mends_the_payload_on_the_way(cli: Cli) -> None:
    chosen = ("dead", "redrive", "--where", "error_class=validation", "--edit", '{"amount": 12.5}')
    preview = cli.json(*chosen, "--dry-run")
    assert (preview["matched"], json.loads(preview["samples"][0]["after"])["amount"]) == (12, 12.5)
    cli(*chosen, exits=10)
    done = cli.json(*chosen, "--yes", "12", "--edit-header", "mended=yes")
    assert (done["changed"], done["skipped"], done["untouched"]) == (12, {}, 0)
    assert {value["amount"] for value in values(cli, "orders")} == {12.5}
    assert cli.json("dead", "show", done["ids"][0])["headers"] == {"mended": "yes"}
    assert len(cli.json("dead", "list", "--archived")["items"]) == 12


def test_edit_of_single_items_asks_nothing(cli: Cli) -> None:
    one, two = (item["id"] for item in cli.json("dead", "list", "-q", "mails", "--limit", "2")["items"])
    assert cli.json("dead", "redrive", one[:8], two[:8], "--edit", '{"to": "x"}')["changed"] == 2
    assert [value["to"] for value in values(cli, "mails")].count("x") == 2
    cli("dead", "redrive", one[:8], "--edit", "no JSON", exits=2)
    cli("dead", "redrive", "--all", "--edit", '{"a": 1}', "--no-wait", exits=2)


def test_canaries_of_an_edit_stop_the_rest_where_they_do_not_complete(cli: Cli) -> None:
    chosen = ("dead", "redrive", "-q", "mails", "--edit", '{"to": "x"}', "--yes", "20", "--canary", "2")
    result = cli.json(*chosen, "--wait", "1ms", exits=11)
    assert (result["changed"], result["untouched"]) == (2, 18)
    assert "have not ended in the time given" in result["problem"]


@pytest.mark.parametrize(("dies", "code", "changed"), [(False, 0, 20), (True, 11, 2)])
def test_how_canaries_of_an_edit_end_decides(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, dies: bool, code: int, changed: int
) -> None:
    def work(core: Any, until: int) -> Iterator[Any]:
        yield from ()
        with cli.broker() as broker:
            for lease in broker.lease("mails", 10):
                broker.fail(lease, "again") if dies else broker.complete(lease)

    monkeypatch.setattr("redrive.broker.flows.edited_redrive.wait_until", work)
    chosen = ("dead", "redrive", "-q", "mails", "--edit", '{"to": "x"}', "--yes", "20", "--canary", "2")
    assert cli.json(*chosen, exits=code)["changed"] == changed


# Export and import


def test_export_is_imported_elsewhere_once(cli: Cli, tmp_path: Path) -> None:
    file = str(tmp_path / "mails.jsonl")
    cli("dead", "export", "-q", "mails", "--secrets", "--to", file)
    other = Cli(f"sqlite:///{tmp_path}/other.db")
    other("queue", "create", "copies")
    assert other.json("dead", "import", file, "--dry-run")["missing_queues"] == ["mails"]
    assert other.error("dead", "import", file, exits=4)["code"] == "queue_not_found"
    assert other.json("dead", "import", file, "-q", "copies")["imported"] == 20
    lines = cli("dead", "export", "-q", "mails", "--secrets").stdout
    assert other.json("dead", "import", "-q", "copies", input=lines)["ignored"] == 20


def test_export_to_where_nothing_can_be_written_is_told(cli: Cli, tmp_path: Path) -> None:
    told = cli("dead", "export", "--to", str(tmp_path / "nowhere" / "dead.jsonl"), exits=2).stderr
    assert "cannot be written: No such file or directory" in told


def test_export_can_be_read_by_its_owner_alone(cli: Cli, tmp_path: Path) -> None:
    file, other = tmp_path / "dead.jsonl", tmp_path / "pipe"
    cli("dead", "export", "--to", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = file.read_text()
    file.chmod(0o664)
    file.write_text(lines * 3)
    cli("dead", "export", "--to", str(file))
    assert (stat.S_IMODE(file.stat().st_mode), file.read_text()) == (0o600, lines)
    other.symlink_to("/dev/null")
    cli("dead", "export", "--to", str(other))
    assert stat.S_IMODE(other.stat().st_mode) == 0o666


def test_export_with_hidden_secrets_cannot_be_imported(cli: Cli) -> None:
    lines = cli("dead", "export", "-q", "orders-dead").stdout
    assert cli.json("dead", "import", "--dry-run", input=lines)["redacted"] == 90
    assert "secrets were hidden" in cli("dead", "import", input=lines, exits=3).stderr
    assert "no line of an export" in cli("dead", "import", "--dry-run", input="{}\n", exits=3).stderr


# Narrow terminals


TABLES = ("dead list", "dead groups", "queue list", "queue list mails --status archived", "operation list", "audit")


def test_tables_fit_a_narrow_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(words: str) -> list[str]:
        return [line for line in cli(*words.split()).stdout.splitlines() if "  " in line.strip()]

    cli("dead", "archive", "--queue", "mails", "--yes", "20", "--note", "nobody waits for these any more " * 3)
    whole = {words: rows(words) for words in TABLES}
    for width in (30, 40, 60, 71):
        monkeypatch.setenv("COLUMNS", str(width))
        for words in TABLES:
            lines = rows(words)
            assert len(lines) == len(whole[words]) > 1, words
            assert all(len(line) <= width for line in lines), words
            assert [line[:8] for line in lines] == [line[:8] for line in whole[words]], words


# Undo and audit


def test_undo_of_nothing_is_told(cli: Cli) -> None:
    assert "neither an operation nor an item" in cli("undo", "00000000", exits=4).stderr
    (item,) = cli.json("dead", "list", "-q", "mails", "--limit", "1")["items"]
    assert cli.error("undo", item["id"], exits=5)["code"] == "wrong_status"
    assert cli.json("undo", item["id"], "--dry-run")["changed"] == 0


def test_undo_of_an_operation_that_goes_on_says_how_to_end_it(cli: Cli) -> None:
    started = cli.json("dead", "redrive", "-q", "mails", "--yes", "any", "--no-wait")
    id = started["id"][:8]
    assert f"redrive operation cancel {id}" in cli("undo", id, "--yes", "any", exits=3).stderr
    cli("operation", "cancel", id)
    assert f"operation {id} is cancelled" in cli("operation", "cancel", id, exits=5).stderr
    assert cli("undo", id, exits=12).stdout == "Nothing is left to undo; nothing was done.\n"
    assert cli.json("undo", id, exits=12) == {"matched": 0, "operation": None}


def test_undo_of_a_purge_is_refused(cli: Cli) -> None:
    cli("dead", "archive", "-q", "mails", "--yes", "20")
    purged = cli.json("dead", "purge", "-q", "mails", "--yes", "20")
    assert "purge cannot be undone" in cli("undo", purged["id"], "--yes", "any", exits=3).stderr


def test_undo_of_items_takes_their_number(cli: Cli) -> None:
    (item,) = cli.json("dead", "list", "-q", "mails", "--limit", "1")["items"]
    cli("dead", "redrive", item["id"])
    assert "and --yes 2 was given" in cli("undo", item["id"], "--yes", "2", exits=10).stderr
    assert cli.json("undo", item["id"], "--yes", "1")[0]["status"] == "dead"


def test_ids_in_notes_are_as_short_as_elsewhere(cli: Cli) -> None:
    done = cli.json("dead", "archive", "-q", "mails", "--yes", "20")
    undone = cli.json("undo", done["id"], "--yes", "20")
    for printed in (
        cli("audit").stdout,
        cli("operation", "list").stdout,
        cli("operation", "show", undone["id"]).stdout,
    ):
        assert done["id"][:8] in printed
        assert done["id"] not in printed


def test_audit_tells_who_did_it(cli: Cli) -> None:
    assert cli("audit").stdout == "The audit is empty.\n"
    cli("dead", "redrive", "-q", "mails", "--yes", "20", "--note", "why not")
    finished, started = cli.json("audit")
    assert (finished["verb"], finished["count"], started["verb"]) == ("redrive", 20, "start redrive")
    assert "why not" in cli("audit").stdout
    assert "--before" in cli("audit", "--limit", "1").stderr


def test_letter_of_a_dead_queue_that_died_again_is_found(cli: Cli) -> None:
    with cli.broker() as broker:
        kill(broker, "mails", [{"to": "z"}], OSError("disk full"))
    assert cli.json("dead", "groups")["dead"] == 111
