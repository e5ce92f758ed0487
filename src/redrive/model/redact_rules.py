"""Rules of a queue for redaction: keys and patterns of its secrets, and keys to show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from redrive.errors import InvalidSetting
from redrive.model import secret_pairs, secret_patterns
from redrive.model.caller_input import exact_str, listed, table
from redrive.model.secret_keys import MAX_KEY_CHARS, Secrecy, secrecy_of, words_of_key
from redrive.model.word_search import any_of

MAX_RULES = 100
"""The maximum number of keys, of patterns, and of exceptions of a queue."""
MAX_PATTERN_CHARS = 500
MAX_WAYS = 1_000
"""The maximum number of ways in which a pattern may match at one position, so that the time is linear in the text."""


class RedactRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rules of a queue for what to hide and what to show, in addition to detected secrets."""

    keys: tuple[str, ...] = ()
    """Names of keys whose values are hidden. `iban` also matches `customerIban` and `IBAN-2`."""
    patterns: tuple[str, ...] = ()
    """Regular expressions; their matches in a text are hidden."""
    allow: tuple[str, ...] = ()
    """Names of keys whose values are shown, regardless of case and separators."""

    def __or__(self, other: RedactRules) -> RedactRules:
        """Return the union of both."""
        if self == other or other == NO_RULES:
            return self
        names = self.__struct_fields__
        return RedactRules(**{name: tuple(dict.fromkeys(getattr(self, name) + getattr(other, name))) for name in names})


NO_RULES = RedactRules()


class Rules:
    """Compiled rules."""

    def __init__(self, rules: RedactRules) -> None:
        self._keys = {words_of_key(key) for key in rules.keys}
        self._allowed = {"".join(words_of_key(key)) for key in rules.allow}
        self.patterns = tuple(re.compile(pattern) for pattern in rules.patterns)
        longest = tuple(max(words, key=len) for words in self._keys)
        self.hints = any_of((hint, "") for hint in (*secret_pairs.HINTS, *secret_patterns.HINTS, *longest))
        """A pattern that matches in each lower-case text with the name of a secret or a word for one."""
        self.secrecy = lru_cache(maxsize=4096)(self._secrecy) if rules != NO_RULES else secrecy_of

    def is_allowed(self, key: str) -> bool:
        """Return whether the whole value of this key is shown unchanged."""
        return bool(self._allowed) and self.secrecy(key) is Secrecy.NONE and self._joined(key) in self._allowed

    def _secrecy(self, key: str) -> Secrecy:
        words = words_of_key(key[:MAX_KEY_CHARS])
        if any(words[at : at + len(wanted)] == wanted for wanted in self._keys for at in range(len(words))):
            return Secrecy.NAMED
        return Secrecy.NONE if self._joined(key) in self._allowed else secrecy_of(key)

    def _joined(self, key: str) -> str:
        return "".join(words_of_key(key[:MAX_KEY_CHARS]))


def redact_rules_from(value: Any, setting: str = "redact") -> RedactRules:
    """Parse and check rules as users write them."""
    if isinstance(value, RedactRules):
        value = msgspec.structs.asdict(value)
    known = RedactRules.__struct_fields__
    if not isinstance(value, Mapping):
        raise InvalidSetting(setting, f"must be a table with {', '.join(known)}, not {value!a:.40}")
    value = table(setting, value, MAX_RULES)
    for key in value:
        if key not in known:
            raise InvalidSetting(f"{setting}.{key}", f"is not known; there are {', '.join(known)}")
    rules = {name: _texts(f"{setting}.{name}", value.get(name, ())) for name in known}
    for name in ("keys", "allow"):
        for at, key in enumerate(rules[name]):
            if not words_of_key(key) or len(key) > MAX_KEY_CHARS:
                problem = f"must have letters or digits, and at most {MAX_KEY_CHARS} characters"
                raise InvalidSetting(f"{setting}.{name}[{at}]", problem)
    for at, pattern in enumerate(rules["patterns"]):
        _check_pattern(f"{setting}.patterns[{at}]", pattern)
    return RedactRules(**rules)


def _texts(setting: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidSetting(setting, f"must be a list of texts, not {value!a:.40}")
    texts = listed(setting, value, MAX_RULES)
    if len(texts) > MAX_RULES:
        raise InvalidSetting(setting, f"has more than {MAX_RULES} members")
    if not all(isinstance(text, str) and text for text in texts):
        raise InvalidSetting(setting, "must be a list of texts, none of them empty")
    return tuple(map(exact_str, texts))


def _check_pattern(setting: str, pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise InvalidSetting(setting, f"has {len(pattern):,} characters; there may be {MAX_PATTERN_CHARS}")
    # There is no public API to parse an expression. On a Python without this one, only patterns fail.
    from re import _parser  # type: ignore[attr-defined]

    try:
        compiled = re.compile(pattern)
        ways = _ways(_parser.parse(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidSetting(setting, f"is no regular expression: {error}") from None
    if compiled.match("") is not None:
        raise InvalidSetting(setting, "matches the empty text; let it match one character at least")
    if ways > MAX_WAYS:
        problem = f"may match in more than {MAX_WAYS:,} ways from one place, which is slow on a long text"
        raise InvalidSetting(setting, f"{problem}; bound what it repeats, as in {{1,64}} instead of + and *")


def _ways(parsed: Any) -> int:
    """Return the number of ways in which an expression can match at one position, up to `MAX_WAYS` + 1."""
    ways = 1
    for kind, argument in parsed:
        ways = min(MAX_WAYS + 1, ways * _ways_of(str(kind), argument))
    return ways


def _ways_of(kind: str, argument: Any) -> int:
    match kind:
        case "BRANCH":
            return sum(_ways(branch) for branch in argument[1])
        case "SUBPATTERN":
            return _ways(argument[-1])
        case "ASSERT" | "ASSERT_NOT":
            return _ways(argument[1])
        case "ATOMIC_GROUP":
            return _ways(argument)
        case "GROUPREF_EXISTS":
            return sum(_ways(branch) for branch in argument[1:] if branch is not None)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, repeated = argument
            once = _ways(repeated)
            if most > MAX_WAYS:
                return MAX_WAYS + 1
            ways = sum(min(MAX_WAYS + 1, once**count) for count in range(int(least), int(most) + 1))
            return min(MAX_WAYS + 1, int(ways))
        case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" | "AT" | "GROUPREF" | "FAILURE":
            return 1
    return MAX_WAYS + 1  # an unknown kind of a later Python
