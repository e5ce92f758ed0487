"""The tokenizer of text for search, the same on every store because every store indexes these words.

Text is normalized to Unicode NFKC and case-folded, so that full-width letters, ligatures and both encodings of `é` are
equal; words are the runs of letters and digits. Marks that NFKC cannot join to a letter are separators. A script
without spaces gives long words, which a prefix finds from their start.
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
MAX_REMEMBERED_CHARS = 256
"""The maximum length of an error text whose words are cached."""

_RUN = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ASCII_FOLD = bytes(ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 32 for code in range(256))
"""The translation of ASCII: letters in lower case, digits, and a space for anything else."""
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


class SearchQuery(NamedTuple):
    """A parsed query: all of `words`, and for each of `prefixes` a word that starts with it."""

    words: tuple[str, ...]
    prefixes: tuple[str, ...]

    def matches(self, words: Set[str]) -> bool:
        """Return whether an item with these words matches."""
        return all(word in words for word in self.words) and all(
            any(word.startswith(prefix) for word in words) for prefix in self.prefixes
        )


def tokenize(text: str) -> list[str]:
    """Return the words of a text in their order, from its first 4,096 characters; long words are cut."""
    text = text[:MAX_INDEXED_CHARS]
    # For ASCII, a translation is five times as fast as the regular expression.
    words = text.encode().translate(_ASCII_FOLD).decode().split() if text.isascii() else _RUN.findall(_fold(text))
    return [word[:MAX_WORD_CHARS] for word in words[:MAX_WORDS]]


def search_terms_of(error_type: str, text: str, payload: bytes = b"", content_type: str = "") -> frozenset[str]:
    """Return the words by which a dead letter is found: of its error, and of its payload if that is text or JSON.

    A type is found by its parts too: `requests.ConnectTimeout` by `connecttimeout`, `connect` and `timeout`.
    """
    of_error = _words_of_short_error if len(text) <= MAX_REMEMBERED_CHARS else _words_of_error
    return of_error(error_type, text).union(tokenize(_readable(payload, content_type)))


def _words_of_error(error_type: str, text: str) -> frozenset[str]:
    humps = _HUMP.findall(error_type[:MAX_INDEXED_CHARS])
    return frozenset([*tokenize(error_type), *(hump.lower() for hump in humps), *tokenize(text)])


_words_of_short_error = lru_cache(maxsize=1024)(_words_of_error)


def parse_query(query: str) -> SearchQuery:
    """Parse a query: all words must match; a word that ends in `*` is a prefix."""
    words: dict[str, None] = {}
    prefixes: dict[str, None] = {}
    for token in query[:MAX_QUERY_CHARS].split():
        parts = tokenize(token)
        if parts and token.endswith("*"):
            prefixes[parts.pop()] = None
        words.update(dict.fromkeys(parts))
    return SearchQuery(tuple(words), tuple(prefixes))


def _fold(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    # Case folding can leave the normal form; a second folding would change nothing more.
    return unicodedata.normalize("NFKC", folded)


def _readable(payload: bytes, content_type: str) -> str:
    is_json, is_text = _kind_of(content_type)
    if not is_text:
        return ""
    text = bytes(payload[:MAX_INDEXED_CHARS]).decode("utf-8", "replace")
    return _ESCAPE.sub(_unescape, text) if is_json and "\\" in text else text


@lru_cache(maxsize=256)
def _kind_of(content_type: str) -> tuple[bool, bool]:
    """Return whether a content type is JSON, and whether it has words."""
    media_type = content_type.partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or media_type.endswith("+json")
    return is_json, is_json or media_type.startswith("text/")


def _unescape(match: re.Match[str]) -> str:
    """Replace an escape: without this, `one\\ntwo` in JSON would have the word `ntwo`."""
    digits = match[1]
    return chr(int(digits, 16)) if digits else " "
