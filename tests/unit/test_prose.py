"""Phrases that hide the subject of a sentence, or that no search engine finds, become fewer: each has a limit.

Counted are docstrings, comments and string literals of the package, and the pages of the documentation.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
SLACK = 10
"""A limit is at most this far above the count: lower it with the text."""

LIMITS = {
    "looks?|looked": (276, "poll, read, check, query"),
    "nobody": (192, "no worker, no process, no caller"),
    "somebody|anybody|everybody": (134, "another process, a caller, an operator"),
    "as it stands|stands|stand|standing": (141, "state, status, current"),
    "begins?|began|begun": (188, "starts, started"),
    "at once": (135, "immediately, together, concurrently"),
    "goes? on": (45, "continues"),
    "whoever": (92, "the caller, the worker that"),
    "of (?:its|their) own": (96, "own, separate"),
    "as (?:it is|they are)": (94, "unchanged, current"),
    "told": (88, "notified, reported, recorded"),
    "tells?": (69, "reports, returns"),
    "so (?:many|much|long|often)": (95, "up to N; name the parameter"),
    "by hand": (82, "manually, by an operator"),
    "taken? back|takes back": (51, "undo, reclaim, roll back"),
    "by (?:itself|themselves)": (67, "automatically"),
    "on (?:its|their) way": (54, "moving, in transit"),
    "ran out|runs out": (36, "expired, expires"),
    "br(?:ing|ings|ought) back": (32, "redrive"),
    "tried again": (55, "retried"),
    "the dead": (49, "dead items, dead letters"),
    "is over": (36, "expired, has ended"),
    "meanwhile": (44, "concurrently"),
    "drawn|draws?": (28, "allocated"),
    "whatever": (88, "regardless of"),
    "gives? back|given back": (37, "released, returned"),
    "(?:became|becomes?) of": (41, "outcome of"),
    "anew": (41, "again, from scratch"),
    "for good": (43, "permanently"),
    "left out": (39, "skipped, omitted"),
    "carried out": (15, "executed"),
    "lets? in": (8, "authenticates, allows"),
    "there is none|where there is one": (25, "if none exists"),
    "fallen due|falls due": (14, "due"),
    "sees? to": (21, "handles"),
    "heard|hears|rings?|bell": (33, "receives, wakes"),
    "trouble|for ever": (52, "failure; without a limit"),
    "takes the place of|in place of": (19, "replaces"),
    "lies in|written down|handed in": (25, "is in; recorded; submitted"),
    "goes before": (12, "takes precedence over"),
    "mend(?:s|ed)?": (26, "fix"),
    "foresaw": (9, "unexpected"),
    "alike": (6, "uniform, similar"),
    "but for": (11, "except"),
    "dearer|dear": (3, "more expensive"),
    "by heart": (1, "cached"),
    "that nobody": (53, "that no one"),
    "he|his|him": (10, "it, the caller"),
}
"""Pattern: how often it may occur, and what to write instead. A limit only goes down."""


@cache
def prose() -> str:
    """All texts, in lower case and with single spaces."""
    texts = [path.read_text() for path in PAGES]
    for path in sorted((ROOT / "src/redrive").rglob("*.py")):
        source = path.read_text()
        # Not the tokens of strings: an f-string is one token before Python 3.12, with the names in it, and many since.
        nodes = ast.walk(ast.parse(source))
        texts += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        texts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    return re.sub(r"\s+", " ", "\n".join(texts)).lower()


@pytest.mark.parametrize("pattern", LIMITS)
def test_phrase_occurs_no_more_often_than_before(pattern: str) -> None:
    limit, instead = LIMITS[pattern]
    count = len(re.findall(rf"\b(?:{pattern})\b", prose()))
    assert count <= limit, f"{pattern!r} occurs {count} times, {count - limit} more than before; write: {instead}"
    assert limit - count <= SLACK, f"{pattern!r} occurs only {count} times: set its limit to that"
