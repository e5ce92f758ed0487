"""What is written about the command line is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.terminal import reference
from tests.terminal.blocks import Console, commands

FOLDER = Path(__file__).parents[2] / "docs/guides"
GUIDES = {"command-line": 20, "incident-runbook": 20, "scripting": 7}
"""page → how many commands it has at least"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", GUIDES)
def test_guide_is_what_a_reader_sees(page: str, tmp_path: Path) -> None:
    console = Console(tmp_path)
    count = 0
    for command, shown in commands(FOLDER / f"{page}.md"):
        console.check(command, shown)
        count += 1
    assert count >= GUIDES[page]


def test_reference_is_what_help_says() -> None:
    assert reference.PAGE.read_text() == reference.text(), "run: python -m tests.terminal.reference"


@pytest.mark.parametrize("page", GUIDES)
def test_guide_names_only_commands_that_exist(page: str) -> None:
    known = {words for words, _ in reference.helps()}
    for command, _ in commands(FOLDER / f"{page}.md"):
        for part in command.replace("|", ";").split(";"):
            words = part.split()
            if words[:1] == ["redrive"]:
                assert " ".join(words[:3]) in known or " ".join(words[:2]) in known, command


def test_check_of_a_console_fails_where_the_page_is_wrong(tmp_path: Path) -> None:
    console = Console(tmp_path)
    console.check("echo 7f3a90c1 is here", "00000001 is here\n")
    console.check("echo 00000001", "7f3a90c1\n")
    console.check("printf 'a\\nb\\nc\\n'", "a\n…\nc\n")
    console.check("redrive queue create jobs --url sqlite:///here.db", "queue jobs is there\n…\n")
    for command, shown in (
        ("echo a", "b\n"),
        ("printf 'a\\nb\\n'", "a\n"),
        ("false", ""),
        ("redrive queue pause jobs --url sqlite:///here.db", "nothing like it\n"),
        ("redrive queue pause nothing --url sqlite:///here.db", "…\n"),
    ):
        with pytest.raises(AssertionError):
            console.check(command, shown)
