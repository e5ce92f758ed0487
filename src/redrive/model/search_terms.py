"""Words: how text is split for search, the same on every store because every store indexes these words.

Text is brought to Unicode NFKC and case-folded, so that full-width letters, ligatures and both spellings of `é` are
one word; then runs of letters and digits are the words. Marks that NFKC cannot join to a letter separate, and a script
that writes without spaces gives long words, which a prefix finds from their beginning.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Set
from functools import lru_cache
from typing import NamedTuple

MAX_INDEXED_CHARS = 4_096
MAX_WORD_CHARS = 64
MAX_WORDS = 1_000
MAX_QUERY_CHARS = 512

_RUN = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


class SearchQuery(NamedTuple):
    """What to look for: every one of `words`, and for every one of `prefixes` some word that begins with it."""

    words: tuple[str, ...]
    prefixes: tuple[str, ...]

    def matches(self, words: Set[str]) -> bool:
        """Whether an item with these words is found."""
        return all(word in words for word in self.words) and all(
            any(word.startswith(prefix) for word in words) for prefix in self.prefixes
        )


def tokenize(text: str) -> list[str]:
    """The words of a text in their order, from its first 4,096 characters; long words are cut."""
    words = _RUN.findall(_fold(text[:MAX_INDEXED_CHARS]))
    return [word[:MAX_WORD_CHARS] for word in words[:MAX_WORDS]]


def search_terms_of(error_type: str, text: str, payload: bytes = b"", content_type: str = "") -> set[str]:
    """The words under which a dead letter is found: of its error, and of its payload if that is text or JSON.

    A type is found by its parts too: `requests.ConnectTimeout` by `connecttimeout`, `connect` and `timeout`.
    """
    words = set(_words_of_type(error_type))
    words.update(tokenize(text))
    words.update(tokenize(_readable(payload, content_type)))
    return words


@lru_cache(maxsize=1024)
def _words_of_type(error_type: str) -> frozenset[str]:
    humps = _HUMP.findall(error_type[:MAX_INDEXED_CHARS])
    return frozenset([*tokenize(error_type), *(hump.lower() for hump in humps)])


def parse_query(query: str) -> SearchQuery:
    """What a person asks for: words that must all be there; one that ends in `*` is a prefix."""
    words: dict[str, None] = {}
    prefixes: dict[str, None] = {}
    for token in query[:MAX_QUERY_CHARS].split():
        parts = tokenize(token)
        if parts and token.endswith("*"):
            prefixes[parts.pop()] = None
        words.update(dict.fromkeys(parts))
    return SearchQuery(tuple(words), tuple(prefixes))


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).casefold()
    # Folding can take a text out of the normal form, and folding again finds nothing more to do.
    return unicodedata.normalize("NFKC", folded)


def _readable(payload: bytes, content_type: str) -> str:
    media_type = content_type.partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if not is_json and not media_type.startswith("text/"):
        return ""
    text = bytes(payload[:MAX_INDEXED_CHARS]).decode("utf-8", "replace")
    return _ESCAPE.sub(_unescape, text) if is_json and "\\" in text else text


def _unescape(match: re.Match[str]) -> str:
    """Without this, `one\\ntwo` in JSON would have the word `ntwo`."""
    digits = match[1]
    return chr(int(digits, 16)) if digits else " "
