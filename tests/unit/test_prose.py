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
    "looks?|looked": (43, "poll, read, check, query"),
    "nobody": (9, "no worker, no process, no caller"),
    "somebody|anybody|everybody": (4, "another process, a caller, an operator"),
    "as it stands|stands|stand|standing": (7, "state, status, current"),
    "begins?|began|begun": (38, "starts, started"),
    "at once": (10, "immediately, together, concurrently"),
    "goes? on": (1, "continues"),
    "whoever": (1, "the caller, the worker that"),
    "of (?:its|their) own": (9, "own, separate"),
    "as (?:it is|they are)": (17, "unchanged, current"),
    "told": (1, "notified, reported, recorded"),
    "tells?": (3, "reports, returns"),
    "so (?:many|much|long|often)": (7, "up to N; name the parameter"),
    "by hand": (19, "manually, by an operator"),
    "taken? back|takes back": (0, "undo, reclaim, roll back"),
    "by (?:itself|themselves)": (7, "automatically"),
    "on (?:its|their) way": (1, "moving, in transit"),
    "ran out|runs out": (1, "expired, expires"),
    "br(?:ing|ings|ought) back": (1, "redrive"),
    "tried again": (2, "retried"),
    "the dead(?! (?:letter|queue|item))": (3, "dead items, dead letters"),
    "is over": (2, "expired, has ended"),
    "meanwhile": (1, "concurrently"),
    "drawn|draws?": (2, "allocated"),
    "whatever": (4, "regardless of"),
    "gives? back|given back": (0, "released, returned"),
    "(?:became|becomes?) of": (2, "outcome of"),
    "anew": (1, "again, from scratch"),
    "for good": (1, "permanently"),
    "left out": (4, "skipped, omitted"),
    "carried out": (0, "executed"),
    "lets? in": (0, "authenticates, allows"),
    "there is none|where there is one": (14, "if none exists"),
    "fallen due|falls due": (1, "due"),
    "sees? to": (0, "handles"),
    "heard|hears|rings?|bell": (2, "receives, wakes"),
    "trouble|for ever": (15, "failure; without a limit"),
    "takes the place of|in place of": (4, "replaces"),
    "lies in|written down|handed in": (0, "is in; recorded; submitted"),
    "goes before": (7, "takes precedence over"),
    "mend(?:s|ed)?": (16, "fix"),
    "foresaw": (0, "unexpected"),
    "alike": (0, "uniform, similar"),
    "but for": (0, "except"),
    "dearer|dear": (0, "more expensive"),
    "by heart": (0, "cached"),
    "that nobody": (1, "that no one"),
    "he|his|him": (0, "it, the caller"),
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
