"""The line of each key of a TOML document, which the parser of Python does not report.

The document was parsed before, so this scans only valid TOML, and decodes no value of it.
"""

from __future__ import annotations

import tomllib
from bisect import bisect_right

KeyPath = tuple[str | int, ...]
"""The keys from the top of a document down; a number is an index of an array."""

_BLANK = " \t"
_ENDS_BARE_VALUE = ",]}#\n"
_ENDS_BARE_KEY = " \t.=]"


class LineIndex:
    """The lines of a document, by the paths of its keys."""

    def __init__(self, document: str) -> None:
        self._lines: dict[KeyPath, int] = {(): 1}
        _Scanner(document.replace("\r\n", "\n"), self._lines).scan()

    def line_of(self, path: KeyPath) -> int:
        """Return the line of a key; for a missing key, the line of the table that it would be in."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]

    def __contains__(self, path: KeyPath) -> bool:
        return path in self._lines


class _Scanner:
    """A scanner that passes through a document once, from start to end."""

    def __init__(self, text: str, lines: dict[KeyPath, int]) -> None:
        self._text = text + "\n"  # so that there is always a next character
        self._end = len(text)
        self._at = 0
        self._lines = lines
        self._newlines = [place for place, character in enumerate(text) if character == "\n"]
        self._tables: dict[KeyPath, int] = {}
        """The arrays of tables, each with its number of tables so far."""

    def scan(self) -> None:
        table: KeyPath = ()
        while self._skip(newlines=True) < self._end:
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> KeyPath:
        """Scan `[table]` or `[[array of tables]]`. Return its path."""
        is_array = self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        began = self._at
        path: KeyPath = ()
        keys = self._key()
        for number, key in enumerate(keys):
            path += (key,)
            if is_array and number == len(keys) - 1:
                self._note(path, began)
                self._tables[path] = self._tables.get(path, 0) + 1
            self._note(path, began)
            if path in self._tables:
                path += (self._tables[path] - 1,)
                self._note(path, began)
        self._at += 2 if is_array else 1
        return path

    def _pair(self, table: KeyPath) -> None:
        """Scan `dotted.key = value`."""
        began = self._at
        path = table
        for key in self._key():
            path += (key,)
            self._note(path, began)
        self._at += 1  # the equals sign
        self._value(path)

    def _key(self) -> list[str]:
        """Scan a key. Return its parts."""
        keys = [self._part()]
        while self._text[self._skip()] == ".":
            self._at += 1
            keys.append(self._part())
        return keys

    def _part(self) -> str:
        began = self._skip()
        if self._text[began] in "\"'":
            self._string()
            read: str = tomllib.loads(f"key = {self._text[began : self._at]}")["key"]
            return read
        while self._text[self._at] not in _ENDS_BARE_KEY:
            self._at += 1
        return self._text[began : self._at]

    def _value(self, path: KeyPath) -> None:
        match self._text[self._skip()]:
            case '"' | "'":
                self._string()
            case "[":
                self._at += 1
                self._members(path, "]")
            case "{":
                self._at += 1
                self._members(path, "}")
            case _:
                while self._text[self._at] not in _ENDS_BARE_VALUE:
                    self._at += 1

    def _members(self, path: KeyPath, end: str) -> None:
        """Scan the contents of an array or an inline table, and the closing bracket."""
        place = 0
        while self._text[self._skip(newlines=True)] != end:
            if self._text[self._at] == ",":
                self._at += 1
                place += 1
            elif end == "}":
                self._pair(path)
            else:
                self._note((*path, place), self._at)
                self._value((*path, place))
        self._at += 1

    def _string(self) -> None:
        """Scan a string of any of the four kinds, from its first quote to behind its last."""
        quote = self._text[self._at]
        marks = quote * 3 if self._text.startswith(quote * 3, self._at) else quote
        self._at += len(marks)
        while not self._text.startswith(marks, self._at):
            self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
        self._at += len(marks)
        # Up to two quotes may precede the three that end it.
        while len(marks) == 3 and self._text[self._at] == quote:
            self._at += 1

    def _skip(self, newlines: bool = False) -> int:
        """Skip blanks, and with `newlines` comments and empty lines too. Return the position."""
        while self._at < self._end:
            character = self._text[self._at]
            if newlines and character == "#":
                self._at = self._text.index("\n", self._at)
            elif character in _BLANK or (newlines and character == "\n"):
                self._at += 1
            else:
                break
        return self._at

    def _note(self, path: KeyPath, at: int) -> None:
        """Record the position of a key. Its first position counts."""
        self._lines.setdefault(path, bisect_right(self._newlines, at - 1) + 1)


def format_key_path(path: KeyPath) -> str:
    """Return a path as people write it: `queue.emails.retry.delays[2]`, with quotes where TOML needs them."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
            text += ("." if text else "") + (key if bare else '"' + key.replace('"', '\\"') + '"')
    return text
