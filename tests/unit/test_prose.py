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
    "looks?|looked": (147, "poll, read, check, query"),
    "nobody": (78, "no worker, no process, no caller"),
    "somebody|anybody|everybody": (42, "another process, a caller, an operator"),
    "as it stands|stands|stand|standing": (55, "state, status, current"),
    "begins?|began|begun": (104, "starts, started"),
    "at once": (67, "immediately, together, concurrently"),
    "goes? on": (25, "continues"),
    "whoever": (35, "the caller, the worker that"),
    "of (?:its|their) own": (53, "own, separate"),
    "as (?:it is|they are)": (37, "unchanged, current"),
    "told": (34, "notified, reported, recorded"),
    "tells?": (33, "reports, returns"),
    "so (?:many|much|long|often)": (40, "up to N; name the parameter"),
    "by hand": (54, "manually, by an operator"),
    "taken? back|takes back": (24, "undo, reclaim, roll back"),
    "by (?:itself|themselves)": (33, "automatically"),
    "on (?:its|their) way": (8, "moving, in transit"),
    "ran out|runs out": (18, "expired, expires"),
    "br(?:ing|ings|ought) back": (17, "redrive"),
    "tried again": (35, "retried"),
    "the dead": (44, "dead items, dead letters"),
    "is over": (17, "expired, has ended"),
    "meanwhile": (19, "concurrently"),
    "drawn|draws?": (21, "allocated"),
    "whatever": (40, "regardless of"),
    "gives? back|given back": (18, "released, returned"),
    "(?:became|becomes?) of": (15, "outcome of"),
    "anew": (22, "again, from scratch"),
    "for good": (23, "permanently"),
    "left out": (29, "skipped, omitted"),
    "carried out": (5, "executed"),
    "lets? in": (2, "authenticates, allows"),
    "there is none|where there is one": (20, "if none exists"),
    "fallen due|falls due": (5, "due"),
    "sees? to": (8, "handles"),
    "heard|hears|rings?|bell": (7, "receives, wakes"),
    "trouble|for ever": (36, "failure; without a limit"),
    "takes the place of|in place of": (11, "replaces"),
    "lies in|written down|handed in": (8, "is in; recorded; submitted"),
    "goes before": (11, "takes precedence over"),
    "mend(?:s|ed)?": (21, "fix"),
    "foresaw": (5, "unexpected"),
    "alike": (1, "uniform, similar"),
    "but for": (5, "except"),
    "dearer|dear": (3, "more expensive"),
    "by heart": (0, "cached"),
    "that nobody": (17, "that no one"),
    "he|his|him": (3, "it, the caller"),
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
