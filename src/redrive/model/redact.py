"""Redaction: what looks like a secret is hidden from whoever looks. What is stored, and what workers get, is untouched.

Two things give a secret away: the key it stands under (`password`, `X-Api-Key`, `clientSecret`), and the form it has
(`Bearer …`, a JSON web token, a private key, the password in a URL). Both are guesses; `connect(redact=…)` replaces
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, cast

REDACTED = "[redacted]"
"""What stands in place of a secret."""

Kind = Literal["payload", "headers", "text"]
Redact: TypeAlias = Callable[[Kind, Any], Any]
"""What `connect(redact=…)` takes: the kind and the value as it is → the value as it may be shown.

payload: what was put, decoded from JSON, or bytes. headers: a table of names and texts. text: an error text, a
traceback, a title or a note.
"""

# Under a key that has one of these in it, whatever stands there is a secret. Separators and case do not matter.
_STRONG = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "credential",
    "authorization",
    "apikey",
    "accesskey",
    "privatekey",
    "cookie",
)
# These are parts of a key by themselves, as in `session_id` and `refreshToken`; a number under them is no secret.
_WEAK = frozenset({"token", "tokens", "session", "sessionid", "auth", "jwt", "pwd", "bearer"})
_PAIRED = ("token", "session", "auth", "cookie")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATOR = re.compile(r"[^a-z0-9]+")

_NOT_YET = r"(?!\[redacted\])"
_RUN = r"[^\s,;&\"'\\\])}]"
_EQUALS = r"(?:\\?[\"'])?(?:=|\s{0,3}:\s{0,3})"
_QUOTED = r"""(?P<quote>\\?["'])(?:(?!(?P=quote))[^\\\r\n]|\\(?!["']).){1,4096}?(?=(?P=quote))"""
# `password=…`, `"api_key": "…"`, `Authorization: Basic …`, and in a program `password = "…"`.
_PAIR = (
    r"\w{0,20}(?:\\?[\"'])?(?:=|\s{0,3}:\s{0,3}|\s=\s(?=[\"'])))"
    rf"(?:{_NOT_YET}(?:(?:bearer|basic|digest|token)\s{{1,3}}{_NOT_YET})?{_RUN}{{1,4096}}"
    rf"|(?!\\?[\"']\[redacted\]){_QUOTED})"
)
_PAIR_SHOWN = r"\g<1>\g<quote>" + REDACTED
# The same under words that mean other things too: only what is long and has a digit.
_LONG_PAIR = (
    rf"(?:[_-]?id)?{_EQUALS}(?:\\?[\"'])?){_NOT_YET}(?={_RUN}{{0,64}}[0-9]){_RUN}{{8,4096}}",
    rf"\g<1>{REDACTED}",
)
_ALONE = r"(?:(?<![A-Za-z0-9])|(?<=[a-z])(?=[A-Z]))"
# The words of a sentence have no digits.
_AUTHENTICATION = r"\s{1,3}(?=[A-Za-z._~+/=-]*[0-9]|\S{24})[\w.~+/=-]{8,}"
_KEYS = "".join(rf"|(?<={before}{joint})" for before in ("api", "access", "private") for joint in ("", "_", "-"))[1:]


class _Rule(NamedTuple):
    """A form of secrets. `word` is looked for first, which is quick; the pattern is tried only where that stands."""

    word: str
    pattern: re.Pattern[str]
    shown: str


def _rule(word: str, pattern: str, shown: str = REDACTED, flags: re.RegexFlag = re.NOFLAG) -> _Rule:
    return _Rule(word, re.compile(pattern, flags), shown)


# In small letters, to be found in a text in small letters.
_RULES_IN_ANY_CASE = (
    _rule("bearer", rf"(\bbearer){_AUTHENTICATION}", rf"\g<1> {REDACTED}", re.I),
    _rule("basic", rf"(\bbasic){_AUTHENTICATION}", rf"\g<1> {REDACTED}", re.I),
    _rule("pass", rf"(pass(?:word|wd|phrase){_PAIR}", _PAIR_SHOWN, re.I),
    _rule("pwd", rf"(\bpwd{_PAIR}", _PAIR_SHOWN, re.I),
    _rule("secret", rf"(secret{_PAIR}", _PAIR_SHOWN, re.I),
    _rule("credential", rf"(credential{_PAIR}", _PAIR_SHOWN, re.I),
    _rule("authorization", rf"(authorization{_PAIR}", _PAIR_SHOWN, re.I),
    _rule("key", rf"((?:{_KEYS})key{_PAIR}", _PAIR_SHOWN, re.I),
    *(_rule(word, rf"({_ALONE}(?i:{word}){_LONG_PAIR[0]}", _LONG_PAIR[1]) for word in _PAIRED),
)
# As they are written.
_RULES = (
    # A private key, to its end or to that of the text.
    _rule(
        "-----BEGIN ",
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    ),
    # The password in a URL.
    _rule("://", rf"(://[^\s/:@]{{0,256}}:){_NOT_YET}[^\s/@]{{1,256}}@", rf"\g<1>{REDACTED}@"),
    # JSON web tokens, and keys that say by their form what they are.
    _rule("eyJ", r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),
    _rule("AKIA", r"\bAKIA[0-9A-Z]{16}\b"),
    _rule("ASIA", r"\bASIA[0-9A-Z]{16}\b"),
    # A token of a server; its id tells which one.
    _rule("redrive_", r"(\bredrive_[0-9a-f]{8}_)[0-9a-f]{40,}", rf"\g<1>{REDACTED}"),
    _rule("gh", r"\bgh[pousr]_[A-Za-z0-9]{20,}"),
    _rule("github_pat_", r"\bgithub_pat_\w{20,}"),
    _rule("glpat-", r"\bglpat-[\w-]{20,}"),
    _rule("AIza", r"\bAIza[\w-]{35}"),
    _rule("xox", r"\bxox[abeoprs]-[\w-]{10,}"),
    _rule("sk-", r"\bsk-[\w-]{20,}"),
    _rule("k_live_", r"(?<=\b[prs])k_live_\w{10,}"),
    _rule("k_test_", r"(?<=\b[prs])k_test_\w{10,}"),
)
# A payload that has none of these, in small letters, has no key and no form of a secret.
_HINTS = tuple(
    {rule.word.lower() for rule in (*_RULES_IN_ANY_CASE, *_RULES) if rule.word != "://"} | {"auth", "jwt", "cookie"}
)


def redact_secrets(kind: Kind, value: Any) -> Any:
    """The default of `connect(redact=…)`. A value that holds nothing like a secret comes back itself."""
    if kind == "headers":
        return _redact_table(value, 0)
    if isinstance(value, bytes):
        return _redact_bytes(value)
    return redact_text(value) if isinstance(value, str) else _redact_value(value, 0)


def redact_text(text: str) -> str:
    """A text without what has the form of a secret."""
    before = None
    while text != before:  # each round takes something away that is not put back, so there is a last one
        before = text
        for rule in _RULES:
            if rule.word in text:
                text = _apply(rule, text, text)
        lowered = _lowered(text)
        for rule in _RULES_IN_ANY_CASE:
            if rule.word in lowered:
                shown = _apply(rule, text, lowered)
                if shown is not text:
                    text, lowered = shown, _lowered(shown)
    return text


def _apply(rule: _Rule, text: str, searched: str) -> str:
    """The text without what the rule finds. `searched` is the text, or the text in small letters."""
    pieces: list[str] = []
    end, at = 0, searched.find(rule.word)
    while at >= 0:
        found = rule.pattern.match(text, at)
        if found is not None:
            pieces += (text[end:at], found.expand(rule.shown))
            end = found.end()
        at = searched.find(rule.word, max(end, at + 1))
    return "".join((*pieces, text[end:])) if pieces else text


def _lowered(text: str) -> str:
    """In small letters, each in its place: one capital letter of all becomes two characters."""
    return text.replace("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "I").lower()


def names_a_secret(name: str) -> bool:
    """Whether what stands under a name of a variable is hidden, whatever it is."""
    return len(name) > _MAX_KEY_CHARS or _secrecy(name) > 0


def may_hold_secrets(text: str) -> bool:
    """A quick look. False where neither a key nor a form in it could be that of a secret."""
    lowered = text.lower()
    return ("://" in lowered and "@" in lowered) or any(hint in lowered for hint in _HINTS)


def _redact_value(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return _redact_table(value, depth)
    if isinstance(value, list | tuple):
        if depth >= _MAX_DEPTH:
            return REDACTED
        members = [_redact_value(member, depth + 1) for member in value]
        return value if all(new is old for new, old in zip(members, value, strict=True)) else members
    return value


# Deeper than any payload that was put as a value; bytes that claim to be JSON may be anything.
_MAX_DEPTH = 200


def _redact_table(table: Mapping[str, Any], depth: int) -> Any:
    if depth >= _MAX_DEPTH:
        return REDACTED
    changed = {}
    for key, value in table.items():
        secrecy = _secrecy(key) if isinstance(key, str) and len(key) <= _MAX_KEY_CHARS else 0
        if secrecy and _is_hidden(value, secrecy):
            changed[key] = REDACTED
        else:
            shown = _redact_value(value, depth + 1)
            if shown is not value:
                changed[key] = shown
    return {**table, **changed} if changed else table


_MAX_KEY_CHARS = 256


def _is_hidden(value: Any, secrecy: int) -> bool:
    if value is None or isinstance(value, bool) or value in ("", REDACTED, [], {}):
        return False
    return secrecy == 2 or not isinstance(value, int | float)


@lru_cache(maxsize=4096)
def _secrecy(key: str) -> int:
    """0: no secret; 1: one, unless it is a number; 2: one, whatever it is."""
    parts = [part for part in _SEPARATOR.split(_HUMP.sub("_", key).lower()) if part]
    joined = "".join(parts)
    if any(word in joined for word in _STRONG):
        return 2
    return 1 if not _WEAK.isdisjoint(parts) or joined.endswith(("token", "sessionid")) else 0


def _redact_bytes(data: bytes) -> bytes:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data  # no text: nobody can read a secret in it
    shown = redact_text(text)
    return data if shown is text or shown == text else shown.encode()


def hidden(kind: Kind, value: Any) -> Any:
    """What is shown where redaction itself failed: nothing at all."""
    if kind == "headers":
        return dict.fromkeys(cast("Mapping[str, str]", value), REDACTED)
    return REDACTED
