"""Secrets in texts next to their name: `password=…`, `"api_key": "…"`, `--token …`, `<pin>…</pin>`.

The names of secrets are found first, each judged like a key of a table; most texts have none. Then the text around
them is matched, and last the values are checked. Every expression is bounded and tried once for each word of the text,
so that the time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from redrive.model import secret_keys
from redrive.model.secret_keys import MAX_KEY_CHARS, Secrecy
from redrive.model.secret_patterns import REDACTED, lower_in_place
from redrive.model.secret_values import Span, Values, is_secret_text, quoted_or_run, random_run

KeyClassifier = Callable[[str], Secrecy]
_NAME = r"[\w.$-]{1,256}+"
_QUOTE = r"""(?:\\{0,4}["'`]|&quot;|&#3[49];)"""
_GAP = r"[ \t]{0,3}"
# `name=`, `"name": `, `name := `, `['name'] = `, `name => `, `name%3D`, and in a sentence `name is `.
_SIGN = r"(?:=>|:=|===?|=|:(?!//|:)|%3[Dd])"
_PAIR = re.compile(
    rf"(?<![\w.$-])(?P<name>{_NAME})(?:{_QUOTE})?\]?[ \t]{{0,8}}+"
    rf"(?:(?P<sign>{_SIGN})[ \t]{{0,8}}+|(?P<said>(?:is|was)(?:[ \t]|:[ \t]?)))"
)
# `--name value`, `-name value`, and `'--name', 'value'` of a list.
_OPTION = re.compile(
    rf"(?P<name>-(?<![\w-]-)(?:-[A-Za-z][\w-]{{1,63}}+|[A-Za-z][\w-]{{3,63}}+))"
    rf"(?:[ \t]{{1,3}}+(?!-|(?:id|source|type)=)|{_QUOTE},[ \t]{{0,2}}(?=b?{_QUOTE}))"
)
# `ENV NPM_TOKEN value`, `aws configure set aws_secret_access_key value`
_BEFORE_SPACE = re.compile(rf"(?<![\w.$-])(?P<name>{_NAME})(?:{_QUOTE})?[ \t]{{1,3}}+(?![-=])")
_SETTING = re.compile(
    r"""(?<![\w-])(?:set|SET|setx|put|config)(?:[ \t]{1,3}--?[\w-]{1,16}+){0,2}[ \t]{1,3}["']?[^\s"'=]{0,64}+\Z"""
)
_SETTING_CHARS = 128  # the maximum length of a match
_LEAST_CHARS_IN_SENTENCE = 12
# `az keyvault secret set --name db-password --value value`
_BEFORE_VALUE = re.compile(rf"(?P<name>{_NAME}){_QUOTE}?[ \t](?:[^\r\n|;]{{0,96}}?[ \t])?--(?:value|body)[ =]{_GAP}")
# `<name>value</name>`, `<space:name>value</space:name>`, `<entry key="name">value</entry>`
_TEXT = r">(?P<value>[^<>\r\n]{1,4096}+)</"
_ELEMENT = re.compile(rf"<(?:\w[\w.-]{{0,63}}+:)?(?P<name>[A-Za-z][\w.-]{{0,63}}+)(?:[ \t][^<>]{{0,128}}+)?{_TEXT}")
_ENTRY = re.compile(rf"(?:(?<=key=\")|(?<=name=\"))(?P<name>{_NAME})\"[^<>]{{0,128}}+{_TEXT}")
# `"name": "password", "value": "…"`, `key="password" value="…"`, and the value first.
_NAMING_CHARS = 32  # the maximum length of a match
_NAMING = (
    r"(?<![A-Za-z])(?:name|key|field|header|param|parameter|variable|var|id|label|attribute|property|option)"
    rf"(?:{_QUOTE})?{_GAP}[:=]{_GAP}(?:b?{_QUOTE})?"
)
_VALUE_HERE = re.compile(rf"[:=]{_GAP}(?:b?{_QUOTE})?\Z")
_NAMED_HERE = re.compile(rf"{_NAMING}\Z", re.I)
_HOLDING = (
    r"(?<![A-Za-z])(?:value|val|content|contents|text|data|default|stringvalue|input_value)"
    rf"(?:{_QUOTE})?{_GAP}[:=]{_GAP}"
)
_NAMED = re.compile(rf"{_NAMING}(?P<name>{_NAME})(?:{_QUOTE}|\r?\n)[^<>{{}}]{{0,64}}?{_HOLDING}", re.I)
_NAMED_AFTER = re.compile(
    rf"""{_HOLDING}["'](?P<value>[^"'<>{{}}\r\n]{{1,256}}+)["'],?[ \t\r\n]{{1,3}}["']?{_NAMING}(?P<name>{_NAME})["']""",
    re.I,
)
# An error of pydantic about a field, whose name is on the line before.
_REFUSED = re.compile(r"^(?P<name>[\w.]{1,256}+)\r?\n[ ]{1,8}[^\r\n]{0,512}?input_value=", re.M)
# A field of a multipart form: name="password", an empty line, the value.
_FIELD = re.compile(
    rf"name=\"(?P<name>{_NAME})\"[^\r\n]{{0,128}}\r?\n(?:[\w-]{{1,64}}:[^\r\n]{{0,256}}\r?\n){{0,4}}\r?\n"
)
# `('password', '…')`
_COUPLE = re.compile(rf"""[(\[]{_GAP}b?["'](?P<name>{_NAME})["']{_GAP},{_GAP}(?=b?["'])""")
# In binary formats a name is followed by a length or a type, and that by the value.
_BETWEEN_BYTES = re.compile(rf"(?<![\w.$-])(?P<name>{_NAME})[\0-\x08\x0e-\x1f\x7f-\x9f\udc80-\udcff]{{1,8}}+")
# `api key: …` and `mot de passe : …` in a sentence: the words before complete the name. They are read backwards.
_WORDS_BEFORE = re.compile(r"[ \t]([\w-]{1,32}+)(?:[ \t]([\w-]{1,32}+))?")
_COMPLETED = ("key", "code", "phrase", "answer", "pin", "passe", "string")
HINTS = (*secret_keys.HINTS, *_COMPLETED)
"""Parts of names: a lower-case text without any of these has no name of a secret."""
_MAX_INDENT = 64
# The rest of a path: `session:user:42`
_MORE_PATH = re.compile(r"[a-z_]{1,32}+:[\w*{<]")
# The end of a prompt: `input("Password: ")`
_QUOTE_CLOSED = re.compile(r"""["'](?:[\s)\]},;+]|\Z)""")
_PROMPT_CHARS = 256
_OF_A_QUERY = ("key", "code")
_REST_OF_NAME = re.compile(r"[\w.$-]*+")


def hide_pairs(text: str, judge: KeyClassifier, hints: re.Pattern[str], first: int = 0) -> str:
    """Return the text without the values next to the name of a secret.

    `hints` finds a part of every such name in a lower-case text, none of them before `first`.
    """
    names = _names_of_secrets(text, judge, hints, first)
    for places, pattern, find in _PASSES if names else ():
        shown = _replaced(text, places(pattern, text, names), find, judge)
        if shown is not text:
            text, names = shown, _names_of_secrets(shown, judge, hints)
    return text


def hide_between_bytes(text: str, judge: KeyClassifier) -> str:
    """Hide values in decoded binary data, where no sign separates name and value."""
    return _replaced(text, _anywhere(_BETWEEN_BYTES, text, ()), _after_name, judge)


def _names_of_secrets(text: str, judge: KeyClassifier, hints: re.Pattern[str], first: int = 0) -> list[int]:
    """Return the positions of the names of secrets."""
    names: list[int] = []
    end = 0
    for hint in hints.finditer(lower_in_place(text), first):
        if hint.start() >= end:
            start, end = _around(text, *hint.span())
            name = text[start : min(end, start + MAX_KEY_CHARS + 1)]
            if judge(name) is not Secrecy.NONE or _is_part_of_a_name(text, start, name, judge):
                names.append(start)
    return names


def _around(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the start and the end of the name around this span."""
    before = _REST_OF_NAME.match(text[max(0, start - MAX_KEY_CHARS) : start][::-1])
    after = _REST_OF_NAME.match(text, end)
    assert before is not None
    assert after is not None
    return start - before.end(), after.end()


def _is_part_of_a_name(text: str, start: int, name: str, judge: KeyClassifier) -> bool:
    if name.lower() not in _COMPLETED:
        return False
    return text[start - 1 : start] in ("?", "&") or _completed(text, start, name, judge) is not Secrecy.NONE


_Next = Callable[[int], re.Match[str] | None]
"""A function that returns the next match at or after a position."""
_Places = Callable[[re.Pattern[str], str, Sequence[int]], _Next]
_Find = Callable[[Values, re.Match[str], KeyClassifier], Span | None]


def _anywhere(pattern: re.Pattern[str], text: str, _: Sequence[int]) -> _Next:
    return lambda at: pattern.search(text, at)


def _at_names(pattern: re.Pattern[str], text: str, names: Sequence[int]) -> _Next:
    """Return a finder of matches that start with the name of a secret."""
    rest = iter(names)
    return lambda at: next((place for name in rest if name >= at and (place := pattern.match(text, name))), None)


def _where_named(pattern: re.Pattern[str], text: str, names: Sequence[int]) -> _Next:
    """Return a finder of matches in a text in which the name of a secret is itself a value: `name="password"`."""
    is_named = any(
        _VALUE_HERE.search(text, max(0, at - _NAMING_CHARS // 2), at)
        and _NAMED_HERE.search(text, max(0, at - _NAMING_CHARS), at)
        for at in names
    )
    return _anywhere(pattern, text, names) if is_named else lambda at: None


def _where_quoted(pattern: re.Pattern[str], text: str, names: Sequence[int]) -> _Next:
    """Return a finder of matches in a text in which the name of a secret is in quotes."""
    is_quoted = any(text[at - 1 : at] in ('"', "'") for at in names)
    return _anywhere(pattern, text, names) if is_quoted else lambda at: None


def _replaced(text: str, next_place: _Next, find: _Find, judge: KeyClassifier) -> str:
    pieces: list[str] = []
    values = Values(text)
    end = at = 0
    while (place := next_place(at)) is not None:
        at = max(place.end(), at + 1)
        found = find(values, place, judge)
        if found is not None:
            pieces += (text[end : found.start], REDACTED)
            end = found.end
            at = max(at, end)
    return "".join((*pieces, text[end:])) if pieces else text


def _after_pair(values: Values, place: re.Match[str], judge: KeyClassifier) -> Span | None:
    text = values.text
    name, sign, before = place["name"], place["sign"], text[max(0, place.start() - 1) : place.start()]
    if _is_no_value(text, place, before):
        return None
    secrecy = judge(name)
    if secrecy is Secrecy.NONE and name.lower() in _COMPLETED:
        secrecy = _completed(text, place.start(), name, judge)
    if secrecy is Secrecy.NONE:
        is_query = before in ("?", "&") and name.lower() in _OF_A_QUERY
        return random_run(text, place.end()) if is_query else None
    if name.lower() == "pass" and sign == "=" and not text[place.end() : place.end() + 1].isdigit():
        secrecy = max(secrecy, Secrecy.SURE)
    if place["said"] is not None:
        secrecy = min(secrecy, Secrecy.LIKELY)
    is_setting = secrecy >= Secrecy.SURE and place[0][-1] in " \t" and _begins_line(text, place.start())
    return values.secret_at(place.end(), secrecy, name, whole_line=is_setting)


def _is_no_value(text: str, place: re.Match[str], before: str) -> bool:
    """Return whether the text after a name and a sign is not its value."""
    start, end = place.span()
    if before == "{" and text.startswith("?", end):
        return True  # `${PASSWORD:?must be set}`
    if place["sign"] == ":" and text[end - 1] == ":":
        # `arn:aws:…`
        return before == ":" or _MORE_PATH.match(text, end) is not None
    if place[0][-1] in " \t" and _QUOTE_CLOSED.match(text, end):
        before_name = text[max(0, start - _PROMPT_CHARS) : start]
        return before_name[before_name.rfind("\n") + 1 :].count(text[end]) % 2 == 1
    return False


def _begins_line(text: str, at: int) -> bool:
    before = text[max(0, at - _MAX_INDENT) : at]
    return not before[before.rfind("\n") + 1 :].strip() and (at < _MAX_INDENT or "\n" in before)


def _completed(text: str, start: int, name: str, judge: KeyClassifier) -> Secrecy:
    is_sentence = start >= 2 and text[start - 1] in " \t" and text[start - 2].isalnum()
    words = _WORDS_BEFORE.match(text[max(0, start - 66) : start][::-1]) if is_sentence else None
    if words is None:
        return Secrecy.NONE
    # `is_key` and `no_key` are no names of a secret, but in a sentence `is key: …` continues a phrase.
    second, first = words[1][::-1], words[2][::-1] if words[2] else "the"
    return max(judge(f"{second}_{name}"), judge(f"{first}_{second}_{name}"))


def _after_name(values: Values, place: re.Match[str], judge: KeyClassifier) -> Span | None:
    return values.secret_at(place.end(), judge(place["name"]), place["name"])


def _after_space(values: Values, place: re.Match[str], judge: KeyClassifier) -> Span | None:
    """Return the value after a name and a space; in a sentence only if it seems to be a secret."""
    text, name = values.text, place["name"]
    is_set = _SETTING.search(text, max(0, place.start() - _SETTING_CHARS), place.start()) is not None
    is_sentence = not is_set and not name.isupper()
    if not is_set and ("_" not in name or (is_sentence and text[place.end() : place.end() + 1] in ('"', "'"))):
        return None
    found = values.secret_at(place.end(), min(judge(name), Secrecy.LIKELY), name)
    is_short = found is not None and found.end - found.start < _LEAST_CHARS_IN_SENTENCE
    return None if is_sentence and is_short else found


def _in_couple(values: Values, place: re.Match[str], judge: KeyClassifier) -> Span | None:
    """Return the second member of a pair; only if it seems to be a secret, because a list may consist of names."""
    secrecy = min(judge(place["name"]), Secrecy.LIKELY)
    found = quoted_or_run(values.text, place.end())
    return found if found and is_secret_text(values.text[found.start : found.end], secrecy, bare=True) else None


def _inside(_: Values, place: re.Match[str], judge: KeyClassifier) -> Span | None:
    return Span(*place.span("value")) if is_secret_text(place["value"], judge(place["name"])) else None


_PASSES: tuple[tuple[_Places, re.Pattern[str], _Find], ...] = (
    (_where_named, _NAMED, _after_name),
    (_where_named, _NAMED_AFTER, _inside),
    (_at_names, _REFUSED, _after_name),
    (_where_quoted, _FIELD, _after_name),
    (_where_quoted, _COUPLE, _in_couple),
    (_anywhere, _ELEMENT, _inside),
    (_at_names, _ENTRY, _inside),
    (_anywhere, _OPTION, _after_name),
    (_at_names, _BEFORE_VALUE, _after_name),
    (_at_names, _BEFORE_SPACE, _after_space),
    (_at_names, _PAIR, _after_pair),
)
