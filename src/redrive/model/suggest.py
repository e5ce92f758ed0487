"""The word that a mistaken one was probably meant to be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

_NEAR = 0.7
"""How alike two words are, from 0 to 1: one letter wrong in four still is."""


def suggest(word: object, known: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """What to say behind a mistaken word, as in ` (did you mean attempts?)`; nothing where no known one is near.

    `elsewhere` are words that other programs have for the same, each with the one that is known here.
    """
    if not isinstance(word, str):
        return ""
    meant = elsewhere.get(word.lower()) or next(iter(get_close_matches(word, known, 1, _NEAR)), None)
    return f" (did you mean {meant}?)" if meant in known else ""
