"""Every block of the README and of the first page after it runs, in order, and prints what stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.terminal.blocks import Console, split_commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/start.md"]
FIRST_SCREEN_LINES = 18
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_do_what_the_page_says(page: Path, tmp_path: Path) -> None:
    console = Console(tmp_path)
    for language, text in _BLOCK.findall(page.read_text()):
        match language:
            case "python" if module := re.match(r"# (\w+\.py)\n", text):
                (tmp_path / module[1]).write_text(text)
            case "console":
                for command, shown in split_commands(text):
                    console.check(command, shown)
            case _:
                raise AssertionError(f"a block that is not run: {text}")


def test_first_screen_has_the_words_that_people_search_for() -> None:
    screen = " ".join((ROOT / "README.md").read_text().splitlines()[:FIRST_SCREEN_LINES]).lower()
    for word in ("task queue", "dead-letter queue", "retry", "backoff", "sqlite", "postgresql", "redis"):
        assert word in screen


def test_readme_names_the_commands_of_a_contributor() -> None:
    text = (ROOT / "README.md").read_text()
    assert "`./dev test`" in text
    assert "`./dev serve`" in text
