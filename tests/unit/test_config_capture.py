"""`[capture]` of redrive.toml: which queues it means, and what is reported of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.terminal.cli import Cli

from redrive.capture.capture_settings import NAMES, RANGES
from redrive.config.loader import parse
from redrive.errors import InvalidConfig

FILE = Path("/srv/shop/redrive.toml")
WHOLE = """\
[capture]
enabled = true
max_size = 100
default_retry_policy = "linear"
default_max_retries = 0
retry_processor_enabled = false
retry_interval_seconds = 10

[capture.workflows]
max_size = 100000

[queue.workflows]
lease_timeout = "5m"
"""


def problems(text: str) -> list[tuple[int, str, str]]:
    with pytest.raises(InvalidConfig) as refused:
        parse(text, FILE)
    return list(refused.value.problems)


def test_table_without_a_name_is_the_queue_captured() -> None:
    config = parse(WHOLE, FILE)
    assert config.captures == {
        "captured": {
            "enabled": True,
            "max_size": 100,
            "default_retry_policy": "linear",
            "default_max_retries": 0,
            "retry_processor_enabled": False,
            "retry_interval_seconds": 10,
        },
        "workflows": {"max_size": 100_000},
    }
    assert set(config.captures["captured"]) == set(NAMES)
    assert config.queues == {"workflows": {"lease_timeout": "5m"}, "captured": {}}


@pytest.mark.parametrize(
    ("text", "queues"),
    [("", []), ("[capture]\n", ["captured"]), ("[capture.a]\n[capture.b]\n", ["a", "b"])],
)
def test_each_table_is_one_queue(text: str, queues: list[str]) -> None:
    assert list(parse(text, FILE).captures) == queues


@pytest.mark.parametrize(
    ("text", "line", "key", "problem"),
    [
        ("[capture]\nmax_size = 99", 2, "capture.max_size", "is a whole number from 100 to 100,000, not 99"),
        ('[capture]\nmax_size = "200"', 2, "capture.max_size", 'is a whole number from 100 to 100,000, not "200"'),
        ("[capture]\n\ndefault_max_retries = 11", 3, "capture.default_max_retries", "from 0 to 10, not 11"),
        ("[capture]\nretry_interval_seconds = 9", 2, "capture.retry_interval_seconds", "from 10 to 3,600, not 9"),
        ("[capture]\nmax_size = true", 2, "capture.max_size", "is a whole number from 100 to 100,000, not true"),
        ('[capture]\nenabled = "yes"', 2, "capture.enabled", 'is true or false, not "yes"'),
        ("[capture]\nretry_processor_enabled = 1", 2, "capture.retry_processor_enabled", "is true or false, not 1"),
        ('[capture]\ndefault_retry_policy = "often"', 2, "capture.default_retry_policy",
         "must be one of never, linear, exponential, immediate, not 'often'"),
        ("[capture]\ndefault_retry_policy = 3", 2, "capture.default_retry_policy", "must be one of never, linear"),
        ("[capture]\nmaxsize = 200", 2, "capture.maxsize", "is not known here (did you mean max_size?)"),
        ("[capture.flows]\nmax_size = 1", 2, "capture.flows.max_size", "from 100 to 100,000, not 1"),
        ("[capture.flows]\nretries = 1", 2, "capture.flows.retries", "is not known here"),
        ("[capture.captured]\n", 1, "capture.captured", "is the queue of [capture] itself; move its keys to [capture]"),
        ("[capture.'a b']\n", 1, "capture.'a b'", "'a b'"),
        ("[capture.enabled]\n", 1, "capture.enabled", "is true or false, not a table"),
        ("capture = 3\n", 1, "capture", "is a table, as in [capture], not 3"),
        ("[[capture]]\n", 1, "capture", "is a table, as in [capture], not an array"),
        ('[capture.jobs]\n[queue.jobs]\ntype = "external"\nlist = "ls"', 3, "queue.jobs.type",
         "is not for a capture queue"),
    ],
)  # fmt: skip
def test_mistake_is_reported_with_its_line_key_and_range(text: str, line: int, key: str, problem: str) -> None:
    (found,) = problems(text)
    assert (found[0], found[1].replace('"', "'")) == (line, key)
    assert problem in found[2]


def test_all_mistakes_are_reported_together() -> None:
    text = (
        "[capture]\nmax_size = 1\nenabled = 2\n[capture.other]\ndefault_max_retries = -1\n[queue.jobs]\nmax_size = 'x'"
    )
    assert [(line, key) for line, key, _ in problems(text)] == [
        (2, "capture.max_size"),
        (3, "capture.enabled"),
        (5, "capture.other.default_max_retries"),
        (7, "queue.jobs.max_size"),
    ]


@pytest.mark.parametrize("name", RANGES)
def test_both_ends_of_a_range_are_in_it(name: str) -> None:
    smallest, largest = RANGES[name]
    for value in (smallest, largest):
        assert parse(f"[capture]\n{name} = {value}", FILE).captures["captured"] == {name: value}
    for value in (smallest - 1, largest + 1):
        assert f"from {smallest:,} to {largest:,}, not {value}" in problems(f"[capture]\n{name} = {value}")[0][2]


def test_commands_show_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "redrive.toml"
    file.write_text(WHOLE)
    cli = Cli(f"sqlite:///{tmp_path}/store.db")
    assert "is valid: 2 queues, 2 of them for capture, 0 workers" in cli("config", "check").stdout
    assert cli.json("config", "check") == {"file": str(file), "queues": 2, "captures": 2, "workers": 0}
    shown = cli("config", "show").stdout
    assert "CAPTURE    SETTING" in shown
    assert "captured   default_retry_policy     linear" in shown
    assert "(nothing set)" not in shown
    assert cli.json("config", "show")["captures"]["workflows"] == {"max_size": 100_000}
    assert cli.json("config", "apply") == {"created": ["captured", "workflows"], "updated": [], "released": []}
    assert cli.json("capture", "status")["max_size"] == 100
    file.write_text(WHOLE.replace("max_size = 100\n", "max_size = 300\n"))
    assert cli.json("config", "apply")["updated"] == ["captured"]
    assert cli.json("capture", "status")["max_size"] == 300
    file.write_text("[capture]\nmax_size = 1\n")
    refused = cli("config", "check", exits=3).stderr
    assert "redrive.toml:2: capture.max_size: is a whole number from 100 to 100,000, not 1" in refused
    file.write_text("")
    assert cli.json("config", "apply")["released"] == ["captured", "workflows"]
    assert cli.json("capture", "status")["max_size"] == 10_000
