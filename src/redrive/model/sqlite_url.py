"""The URL of a SQLite file: `sqlite:///jobs.db`, with `?mode=0660` if a group shares it."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from redrive.errors import InvalidInput
from redrive.model.url import redact_url

PREFIX = "sqlite:///"
OWNER_ONLY = 0o600
"""The default mode of files that Redrive creates: only the owner may read and write."""
_READ_AND_WRITE = 0o666


class SQLiteFile(NamedTuple):
    """The path and the mode in a URL."""

    path: str
    mode: int = OWNER_ONLY
    """The permissions of files that are created, as for `chmod`."""


def parse_sqlite_url(url: str) -> SQLiteFile:
    """Return the file of a URL, with a relative path kept relative. Raise InvalidInput if the URL is not valid."""
    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if path == ":memory:":
        raise InvalidInput(f"{redact_url(url)!r} would be a file of that name; write memory:// for a store in memory")
    if ":///" not in url or parts.netloc or not path or "\0" in path or parts.fragment:
        raise InvalidInput(f"{redact_url(url)!r} names no file; write sqlite:///jobs.db, or sqlite:////var/lib/jobs.db")
    options = parse_qsl(parts.query, keep_blank_values=True)
    if [name for name, _ in options] not in ([], ["mode"]):
        raise InvalidInput(
            f"{redact_url(url)!r} has options that a file does not have; there is only ?mode=0660, for files that a "
            f"group shares. A ? that is part of the name is written %3F"
        )
    return SQLiteFile(path, *(_mode(value) for _, value in options))


def absolute_sqlite_url(url: str, folder: PurePath) -> str:
    """Return the URL with an absolute path, relative to this folder; any other URL unchanged."""
    path, mark, options = url.removeprefix(PREFIX).partition("?")
    if not url.startswith(PREFIX) or not path or unquote(path).startswith("/"):
        return url
    return f"{PREFIX}{quote(str(folder / unquote(path)))}{mark}{options}"


def lock_mode(mode: int) -> int:
    """Return the mode of the lock file: only for users who may write to the database, because read access can lock."""
    return OWNER_ONLY | (0o060 if mode & 0o020 else 0) | (0o006 if mode & 0o002 else 0)


def _mode(text: str) -> int:
    """Parse a mode as for chmod. The owner must be able to read and write; no execute bits are allowed."""
    if len(text) in (3, 4) and set(text) <= set("01234567"):
        mode = int(text, 8)
        if mode & OWNER_ONLY == OWNER_ONLY and mode | _READ_AND_WRITE == _READ_AND_WRITE:
            return mode
    raise InvalidInput(
        f"mode={text!r:.20} is not a mode for a database; write sqlite:///FILE?mode=0660 for its owner and its "
        f"group, 0640 to let the group read, or 0600 for its owner alone, as without it"
    )
