"""The layout of the package: file names that say one thing, files of a readable size, equal topics in equal layers."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest
from tests.unit import code_lines

SOURCE = Path(__file__).parents[2] / "src/redrive"
GENERATED = {path for path in SOURCE.rglob("*.py") if path.read_text().startswith("# Generated from ")}
FILES = {
    str(path.relative_to(SOURCE)): path
    for path in sorted({*SOURCE.rglob("*.py")} - GENERATED)
    if path.name != "__init__.py"
}
"""What is written by hand."""
SHARED = {
    *("store", "engine", "schema", "session", "state", "queue_state", "indexes", "tables", "dispatch", "queues"),
    *("registrations", "puts", "leases", "settle", "verdicts", "manual_changes", "redrive", "operations", "operation"),
    *("moves", "maintenance", "queries", "feed", "find", "groups", "dead_letters", "low_water_marks", "deliveries"),
    *(
        "inspection",
        "examination",
        "export_import",
        "retry_after",
        "retry_policy",
        "config",
        "base",
        "handle",
        "async_broker",
        "replies",
    ),
    *("lease_by_id", "flows", "archive", "breaker", "breakers", "plan_subjects"),
}
"""Names of the same part of the same contract in several layers or backends."""
TRADE_NOUNS = {"tracing"}
MIN_LINES, MAX_LINES = 40, 400
SIZES = {
    "__main__.py": "the entry point of python -m redrive",
    "broker/api/base.py": "the half of two faces that runs in the thread of the caller",
    "cli/commands/shell_completion.py": "one command",
    "config/discovery.py": "one function, which three places call",
    "contract/base.py": "what all calls and queries share",
    "errors.py": "the tree of errors on one page",
    "server/route.py": "what the table of routes consists of",
    "stores/interruption.py": "one rule, for two backends",
    "worker/prefetch.py": "a term that users search for",
}


def test_no_file_is_named_by_a_gerund() -> None:
    assert [name for name in FILES if Path(name).stem.endswith("ing") and Path(name).stem not in TRADE_NOUNS] == []


def test_name_of_a_file_has_one_meaning() -> None:
    places = defaultdict(list)
    for name in FILES:
        places[Path(name).stem].append(Path(name).parent)
    assert {stem for stem, parents in places.items() if len(parents) > 1} <= SHARED


def test_class_is_defined_once_outside_of_the_stores() -> None:
    homes = defaultdict(set)
    for name, path in FILES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add("stores" if name.startswith("stores/") else name)
    assert {name: sorted(where) for name, where in homes.items() if len(where) > 1} == {}


@pytest.mark.parametrize("name", FILES)
def test_file_is_neither_a_fragment_nor_too_long_to_read(name: str) -> None:
    lines = len(FILES[name].read_text().splitlines())
    if name not in SIZES:
        assert MIN_LINES <= lines <= MAX_LINES


def test_package_has_no_more_code_lines_than_its_budget() -> None:
    counts, limits = code_lines.count_all(), code_lines.limits()
    assert counts.keys() - limits.keys() == set(), (
        "a new package: give it a number in tests/unit/code_lines.toml, the size that its purpose needs"
    )
    assert limits.keys() - counts.keys() == set(), "remove packages that are gone from tests/unit/code_lines.toml"
    too_large = {
        name: f"{lines} lines, at most {limits[name]}" for name, lines in counts.items() if lines > limits[name]
    }
    assert too_large == {}, (
        "make these packages smaller, or raise their numbers in tests/unit/code_lines.toml in the commit that needs "
        "it, and say there why"
    )


def test_code_lines_are_those_that_a_person_wrote_and_a_machine_runs() -> None:
    text = '"""Docstring,\n\nof three lines."""\n\n# a comment\nX = """\na text\n"""  # of three lines\n'
    assert code_lines.count(text) == 3
    assert code_lines.count('def f() -> int:\n    """Docstring."""\n    return 1  # so\n\n\nX = 1\n"""Of X."""\n') == 3
    names = ("src/redrive/errors.py", "src/redrive/stores/sqlite/a/b.py", "src/redrive/stores/x.py", "tools/x.py")
    packages = ["redrive", "stores/sqlite", "stores", "tools"]
    assert [code_lines.package_of(Path(name)) for name in names] == packages
    assert code_lines.package_of(Path("src/redrive/broker/flows/x.py")) == "broker"


def test_lists_of_exceptions_name_files_that_exist() -> None:
    assert {*SIZES} <= FILES.keys()


def test_blocking_and_async_methods_have_the_same_topics() -> None:
    topics = {face: {path.name for path in (SOURCE / "broker" / face).glob("*.py")} for face in ("api", "async_api")}
    assert topics["async_api"] == topics["api"]
    assert {path.name for path in GENERATED if path.parent.name == "api"} == topics["api"] - {"base.py"}
    flows = {path.name for path in (SOURCE / "broker/flows").glob("*.py")}
    assert topics["api"] - flows == {"base.py", "handle.py"}
