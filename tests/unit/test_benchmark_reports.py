"""Reports of benchmarks: a bar that is missed has its reason, and a report can be written anew from its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.harness import NOT_EXPLAINED, Bar, Case, Results, Series, Suite, as_json, from_json
from benchmarks.load import Measurement
from benchmarks.scenarios import SUITES

RESULTS = sorted((Path(__file__).parents[2] / "benchmarks/results").glob("*.json"))


def _case(key: str) -> Case:
    return Case(key, "group", f"title of {key}", lambda directory: Measurement({}))


def _suite(at_least: float) -> tuple[Suite, Results]:
    bar = Bar("ours at least that of theirs", "ours", ("theirs",), at_least=at_least, why="it has to do more")
    kept = {"keeps": "payload", "listed": "`list`", "again": "–"}
    results = {
        "ours": Series([Measurement({"rate": 30.0}, {}, 7.0), Measurement({"rate": 10.0}, kept, 9.0)]),
        "theirs": Series([Measurement({"rate": 10.0}), Measurement({"rate": 10.0})]),
        "absent": Series(missing="not here"),
    }
    return Suite("example", [_case(key) for key in results], [bar]), results


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_bar_that_is_missed_has_a_reason(path: Path) -> None:
    missed = [bar for bar in json.loads(path.read_text())["bars"] if bar["verdict"] == "miss"]
    assert [bar["bar"] for bar in missed if bar["why"] == NOT_EXPLAINED] == []


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_committed_report_is_that_of_its_figures_by_the_bars_of_today(path: Path) -> None:
    document = json.loads(path.read_text())
    suite = SUITES[path.stem]
    text = report.markdown(document["machine"], document["rounds"], suite, from_json(suite, document))
    assert path.with_suffix(".md").read_text() == text, f"run: python -m benchmarks {path.stem} --judge"


def test_report_names_missed_bars_with_their_reasons() -> None:
    missed, passed = (report.markdown({}, 2, *_suite(limit)) for limit in (2.5, 1.5))
    assert "- ours at least that of theirs: it has to do more." in missed.splitlines()
    assert "Missed" not in passed
    assert "it has to do more" not in passed


def test_report_says_what_is_kept_of_a_failure() -> None:
    lines = report.markdown({}, 2, *_suite(1.0)).splitlines()
    assert "| title of ours | payload | `list` | – |" in lines
    assert not [line for line in lines if line.startswith("| title of theirs | payload")]


def test_figures_of_a_run_are_judged_anew() -> None:
    suite, results = _suite(2.5)
    document = json.loads(json.dumps(as_json({}, 2, suite, results)))
    easier, _ = _suite(1.5)
    assert [bar["verdict"] for bar in document["bars"]] == ["miss"]
    again = from_json(easier, document)
    assert report.markdown({}, 2, easier, again) == report.markdown({}, 2, easier, results)
    assert [bar["verdict"] for bar in as_json({}, 2, easier, again)["bars"]] == ["pass"]
