"""The hand-written code lines of each package: `python -m tests.unit.code_lines` writes the table that limits them."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("code_lines.toml")
GROWTH_PERCENT = 3
"""How much a package may grow before its number in the table is raised."""
_HEAD = """\
# The hand-written code lines of each package. A package may have 3 % more (tests/unit/test_layout.py).
# A commit that needs more raises the number, and says why. To write all numbers: python -m tests.unit.code_lines
"""


def count_all() -> Counter[str]:
    """Count the code lines of each package, without generated files and the conformance suite."""
    counts: Counter[str] = Counter()
    for path in sorted((*ROOT.glob("src/redrive/**/*.py"), *ROOT.glob("tools/**/*.py"))):
        text = path.read_text()
        if not text.startswith("# Generated from ") and "testing/conformance" not in str(path):
            counts[package_of(path.relative_to(ROOT))] += count(text)
    return counts


def package_of(path: Path) -> str:
    """Return the package of a file: its folder, below `stores` the folder of a backend; `redrive` for the top."""
    *folders, _ = path.parts[2:] if path.parts[0] == "src" else path.parts
    return "/".join(folders[: 2 if folders[:1] == ["stores"] else 1]) or "redrive"


def count(text: str) -> int:
    """Count the lines of a module that are not blank, a comment, or part of a docstring."""
    documented = {*_documented(ast.parse(text).body)}
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return sum(bool(line) and not line.startswith("#") and number not in documented for number, line in lines)


def _documented(statements: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the numbers of the lines of docstrings: of statements that are a text."""
    for node in statements:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _documented(getattr(node, part, ()))


def limits() -> dict[str, int]:
    """Return the largest allowed number of each package in the table."""
    return {name: lines * (100 + GROWTH_PERCENT) // 100 for name, lines in tomllib.loads(TABLE.read_text()).items()}


if __name__ == "__main__":
    TABLE.write_text(_HEAD + "".join(f'"{name}" = {lines}\n' for name, lines in sorted(count_all().items())))
