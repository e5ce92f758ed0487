"""The pictures of the documentation show the real thing: `./dev pictures` draws them, and they are as it would."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

import pytest
from docs.images import dead_letters, failing, item_lifecycle, throughput
from tests.terminal import reference

from redrive.model.item import Status
from redrive.model.state_machine import TRANSITIONS

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs/images"
PICTURES = sorted(IMAGES.glob("*.svg"))
README = (ROOT / "README.md").read_text()
DRAW_AGAIN = "run: ./dev pictures"


def test_readme_shows_each_picture_and_describes_it() -> None:
    names = ["dead-letters.svg", "failing.svg", "item-lifecycle.svg", "throughput.svg"]
    assert [path.name for path in PICTURES] == names
    shown = {link: words for words, link in re.findall(r"!\[(.*?)\]\((.*?)\)", README)}
    assert shown.keys() == {f"docs/images/{path.name}" for path in PICTURES}
    assert all(len(words) > 20 for words in shown.values())


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_picture_is_well_formed_and_loads_nothing(picture: Path) -> None:
    root = ElementTree.fromstring(picture.read_text())
    assert root.get("aria-label")
    addresses = set(re.findall(r"https?://[^\"' ]+", picture.read_text()))
    assert addresses == {"http://www.w3.org/2000/svg"}


def test_terminal_shows_what_the_commands_print(tmp_path: Path) -> None:
    printed = dead_letters.plain_lines(dead_letters.svg(dead_letters.record(tmp_path)))
    assert dead_letters.plain_lines((IMAGES / "dead-letters.svg").read_text()) == printed, DRAW_AGAIN


def test_terminal_shows_commands_that_exist() -> None:
    helps = dict(reference.helps())
    lines = dead_letters.plain_lines((IMAGES / "dead-letters.svg").read_text())
    typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    assert len(typed) == len(dead_letters.COMMANDS)
    for command in typed:
        name = re.split(r" (?=--|[0-9a-f]{8}\b)", command)[0]
        assert name in helps, command
        assert all(option in helps[name] for option in re.findall(r"--[\w-]+", command)), command


def test_diagram_is_the_state_machine() -> None:
    assert item_lifecycle.NODES.keys() == set(Status)
    assert not item_lifecycle.wrong_arrows()
    drawn = {verb for arrow in item_lifecycle.ARROWS for verb in arrow.verbs}
    assert {verb.value for verb in TRANSITIONS.keys() - drawn} == {"done", "drop", "expire", "reschedule", "undo"}
    assert (IMAGES / "item-lifecycle.svg").read_text() == item_lifecycle.svg(), DRAW_AGAIN


def test_charts_show_the_results_that_are_committed() -> None:
    assert (IMAGES / "throughput.svg").read_text() == throughput.svg(), DRAW_AGAIN
    assert (IMAGES / "failing.svg").read_text() == failing.svg(), DRAW_AGAIN


def test_chart_of_failures_shows_each_peer_that_was_measured() -> None:
    drawn = {bar.case for store in failing.PEERS for bar in failing.bars(store) if not bar.is_ours}
    measured = {name for name, case in failing.results(failing.SUITE)["cases"].items() if "keeps" in case["facts"]}
    assert drawn == {name for name in measured if name.split(".")[1] not in ("die", "redrive")}


@pytest.mark.parametrize("suite", throughput.SUITES)
def test_chart_shows_each_peer_at_its_best(suite: str) -> None:
    cases = throughput.results(suite)["cases"]
    bars = next(bars for name, _, bars in throughput.PANELS if name == suite)
    for bar in bars:
        peer, kind, *_ = bar.case.split(".")
        if bar.is_ours or kind == "one":
            continue
        same = [name for name in cases if name.startswith(f"{peer}.{kind}") and name.endswith(_mode(bar.case))]
        assert max(same, key=lambda name: throughput.rate(suite, name)) == bar.case


def test_readme_says_what_each_library_keeps_of_a_failure() -> None:
    cases = failing.results(failing.SUITE)["cases"].items()
    facts = {name.split(".")[1]: case["facts"] for name, case in cases if name.endswith(".fail")}
    parts = facts["redrive"]["keeps"].split(", ")
    assert parts == ["payload", "type", "message", "traceback", "time", "attempts"]
    lacks = {name: " ".join(part for part in parts if part not in found["keeps"]) for name, found in facts.items()}
    assert lacks == {
        **dict.fromkeys(("redrive", "pgqueuer", "saq", "celery"), ""),
        "rq": "attempts",
        "procrastinate": "type message traceback",
        "dramatiq": "type message traceback attempts",
        "huey": "payload time attempts",
    }
    assert {name for name, found in facts.items() if found["again"] == "–"} == {"celery", "dramatiq", "huey"}
    assert (
        "Redrive, pgqueuer, SAQ and Celery keep payload, error, traceback, time and attempts, RQ no attempts" in README
    )
    assert (
        "procrastinate no error, Dramatiq neither, huey no payload, time and attempts. Celery, Dramatiq and" in README
    )


def _mode(case: str) -> str:
    return ".always" if case.endswith(".always") else ""


def test_readme_says_which_targets_are_missed() -> None:
    verdicts = throughput.verdicts()
    assert f"{verdicts.count('miss')} of the {len(verdicts)} targets" in README
    bars = [bar for suite in throughput.SUITES for bar in throughput.results(suite)["bars"]]
    (beside_peers,) = [bar for bar in bars if bar["verdict"] == "miss" and "peer" in bar["bar"]]
    assert beside_peers["against"] == "rq.put.batch1000.always"
    assert f"(it is {median(beside_peers['ratio']):.1f} ×)" in README
