"""Settings as options: every one, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.terminal.cli import Cli

from redrive.cli.setting_options import metavar_of
from redrive.model.queue_options import SETTINGS


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(f"sqlite:///{tmp_path}/store.db")


def settings(cli: Cli, *options: str) -> dict[str, Any]:
    told: dict[str, Any] = cli.json("queue", "create", "q", *options)["settings"]
    return told


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--lease-timeout", "2m", "2m"),
        ("--max-attempts", "7", 7),
        ("--max-losses", "0", 0),
        ("--final-errors", "ValueError, validation", ["ValueError", "validation"]),
        ("--on-dead", "drop", "drop"),
        ("--expire-timeout", "1d", "1d"),
        ("--idempotency-timeout", "1h", "1h"),
        ("--max-size", "10", 10),
        ("--max-payload-size", "10", 10),
        ("--keep-completed", "1h", "1h"),
        ("--keep-dead", "90d", "90d"),
        ("--archive-after", "30d", "30d"),
        ("--keep-archived", "unset", None),
        ("--search", "false", False),
        ("--feed", "dead,lost", ["lost", "dead"]),
        ("--feed", "none", []),
        ("--attempts", "3", {"attempts": 3, "delay": "immediate"}),
    ],
)
def test_setting_has_an_option(cli: Cli, option: str, value: str, told: Any) -> None:
    name = option.removeprefix("--").replace("-", "_")
    assert settings(cli, option, value).get(name if name != "attempts" else "retry") == told


def test_every_setting_that_is_no_table_has_an_option(cli: Cli) -> None:
    shown = cli("queue", "create", "--help").output
    for name in SETTINGS:
        assert (f"--{name.replace('_', '-')} " in shown) == (metavar_of(name) is not None)
    assert {name for name in SETTINGS if metavar_of(name) is None} == {"retry", "error_rules", "breakers", "redact"}


def test_set_takes_toml_json_and_plain_text(cli: Cli) -> None:
    told = settings(
        cli,
        *("--set", 'retry={attempts=4, delays=["1s", "1m"]}'),
        *("--set", '{"error_class": "network", "contains": ["reset"]}'.join(["error_rules=[", "]"])),
        *("--set", "lease_timeout=90s"),
        *("--set", "search=false"),
    )
    assert told["retry"] == {"attempts": 4, "delays": ["1s", "1m"]}
    assert told["error_rules"][0]["contains"] == ["reset"]
    assert told["lease_timeout"] == "1m30s"
    assert told["search"] is False


@pytest.mark.parametrize("options", [["--idempotency-timeout", "item"], ["--set", "idempotency_timeout=item"]])
def test_keys_may_end_with_their_items(cli: Cli, options: list[str]) -> None:
    assert settings(cli, *options)["idempotency_timeout"] == "item"
    assert "idempotency_timeout item" in cli("queue", "show", "q").stdout.replace("  ", " ")
    assert cli.json("queue", "update", "q", "--idempotency-timeout", "2h")["settings"]["idempotency_timeout"] == "2h"


def test_set_takes_a_key_of_a_table(cli: Cli) -> None:
    told = settings(cli, "--attempts", "3", "--backoff", "1s", "--set", "retry.jitter=true")
    assert told["retry"] == {"attempts": 3, "delay": "exponential", "base": "1s", "jitter": True}


def test_breaker_is_set_changed_and_taken_back_alone(cli: Cli) -> None:
    told = settings(cli, "--set", "breakers={queue={failures=9}}")
    assert told["breakers"] == {"queue": {**told["breakers"]["queue"], "failures": 9, "window": "1m"}}
    told = cli.json("queue", "update", "q", "--set", "breakers.network={share=0.5}")["settings"]
    assert (told["breakers"]["queue"]["failures"], told["breakers"]["network"]["share"]) == (9, 0.5)
    told = cli.json("queue", "update", "q", "--set", "breakers.queue=unset")["settings"]
    assert list(told["breakers"]) == ["network"]
    assert not cli.json("queue", "update", "q", "--set", "breakers=unset")["settings"]["breakers"]


@pytest.mark.parametrize("given", ["breakers={nettwork={}}", "breakers.queue={share=2}", "breakers.queue=7"])
def test_breaker_that_cannot_be_is_invalid(cli: Cli, given: str) -> None:
    assert cli.error("queue", "create", "q", "--set", given, exits=3)["code"] == "invalid_setting"


def test_update_keeps_what_it_does_not_name(cli: Cli) -> None:
    settings(cli, "--attempts", "3", "--backoff", "1s", "--cap", "1h", "--max-size", "9")
    told = cli.json("queue", "update", "q", "--attempts", "8")["settings"]
    assert told["retry"] == {"attempts": 8, "delay": "exponential", "base": "1s", "cap": "1h"}
    assert told["max_size"] == 9
    told = cli.json("queue", "update", "q", "--cooldown", "5s", "--max-size", "unset")["settings"]
    assert told["retry"] == {"attempts": 8, "cooldown": "5s", "cap": "1h"}
    assert "max_size" not in told
    told = cli.json("queue", "update", "q", "--set", "retry.base=7s")["settings"]
    assert told["retry"] == {"attempts": 8, "cooldown": "7s", "cap": "1h"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--set", "max_sice=3"], "did you mean max_size?"),
        (["--set", "max_size"], "is not NAME=VALUE"),
        (["--max-size", "many"], "is not a number"),
        (["--search", "yes"], "neither true nor false"),
    ],
)
def test_mistake_in_an_option_is_told(cli: Cli, options: list[str], problem: str) -> None:
    assert problem in cli("queue", "create", "q", *options, exits=2).stderr


def test_setting_out_of_range_is_invalid(cli: Cli) -> None:
    assert cli.error("queue", "create", "q", "--max-size", "0", exits=3)["code"] == "invalid_setting"
    assert cli.error("queue", "create", "q", "--lease-timeout", "soon", exits=3)["code"] == "invalid_duration"


def test_update_without_a_setting_is_a_mistake(cli: Cli) -> None:
    settings(cli)
    assert "no setting to change" in cli("queue", "update", "q", exits=2).stderr


def test_rules_for_redaction_are_set_one_by_one(cli: Cli) -> None:
    cli("queue", "create", "jobs", "--set", 'redact.keys=["iban"]')
    cli("queue", "update", "jobs", "--set", 'redact.allow=["pin"]')
    settings = cli.json("queue", "show", "jobs")["settings"]["redact"]
    assert settings == {"keys": ["iban"], "patterns": [], "allow": ["pin"]}
    refused = cli("queue", "update", "jobs", "--set", 'redact.patterns=["("]', exits=3)
    assert "redact.patterns[0] is no regular expression" in refused.stderr
