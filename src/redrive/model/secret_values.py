"""Values after the name of a secret in a text: their extent, and the check whether they are secrets."""

from __future__ import annotations

import re
from typing import NamedTuple

from redrive.model.non_secret_words import is_code, is_place_or_time, is_placeholder, is_random, is_said, is_slug
from redrive.model.secret_keys import Secrecy, words_of_key
from redrive.model.secret_patterns import REDACTED

_MAX_RUN = 256
"""The maximum length of an unquoted value that is matched; the rest is hidden with it."""
_AFTER_CHARS = 40
_BEGINNING_CHARS, _END_CHARS = 1536, 512
"""The parts by which a longer value is judged. Values that are no secrets as a whole, such as paths, are shorter."""
_SCHEME = r"(?:bearer|basic|digest|token|apikey|negotiate|ntlm|key|aws4-hmac-sha256|sharedkey|bot)"
# The start of the repr of a wrapped value.
_WRAPPED = r"(?:(?:Secret|Password|Token|Sensitive|ApiKey|Credential)\w{0,32}|str|bytes|bytearray|memoryview)\("
# An escaped quote ends at the next quote with the same number of backslashes.
_QUOTED = (
    rf"(?:{_WRAPPED})?[bBeEfFnNrRuU]{{0,2}}(?:"
    r"""(?P<quote>["'`])(?P<plain>(?:(?!(?P=quote))(?:\\.|[^\r\n\\])){1,65536})"""
    r"""|(?P<escaped>\\{1,4}["'`]|&quot;|&#3[49];)(?P<inner>(?:(?!(?<!\\)(?P=escaped))[^\r\n]){1,65536}))"""
)
# Up to a space, or a sign after which something else starts.
_RUN = (
    r"""(?:[^\s"'`\\,;&)}\]|<>]|\\(?!\w|["'`])"""
    r"""|[,;&)}\]|<>](?![\s,;&)}\]|"'`<>]|\Z|/?[\w.-]{1,64}+["']?[ \t]?[=:>]))"""
)
_VALUE = re.compile(
    rf"{_QUOTED}|[|>][+-]?\r?\n[ \t]{{1,16}}(?P<block>[^\r\n]{{1,4096}}+)"
    rf"|(?!{_SCHEME}?[ \t]{{0,3}}\[redacted\])(?P<scheme>{_SCHEME}[ \t]{{1,3}})?(?P<run>{_RUN}{{1,{_MAX_RUN}}})",
    re.I,
)
_REST = re.compile(r"""[^\s"'`]*+""")
_LINE = re.compile(r"""[^\r\n"'`]*+""")
# A line of a settings file: a few words without another pair of name and value.
_FEW_WORDS = re.compile(r"""[^\s"'`=:,;]{1,256}+(?:[ \t][^\s"'`=:,;(]{1,64}+){1,5}(?=[ \t]*(?:\r?\n|\Z))""")
_PARAMETERS = re.compile(r"""(?:,?[ \t]{0,3}[\w-]{1,32}=(?:"[^"\r\n]{0,512}+"|[^\s,"']{1,512}+)){1,16}""")
_PHRASES = ("passphrase", "mnemonic", "seedphrase", "recoveryphrase")


class Span(NamedTuple):
    """A range of a text."""

    start: int
    end: int


class Values:
    """The values in one text. A run of characters is scanned to its end once for any number of values in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._rest = _Reach(_REST, text)
        self._line = _Reach(_LINE, text)

    def secret_at(self, at: int, secrecy: Secrecy, name: str, *, whole_line: bool = False) -> Span | None:
        """Return the value that starts here, if it is a secret. With `whole_line` it may be several words."""
        text = self.text
        found = None if secrecy is Secrecy.NONE or text.startswith(REDACTED, at) else _VALUE.match(text, at)
        if found is None:
            return None
        if found["run"] is None:
            span = _quoted(found)
            return span if is_secret_text(text[span.start : span.end], secrecy) else None
        run, after = found["run"], text[found.end() : found.end() + _AFTER_CHARS]
        if is_said(run, after) or is_placeholder(run) or _is_said_of_cookie(name, run):
            return None
        if not found["scheme"] and (is_code(run + after) or _is_same_name(name, run)):
            return None
        span = self._bare(found, name, whole_line)
        return span if found["scheme"] or is_secret_text(self._judged(span), secrecy, bare=True) else None

    def _bare(self, found: re.Match[str], name: str, whole_line: bool) -> Span:
        start, end = found.span("run")
        words = "".join(words_of_key(name))
        more = None
        if "cookie" in words or any(phrase in words for phrase in _PHRASES):
            return Span(start, max(end, self._line.end(start)))
        if "auth" in words:
            more = _PARAMETERS.match(self.text, start) or _PARAMETERS.match(self.text, end)
        elif whole_line:
            more = _FEW_WORDS.match(self.text, start)
        elif end - start >= _MAX_RUN:
            return Span(start, self._rest.end(end))
        return Span(start, end if more is None else max(end, more.end()))

    def _judged(self, span: Span) -> str:
        """Return the part of a value that is sufficient to judge it."""
        start, end = span
        if end - start <= _BEGINNING_CHARS + _END_CHARS:
            return self.text[start:end]
        return self.text[start : start + _BEGINNING_CHARS] + self.text[end - _END_CHARS : end]


class _Reach:
    """The extent of runs of characters of one kind in a text, with the last one cached."""

    def __init__(self, pattern: re.Pattern[str], text: str) -> None:
        self._pattern, self._text = pattern, text
        self._known = Span(1, 0)

    def end(self, at: int) -> int:
        """Return the first position at or after this one with another character."""
        if not self._known.start <= at <= self._known.end:
            found = self._pattern.match(self._text, at)
            self._known = Span(at, at if found is None else found.end())
        return self._known.end


def quoted_or_run(text: str, at: int) -> Span | None:
    """Return the value that starts here, of any kind."""
    found = _VALUE.match(text, at)
    return None if found is None else _quoted(found) if found["run"] is None else Span(*found.span("run"))


def random_run(text: str, at: int) -> Span | None:
    """Return the value that starts here, if it is long and random."""
    found = _VALUE.match(text, at)
    return Span(*found.span("run")) if found and found["run"] and is_random(found["run"], 16) else None


def _quoted(found: re.Match[str]) -> Span:
    return Span(*found.span(next(group for group in ("plain", "inner", "block") if found[group] is not None)))


def _is_said_of_cookie(name: str, run: str) -> bool:
    return name.lower().endswith(("cookie", "cookies")) and "=" not in run and not is_random(run, 16)


def _is_same_name(name: str, value: str) -> bool:
    """Return whether it repeats the name: `self.password = password`, `--api-key API_KEY`, `secret = other.secret`."""
    words, named = words_of_key(value[:64]), words_of_key(name)
    if not words or not named or not value.replace("_", "").replace(".", "").isalpha():
        return False
    return named[-1] in words if "." in value else named[-len(words) :] == words


def is_secret_text(value: str, secrecy: Secrecy, bare: bool = False) -> bool:
    """Return whether a text value is a secret. `bare` is one without quotes, which may be a word of a sentence."""
    if secrecy is Secrecy.NONE or not value.strip() or value.startswith(REDACTED):
        return False
    if is_said(value) or is_placeholder(value):
        return False
    if secrecy is not Secrecy.NAMED and (is_place_or_time(value) or is_count(value)):
        return False
    match secrecy:
        case Secrecy.SURE | Secrecy.NAMED:
            return True
        case Secrecy.LIKELY:
            return not bare or is_random(value, 6) or (len(value) >= 16 and value.isalnum())
        case Secrecy.MAYBE:
            return is_random(value, 16) and not is_slug(value)
    return is_code_number(value) or is_random(value, 6)


def is_count(value: str) -> bool:
    """Return whether it is a number that is too short for a secret."""
    return value.isdigit() and len(value) < 3


def is_code_number(value: str) -> bool:
    """Return whether it is a code for authentication: 3 to 10 digits, possibly in groups."""
    digits = value.rstrip(".!?").replace(" ", "").replace("-", "")
    return digits.isdigit() and 3 <= len(digits) <= 10
