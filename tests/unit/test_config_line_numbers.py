"""On which line a key stands, in any document that is TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.config.line_numbers import KeyPath, LineIndex, format_key_path

DOCUMENT = """\
# url = "in a comment"
url = 'sqlite:///jobs.db'  # [not.a.table]
dotted . "quoted key".last = 1

[queue.emails]
retry = { attempts = 3, cooldown = "30s", by_type = { "my.Error" = "1s" } }
text = \"\"\"
[queue.inside]
key = "in a text"
\\\"\"\" still inside\"\"\"
literal = '''
x = 1'''
delays = [
  "1s", # with a comment ] and "quote
  [ "2s",
    "3s" ],
  { a = 1, b = [
    2 ] },
]
[[queue.emails.error_rules]]
contains = ["one"]
[[queue.emails.error_rules]]

contains = ["two"]
  [queue.emails.error_rules.below]
  at = 1979-05-27 07:32:00
["queue"."a.b"]
'c' = \"\"\"two quotes at the end\"\"\"\"\"
last = +inf"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("url",), 2),
        (("dotted",), 3),
        (("dotted", "quoted key", "last"), 3),
        (("queue",), 5),
        (("queue", "emails"), 5),
        (("queue", "emails", "retry", "cooldown"), 6),
        (("queue", "emails", "retry", "by_type", "my.Error"), 6),
        (("queue", "emails", "text"), 7),
        (("queue", "emails", "literal"), 11),
        (("queue", "emails", "delays"), 13),
        (("queue", "emails", "delays", 0), 14),
        (("queue", "emails", "delays", 1, 1), 16),
        (("queue", "emails", "delays", 2, "b"), 17),
        (("queue", "emails", "delays", 2, "b", 0), 18),
        (("queue", "emails", "error_rules", 0, "contains"), 21),
        (("queue", "emails", "error_rules", 1), 22),
        (("queue", "emails", "error_rules", 1, "contains"), 24),
        (("queue", "emails", "error_rules", 1, "below", "at"), 26),
        (("queue", "a.b", "c"), 28),
        (("queue", "a.b", "last"), 29),
    ],
)
def test_key_is_found_on_its_line(path: KeyPath, line: int) -> None:
    tomllib.loads(DOCUMENT)
    assert LineIndex(DOCUMENT).line_of(path) == line


def test_nothing_is_found_in_texts_and_comments() -> None:
    lines = LineIndex(DOCUMENT)
    assert ("queue", "inside") not in lines
    assert ("x",) not in lines
    assert ("not",) not in lines


def test_key_that_is_missing_is_where_its_table_is() -> None:
    assert LineIndex(DOCUMENT).line_of(("queue", "emails", "retry", "attempt")) == 6
    assert LineIndex(DOCUMENT).line_of(("queue", "emails", "max_size")) == 5
    assert LineIndex(DOCUMENT).line_of(("server", "port")) == 1


def test_lines_of_windows_are_lines() -> None:
    assert LineIndex(DOCUMENT.replace("\n", "\r\n")).line_of(("queue", "a.b", "last")) == 29


def test_empty_document_has_one_line() -> None:
    assert LineIndex("").line_of(("url",)) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("queue", "emails", "retry"), "queue.emails.retry"),
        (("queue", "a.b", "delays", 2), 'queue."a.b".delays[2]'),
        (("queue", 'say "x"'), 'queue."say \\"x\\""'),
    ],
)
def test_path_is_shown_as_people_write_it(path: KeyPath, text: str) -> None:
    assert format_key_path(path) == text


# Random documents, written so that each key stands on a line of its own with a mark that only it has.

_KEYS = st.one_of(
    st.from_regex(r"[a-z0-9_-]{1,5}", fullmatch=True),
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=5),
)
_SCALARS = st.one_of(
    st.integers(-5, 5).map(str),
    st.booleans().map(lambda value: str(value).lower()),
    st.sampled_from(
        ["1979-05-27", "0x1f", "'it'", '"a \\" # ] } b"', "'''\n[x]\nk = 1\n'''", '"""\n\\"""\n# no\n"""', "nan"]
    ),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8).map(lambda text: _quoted(text)),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda members: "[ " + ", # ]\n ".join(members) + "\n]" if members else "[]"),
        st.dictionaries(_KEYS, inner, max_size=3).map(
            lambda table: "{ " + ", ".join(f"{_quoted(key)} = {value}" for key, value in table.items()) + " }"
        ),
    ),
    max_leaves=6,
)


def _quoted(text: str) -> str:
    escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{escaped}"'


@st.composite
def documents(draw: st.DrawFn) -> str:
    lines: list[str] = []
    keys = st.lists(_KEYS, min_size=1, max_size=3)
    for _ in range(draw(st.integers(0, 4))):
        lines.append(draw(st.sampled_from(["", "# [comment]", "\t"])))
        header = ".".join(map(_quoted, draw(keys)))
        lines.append(draw(st.sampled_from([f"[{header}]", f"[[ {header} ]] # x", ""])))
        for _ in range(draw(st.integers(0, 3))):
            lines.append(" . ".join(map(_quoted, draw(keys))) + " = " + draw(_VALUES))
    return "\n".join(lines)


def _paths(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    if path:
        yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from _paths(member, (*path, key))


@given(documents())
def test_every_key_of_any_document_is_found_on_a_line_that_has_it(document: str) -> None:
    try:
        parsed = tomllib.loads(document)
    except tomllib.TOMLDecodeError:
        return  # a key twice, say
    lines = LineIndex(document)
    text = document.split("\n")
    for path in _paths(parsed):
        assert path in lines, path
        name = next(key for key in reversed(path) if isinstance(key, str))
        if isinstance(path[-1], str):
            assert _quoted(name) in text[lines.line_of(path) - 1], path
