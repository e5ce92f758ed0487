"""Secrets in texts that stand beside their name: `password=…`, `"api_key": "…"`, `--token …`, `<pin>…</pin>`.

A place is found first, and its name judged as a key of a table is; only then is the value looked at. Every expression
is bounded and tried once for each word of the text, so that time grows with the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from redrive.model.secret_forms import REDACTED
from redrive.model.secret_keys import Secrecy
from redrive.model.secret_words import is_code, is_placeholder, is_random, is_said

Judge = Callable[[str], Secrecy]
_NAME = r"[\w.$-]{1,256}+"
_QUOTE = r"""(?:\\{0,4}["'`]|&quot;|&#3[49];)"""
# `name=`, `"name": `, `name := `, `['name'] = `, `name => `, and in a sentence `name is `.
_PAIR = re.compile(
    rf"(?<![\w.$-])(?P<name>{_NAME})(?:{_QUOTE})?\]?[ \t]{{0,8}}+(?:(?P<sign>=>|:=|===?|=(?!=)|:(?!//)|%3[Dd])[ \t]{{0,8}}+|(?P<said>(?:is|was)(?:[ \t]|:[ \t]?)))"
)
# `--name value`, `-name value`, and `'--name', 'value'` of a list.
_OPTION = re.compile(
    rf"(?<![\w-])(?P<name>--?[A-Za-z][\w-]{{1,63}}+)(?:[ \t]{{1,3}}+(?!-)|{_QUOTE},[ \t]{{0,2}}(?=b?{_QUOTE}))"
)
# `<name>value</name>`
_ELEMENT = re.compile(r"<(?P<name>[A-Za-z][\w.:-]{0,63}+)(?:[ \t][^<>]{0,128}+)?>(?P<value>[^<>\r\n]{1,4096}+)</")
# `"name": "password", "value": "…"`, `key="password" value="…"`, `('password', '…')`, and the value first.
_NAMING = rf"(?:name|key|field|header|param|parameter|variable|var|id|label|attribute|property|option)(?:{_QUOTE})?[ \t]{{0,3}}[:=][ \t]{{0,3}}b?(?:{_QUOTE})?"
_HOLDING = rf"(?:value|val|content|contents|text|data|default|stringvalue|input_value)(?:{_QUOTE})?[ \t]{{0,3}}[:=][ \t]{{0,3}}"
_NAMED = re.compile(
    rf"(?<![A-Za-z]){_NAMING}(?P<name>{_NAME})(?:{_QUOTE}|\r?\n)[^<>{{}}]{{0,64}}?(?<![A-Za-z]){_HOLDING}", re.I
)
_NAMED_AFTER = re.compile(
    rf"""(?<![A-Za-z]){_HOLDING}(?P<quote>["'])(?P<value>[^"'<>{{}}\r\n]{{1,256}}+)["'],?[ \t\r\n]{{1,3}}["']?{_NAMING}(?P<name>{_NAME})["']""",
    re.I,
)
# What pydantic says of a field, whose name is on the line before.
_REFUSED = re.compile(r"^(?P<name>[\w.]{1,256}+)\r?\n[ ]{1,8}[^\r\n]{0,512}?input_value=", re.M)
# A field of a form: name="password", an empty line, the value.
_FIELD = re.compile(
    rf"name=\"(?P<name>{_NAME})\"[^\r\n]{{0,128}}\r?\n(?:[\w-]{{1,64}}:[^\r\n]{{0,256}}\r?\n){{0,4}}\r?\n"
)
_COUPLE = re.compile(
    rf"""(?:[(\[]|\bheader\()[ \t]{{0,2}}b?["'](?P<name>{_NAME})["'][ \t]{{0,2}},[ \t]{{0,2}}(?=b?["'])"""
)
_SCHEME = r"(?:bearer|basic|digest|token|apikey|negotiate|ntlm|key|aws4-hmac-sha256|sharedkey|bot)"
_END = r"""[,;&)}\]|<>]"""
# Up to a space, or a sign after which something else begins.
_RUN = rf"""(?:[^\s"'`\\,;&)}}\]|<>]|{_END}(?![\s,;&)}}\]|"'`<>]|\Z|/?[\w.-]{{1,64}}+["']?[ \t]?[=:>]))"""
# The repr of a value that hides itself, or does not.
_WRAPPED = r"(?:(?:Secret|Password|Token|Sensitive|ApiKey|Credential)\w{0,32}|str|bytes|bytearray|memoryview)\("
_VALUE = re.compile(
    rf"""(?:{_WRAPPED})?[bBrRuUfF]{{0,2}}(?P<quote>{_QUOTE})(?P<quoted>(?:(?!(?P=quote))(?:\\.|[^\r\n\\])){{1,65536}}+)"""
    rf"|[|>][+-]?\r?\n[ \t]{{1,16}}(?P<block>[^\r\n]{{1,4096}}+)"
    rf"|(?!{_SCHEME}?[ \t]{{0,3}}\[redacted\])(?P<scheme>{_SCHEME}[ \t]{{1,3}})?(?P<run>(?:{_RUN}|\\(?!\w|[\"'`])){{1,1024}}+)",
    re.I,
)
_MAX_RUN = 1024
_REST = re.compile(r"""[^\s"'`]*+""")
_LINE = re.compile(r"""[^\r\n"'`]{1,8192}+""")
_PARAMETERS = re.compile(r"""(?:,?[ \t]{0,3}[\w-]{1,32}=(?:"[^"\r\n]{0,512}+"|[^\s,"']{1,512}+)){1,16}""")
_PHRASES = ("passphrase", "mnemonic", "seedphrase", "recoveryphrase")
# `api key: …` in a sentence: the word before says which key, which code.
_WORD_BEFORE = re.compile(r"([\w-]{2,32})[ \t]\Z")


class _Found(NamedTuple):
    start: int
    end: int


def hide_pairs(text: str, judge: Judge) -> str:
    """The text without values that stand beside the name of a secret."""
    for pattern, find in _PASSES:
        text = _replaced(text, pattern, find, judge)
    return text


def _replaced(
    text: str, pattern: re.Pattern[str], find: Callable[[str, re.Match[str], Judge], _Found | None], judge: Judge
) -> str:
    pieces: list[str] = []
    end = at = 0
    while (place := pattern.search(text, at)) is not None:
        at = max(place.end(), at + 1)
        found = find(text, place, judge)
        if found is not None:
            pieces += (text[end : found.start], REDACTED)
            end = found.end
            at = max(at, end)
    return "".join((*pieces, text[end:])) if pieces else text


def _after_pair(text: str, place: re.Match[str], judge: Judge) -> _Found | None:
    name = place["name"]
    secrecy = judge(name)
    if secrecy is Secrecy.NONE and (before := _WORD_BEFORE.search(text[max(0, place.start() - 33) : place.start()])):
        if name.lower() in ("key", "code", "phrase", "number", "answer", "pin", "string"):
            secrecy = judge(f"{before[1]}_{name}")
    if secrecy is Secrecy.NONE:
        return _secret_of_query(text, place)
    if name.lower() == "pass" and place["sign"] == "=" and not text[place.end() : place.end() + 1].isdigit():
        secrecy = Secrecy.SURE
    if place["said"] is not None:
        return _value_at(text, place.end(), min(secrecy, Secrecy.LIKELY), name)
    return _value_at(text, place.end(), secrecy, name)


def _secret_of_query(text: str, place: re.Match[str]) -> _Found | None:
    """`?key=…` and `&code=…` of a URL, where they are long and random."""
    if place["name"].lower() not in ("key", "code", "k", "h", "hash") or text[
        place.start() - 1 : place.start()
    ] not in ("?", "&"):
        return None
    found = _VALUE.match(text, place.end())
    if found is None or found["run"] is None or not is_random(found["run"], 16):
        return None
    return _Found(found.start("run"), found.end("run"))


def _after_option(text: str, place: re.Match[str], judge: Judge) -> _Found | None:
    name = place["name"]
    if not name.startswith("--") and len(name) < 5:
        return None
    return _value_at(text, place.end(), judge(name), name)


def _after_name(text: str, place: re.Match[str], judge: Judge) -> _Found | None:
    return _value_at(text, place.end(), judge(place["name"]), place["name"])


def _in_couple(text: str, place: re.Match[str], judge: Judge) -> _Found | None:
    """A list may also be one of names, so that the second must look like a secret."""
    return _value_at(text, place.end(), min(judge(place["name"]), Secrecy.LIKELY), "", short=True)


def _inside(text: str, place: re.Match[str], judge: Judge) -> _Found | None:
    secrecy, value = judge(place["name"]), place["value"]
    return _Found(place.start("value"), place.end("value")) if is_secret_text(value, secrecy) else None


def _value_at(text: str, at: int, secrecy: Secrecy, name: str, short: bool = False) -> _Found | None:
    """The value that begins here, if it is a secret."""
    if secrecy is Secrecy.NONE or text.startswith(REDACTED, at):
        return None
    found = _VALUE.match(text, at)
    if found is None:
        return None
    lowered = name.lower()
    if found["block"] is not None:
        start, end = found.span("block")
    elif found["quoted"] is not None:
        start, end = found.span("quoted")
    elif any(phrase in lowered.replace("_", "").replace("-", "") for phrase in _PHRASES):
        start, end = _line_from(text, at)
    elif "cookie" in lowered:
        start, end = _line_from(text, at)
        if "=" not in text[start:end]:
            return None
    else:
        start, end = found.span("run")
        if "auth" in lowered and (more := _PARAMETERS.match(text, start) or _PARAMETERS.match(text, end)):
            end = more.end()
    value, after = text[start:end], text[end : end + 40]
    if found["quoted"] is not None:
        is_secret = is_secret_text(value, secrecy, bare=short)
    elif found["scheme"]:
        is_secret = not is_said(value, after)
    else:
        is_secret = (
            not is_code(value + after) and not _is_name(name, value) and is_secret_text(value, secrecy, True, after)
        )
    if is_secret and found["run"] is not None and end - start >= _MAX_RUN:
        end = _REST.match(text, end).end()  # type: ignore[union-attr]
    return _Found(start, end) if is_secret else None


def _is_name(name: str, value: str) -> bool:
    """Whether a program gives a variable what has the same name: `self.password = password`."""
    return f".{value}" in (f".{name}", name[-len(value) - 1 :].replace("_", "."))


def _line_from(text: str, at: int) -> tuple[int, int]:
    found = _LINE.match(text, at)
    return (at, found.end()) if found else (at, at)


def is_secret_text(value: str, secrecy: Secrecy, bare: bool = False, after: str | None = None) -> bool:
    """Whether a text under a key is a secret. `bare` is one without quotes, which may be a word of a sentence."""
    if not value.strip() or value.startswith(REDACTED) or is_said(value, after) or is_placeholder(value):
        return False
    match secrecy:
        case Secrecy.SURE:
            return True
        case Secrecy.LIKELY:
            return not bare or is_random(value, 6) or (len(value) >= 16 and value.isalnum())
        case Secrecy.MAYBE:
            return is_random(value, 16)
        case Secrecy.CODE:
            return is_code_number(value) or is_random(value, 6)
    return False


def is_code_number(value: str) -> bool:
    """Whether it is what people type in to prove who they are: 3 to 10 digits, in groups or not."""
    digits = value.replace(" ", "").replace("-", "")
    return digits.isdigit() and 3 <= len(digits) <= 10


_PASSES = (
    (_NAMED, _after_name),
    (_NAMED_AFTER, _inside),
    (_REFUSED, _after_name),
    (_FIELD, _after_name),
    (_COUPLE, _in_couple),
    (_ELEMENT, _inside),
    (_OPTION, _after_option),
    (_PAIR, _after_pair),
)

# In formats of bytes a name is followed by a length or a type, and that by the value.
_BETWEEN_BYTES = re.compile(rf"(?<![\w.$-])(?P<name>{_NAME})[\0-\x08\x0e-\x1f\x7f-\x9f\udc80-\udcff]{{1,8}}+")


def hide_between_bytes(text: str, judge: Judge) -> str:
    """The same in bytes that were read as a text, where no sign stands between name and value."""
    return _replaced(text, _BETWEEN_BYTES, _after_name, judge)
