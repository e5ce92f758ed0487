"""Redaction: probable secrets are hidden in output. Stored data, and data for workers, are unchanged.

A secret is detected by its key (`password`, `X-Api-Key`, `clientSecret`), or by its form (`Bearer …`, a JSON web
token, a private key, the password in a URL). Both are heuristics. The rules of a queue add to them;
`connect(redact=…)` adds to them for all queues, or replaces them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, TypeAlias, cast

from redrive.model import secret_patterns
from redrive.model.redact_rules import NO_RULES, RedactRules, Rules
from redrive.model.secret_keys import MAX_KEY_CHARS, Secrecy, describes, secrecy_of
from redrive.model.secret_pairs import hide_between_bytes, hide_pairs
from redrive.model.secret_patterns import (
    REDACTED,
    is_card,
    lower_in_place,
    without_cards,
    without_forms,
    without_spoken_forms,
)
from redrive.model.secret_values import is_code_number, is_count, is_secret_text
from redrive.model.word_search import any_of

Kind = Literal["payload", "headers", "text"]
Redact: TypeAlias = Callable[[Kind, Any], Any]
"""A function for `connect(redact=…)`: the kind and the original value → the value that may be shown.

payload: the payload, decoded from JSON, or bytes. headers: a table of names and texts. text: an error text, a
traceback, a title or a note.
"""
RedactOption: TypeAlias = Redact | Mapping[str, Any] | RedactRules | Literal[False] | None
"""The type of `connect(redact=…)`."""

_MAX_ROUNDS = 8
"""The maximum number of rounds; a text that reveals another secret after them was crafted, and is hidden as a whole."""
# Deeper than any payload that was put as a value; bytes that claim to be JSON may be anything.
_MAX_DEPTH = 200
_MARKS = any_of((*secret_patterns.MARKS, *secret_patterns.CARD_MARKS))
_NAMING = ("name", "key", "field", "header", "param", "parameter", "variable", "id", "label", "attribute", "property")
_HOLDING = ("value", "val", "content", "text", "data", "default", "input", "stringValue", "input_value")
_SETTING = ("set", "put", "config")


class Redactor:
    """A redactor of values by the built-in rules and by those of a queue."""

    def __init__(self, rules: RedactRules = NO_RULES) -> None:
        self._rules = Rules(rules)
        # Most texts have neither, and need no further checks.
        self._marks, self._hints = _MARKS, self._rules.hints

    def __call__(self, kind: Kind, value: Any) -> Any:
        """Return the redacted value, as a `Redact`; the same object if nothing in it is hidden."""
        return self._bytes(value) if isinstance(value, bytes) else self._value(value, 0)

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        for _ in range(_MAX_ROUNDS):
            before = text
            for pattern in self._rules.patterns:
                text = pattern.sub(REDACTED, text)
            is_marked = self._marks.search(text) is not None
            if is_marked:
                text = without_forms(text)
            if hint := self._hints.search(lower_in_place(text)):
                # Before the first hint nothing is hidden, so its position is still valid.
                text = hide_pairs(without_spoken_forms(text), self._rules.secrecy, self._hints, hint.start())
            if is_marked:
                text = without_cards(text)
            if text == before:
                return text
        return REDACTED

    def may_hold_secrets(self, text: str) -> bool:
        """Return False if the text has neither a key nor a form of a secret; a fast check."""
        return bool(self._rules.patterns or self._hints.search(lower_in_place(text)) or self._marks.search(text))

    def _value(self, value: Any, depth: int, secrecy: Secrecy = Secrecy.NONE) -> Any:
        """Return the redacted value of a key with that secrecy, or a part of such a value."""
        if _is_hidden(value, secrecy):
            return REDACTED
        match value:
            case str():
                return self.text(value)
            case int() if is_card(value):
                return REDACTED
            case Mapping() | list() | tuple() if depth >= _MAX_DEPTH:
                return REDACTED
            case Mapping():
                return self._table(value, depth, min(secrecy, Secrecy.MAYBE))
            case list() | tuple():
                return self._list(value, depth, secrecy)
        return value

    def _table(self, table: Mapping[Any, Any], depth: int, around: Secrecy) -> Any:
        changed = self._named(table)
        for key, value in table.items():
            if key in changed or (isinstance(key, str) and self._rules.is_allowed(key)):
                continue
            shown = self._value(value, depth + 1, max(self._secrecy(key), around))
            if shown is not value:
                changed[key] = shown
        return {**table, **changed} if changed else table

    def _named(self, table: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the hidden members of a table such as `{"name": "password", "value": …}`."""
        secrecy = max([self._secrecy(table[key]) for key in _NAMING if key in table], default=Secrecy.NONE)
        found = [key for key in _HOLDING if key in table] if secrecy else []
        return {key: REDACTED for key in found if _is_hidden(table[key], secrecy)}

    def _list(self, members: list[Any] | tuple[Any, ...], depth: int, secrecy: Secrecy) -> Any:
        shown = [self._value(member, depth + 1, secrecy) for member in members]
        for at, (before, value) in enumerate(pairwise(members), 1):
            is_couple = len(members) == 2 or (at >= 2 and str(members[at - 2]).lower() in _SETTING)
            if isinstance(before, str) and isinstance(value, str) and self._is_told_by(before, value, is_couple):
                shown[at] = REDACTED
        return members if all(new is old for new, old in zip(shown, members, strict=True)) else shown

    def _is_told_by(self, before: str, value: str, is_couple: bool) -> bool:
        """Return whether a member of a list is the secret that the previous one names: an option, or a pair."""
        is_option = before.startswith("-") and len(before) >= 5 and "=" not in before and not value.startswith("-")
        if is_option:
            return is_secret_text(value, self._secrecy(before))
        return is_couple and is_secret_text(value, min(self._secrecy(before), Secrecy.LIKELY), bare=True)

    def _secrecy(self, key: Any) -> Secrecy:
        return self._rules.secrecy(key) if isinstance(key, str) and len(key) <= MAX_KEY_CHARS else Secrecy.NONE

    def _bytes(self, data: bytes) -> bytes:
        encoding, errors = _encoding_of(data)
        text = data.decode(encoding, errors)
        shown = self.text(text)
        if errors != "strict" or "\0" in text:
            shown = hide_between_bytes(shown, self._rules.secrecy)
        return data if shown == text else shown.encode(encoding, errors)


def _is_hidden(value: Any, secrecy: Secrecy) -> bool:
    """Return whether the value of a key with that secrecy is hidden as a whole."""
    is_sure, is_named = secrecy >= Secrecy.SURE, secrecy is Secrecy.NAMED
    match value:
        case None | bool():
            return False
        case str():
            return is_secret_text(value, secrecy)
        case int():
            written = str(value)
            is_code = secrecy is Secrecy.CODE and is_code_number(written)
            return is_code or is_named or (is_sure and not is_count(written))
        case float():
            return is_sure
        case bytes():
            return secrecy >= Secrecy.LIKELY
        case Mapping():
            is_description = not is_named and _is_description(value)
            return is_sure and not is_description and any(_may_be_secret(member, secrecy) for member in value.values())
        case list() | tuple():
            return is_sure and any(_may_be_secret(member, secrecy) for member in value)
    return False


def _may_be_secret(value: Any, secrecy: Secrecy) -> bool:
    match value:
        case Mapping():
            return bool(value) and (secrecy is Secrecy.NAMED or not _is_description(value))
        case list() | tuple():
            return bool(value)
    return _is_hidden(value, secrecy)


def _is_description(table: Mapping[Any, Any]) -> bool:
    """Return whether a table describes a secret, as a schema does, or its location."""
    rest = [key for key, value in table.items() if not isinstance(value, bool | None)]
    return all(isinstance(key, str) and describes(key) for key in rest)


def _encoding_of(data: bytes) -> tuple[str, str]:
    """Return the encoding and the error handler to decode bytes. Bytes that are no text survive the round trip."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or (len(data) % 2 == 0 and b"\0" in data[:4]):
        for encoding in ("utf-16-le", "utf-16-be"):
            with contextlib.suppress(UnicodeDecodeError):
                beginning = data.decode(encoding)[:256]
                if 2 * sum(char.isascii() for char in beginning) > len(beginning):
                    return encoding, "strict"
    try:
        data.decode()
    except UnicodeDecodeError:
        return "utf-8", "surrogateescape"
    return "utf-8", "strict"


@lru_cache(maxsize=256)
def redactor_by(rules: RedactRules) -> Redactor:
    """Return the redactor for these rules, created once."""
    return Redactor(rules)


@lru_cache(maxsize=1024)
def redact_title(title: str, rules: RedactRules) -> str:
    """Return the title of a failure without secrets; cached, because many failures have the same title."""
    return redactor_by(rules).text(title)


def redact_secrets(kind: Kind, value: Any) -> Any:
    """Return the value without secrets; the default of `connect(redact=…)`. An unchanged value is the same object."""
    return redactor_by(NO_RULES)(kind, value)


def redact_text(text: str) -> str:
    """Return a text without probable secrets."""
    return redactor_by(NO_RULES).text(text)


def may_hold_secrets(text: str) -> bool:
    """Return False if the text has neither a key nor a form of a secret; a fast check."""
    return redactor_by(NO_RULES).may_hold_secrets(text)


def names_a_secret(name: str) -> bool:
    """Return whether any value of a variable with this name is hidden."""
    return len(name) > MAX_KEY_CHARS or secrecy_of(name) >= Secrecy.LIKELY


def mask_value(kind: Kind, value: Any) -> Any:
    """Return the value that is shown if redaction itself fails: everything is hidden except the names of headers."""
    if kind == "headers":
        return dict.fromkeys(cast("Mapping[str, str]", value), REDACTED)
    return REDACTED
