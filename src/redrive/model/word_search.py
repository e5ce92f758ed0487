"""One regular expression that finds any of many words in a single scan of the text."""

from __future__ import annotations

import re
from collections.abc import Iterable

# The characters of tracebacks, payloads and messages, the most frequent first.
_FREQUENT = 'etrsinloap/"c,u.dhy:1_mg0fbk(39)42v-w78T=S{}B65A'


def any_of(words: Iterable[tuple[str, str]]) -> re.Pattern[str]:
    """Return a pattern that matches in each text with one of these words, next to a match of the expression beside it.

    A match starts at a letter inside the word: the search stops at each possible first letter, so these are chosen to
    be few and rare.
    """
    words = list(words)
    letters = _few_letters([word for word, _ in words])
    return re.compile(_branches([_from_letter(word, near, letters) for word, near in words]))


def _few_letters(words: list[str]) -> set[str]:
    """Return letters of which each word has one. Words with frequent letters only are first; others share theirs."""
    letters: set[str] = set()
    for word in sorted(words, key=lambda word: max(map(_rarity, word))):
        if letters.isdisjoint(word):
            letters.add(max(word, key=_rarity))
    return letters


def _from_letter(word: str, near: str, letters: set[str]) -> tuple[str, str]:
    at = max((at for at in range(len(word)) if word[at] in letters), key=lambda at: _rarity(word[at]))
    return word[at:], (f"(?<={re.escape(word)})" if at else "") + near


def _rarity(letter: str) -> int:
    return _FREQUENT.find(letter) if letter in _FREQUENT else len(_FREQUENT)


def _branches(words: list[tuple[str, str]]) -> str:
    """Return an expression in which words with the same prefix share it, so that each letter is compared once."""
    longer: dict[str, list[tuple[str, str]]] = {}
    for word, near in words:
        if word:
            longer.setdefault(word[0], []).append((word[1:], near))
    ends = dict.fromkeys(near for word, near in words if not word)
    if "" in ends:
        return ""
    branches = [*ends, *(re.escape(letter) + _branches(rest) for letter, rest in longer.items())]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
