"""Safe reading of any exception: its names, text, traceback, and the local variables of its frames.

An exception may run any code when it is read. The traceback has the format of Python; its source lines come from
linecache, so only the first failure in a file reads the file. Local variables are read only on request, because their
`repr` is code of the program; the text is bounded and redacted.
"""

from __future__ import annotations

import linecache
import reprlib
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType, ModuleType, TracebackType
from typing import Any

from redrive.model.fingerprint import (
    MAX_CHARS_REMEMBERED,
    MAX_FRAMES_REMEMBERED,
    MAX_FRAMES_WALKED,
    MAX_NAME_CHARS_REMEMBERED,
    OWN_FOLDER,
    Frames,
    frames_of,
)
from redrive.model.redact import names_a_secret, redact_text
from redrive.model.secret_patterns import REDACTED
from redrive.model.text import MAX_TEXT_BYTES, MAX_TYPE_BYTES, clean_text

MAX_BASES = 16
MAX_GROUP_MEMBERS = 8
MAX_GROUP_VISITS = 10_000
MAX_FRAMES_FIRST = 16
MAX_FRAMES_LAST = MAX_FRAMES_REMEMBERED - MAX_FRAMES_FIRST
"""The number of innermost frames that are shown, after `MAX_FRAMES_FIRST` outermost ones, of a longer traceback."""
MAX_TEXTS_REMEMBERED = 256
MAX_CHAINED = 8
MAX_NOTES = 8
MAX_LINE_CHARS = 200

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"

_own_attributes = BaseException.__dict__["__dict__"].__get__


def safe_str(error: BaseException) -> str:
    """Return its text, clean and bounded, or a note that the text could not be read."""
    try:
        text = str(error)
    except BaseException as problem:
        return f"<its text could not be read: {plain_name(problem)}>"
    # A subclass of str can do anything when it is sliced; joining makes it a plain one.
    return clean_text(text if type(text) is str else "".join((text,)), MAX_TEXT_BYTES)


def names_of_error(error: BaseException) -> tuple[str, tuple[str, ...]]:
    """Return the full name of its type, and those of the classes that it derives from, nearest first."""
    return _class_names(type(error))  # type: ignore[arg-type]  # mypy does not see that a class is hashable


@lru_cache(maxsize=1024)
def _class_names(kind: type[BaseException]) -> tuple[str, tuple[str, ...]]:
    names = [_name(base) for base in kind.__mro__ if base not in (BaseException, object)]
    return (names[0] if names else _name(kind)), tuple(names[1 : MAX_BASES + 1])


def _name(kind: type) -> str:
    module, name = kind.__module__, kind.__qualname__.replace("<locals>.", "")
    return clean_text(name if module == "builtins" else f"{module}.{name}", MAX_TYPE_BYTES)


def plain_name(error: BaseException) -> str:
    """Return the name of its class, read through `type`, which the class cannot override."""
    return clean_text(type.__dict__["__name__"].__get__(type(error)), MAX_TYPE_BYTES)


def own_attributes(error: BaseException) -> dict[str, Any]:
    """Return the attributes set on an exception, even if its class overrides attribute access."""
    return _own_attributes(error)  # type: ignore[no-any-return]


def safe_getattr(owner: object, name: str) -> object:
    """Return an attribute, or None if it is missing or raises any exception."""
    try:
        return getattr(owner, name, None)
    except BaseException:
        return None


def format_traceback(error: BaseException, frames: Frames, type_name: str, text: str) -> str:
    """Return the text of an exception, after its causes, oldest first, and before the members of its group."""
    if error.__cause__ is None and error.__context__ is None and not isinstance(error, BaseExceptionGroup):
        return _one(error, frames, type_name, text).rstrip("\n")
    parts: list[str] = []
    for link, joint in reversed(list(_chain(error))):
        parts.append(_one(link, frames, type_name, text) if link is error else _other(link))
        parts.append(joint)
    if isinstance(error, BaseExceptionGroup):
        parts += [f"\nMember {number}:\n{_other(member)}" for number, member in enumerate(group_members(error), 1)]
    return "".join(parts).rstrip("\n")


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yield each exception of the chain with the sentence that links it to the previous one; stop at a cycle."""
    seen: set[int] = set()
    link: BaseException | None = error
    joint = ""
    while link is not None and id(link) not in seen and len(seen) < MAX_CHAINED:
        seen.add(id(link))
        yield link, joint
        cause = link.__cause__
        joint = _CONTEXT if cause is None else _CAUSE
        link = cause if cause is not None or link.__suppress_context__ else link.__context__


def _other(error: BaseException) -> str:
    return _one(error, frames_of(error), names_of_error(error)[0], safe_str(error))


def _one(error: BaseException, frames: Frames, type_name: str, text: str) -> str:
    passed = (_text_of_frames if len(frames) <= MAX_FRAMES_REMEMBERED else _text_of_many_frames)(frames)
    head = "Traceback (most recent call last):\n" if frames else ""
    last = f"{type_name}: {text}\n" if text else f"{type_name}\n"
    return head + passed + last + _notes(error)


def _text_of_many_frames(frames: Frames) -> str:
    first, last = frames[:MAX_FRAMES_FIRST], frames[-MAX_FRAMES_LAST:]
    left_out = f"  … {len(frames) - len(first) - len(last):,} frames left out …\n"
    return _text_of_frames(first) + left_out + _text_of_frames(last)


_texts: dict[Frames, tuple[tuple[str, ...], str]] = {}
"""Texts of frames, with the source lines that they were made from."""
_sourceless: set[str] = set()
"""Names of files that linecache has not found: it reads the folders again for each line of them."""


def _text_of_frames(frames: Frames) -> str:
    """Return the text of frames, from memory if linecache has the same lines: a file name can get other code."""
    found: list[str] = []
    for filename, _, line in frames:
        entry = linecache.cache.get(filename)
        source = _read_source(filename) if entry is None or len(entry) == 1 else entry[2]
        found.append(source[line - 1] if 0 < line <= len(source) else "")
    lines = tuple(found)
    remembered = _texts.get(frames)
    if remembered is not None and remembered[0] == lines:
        return remembered[1]
    parts = [
        (
            _text_of_short_frame
            if len(filename) + len(function) + len(line) <= MAX_NAME_CHARS_REMEMBERED
            else _text_of_frame
        )(filename, function, number, line)
        for (filename, function, number), line in zip(frames, lines, strict=True)
    ]
    text = "".join(parts)
    if len(text) + sum(map(len, lines)) <= MAX_CHARS_REMEMBERED:
        if len(_texts) >= MAX_TEXTS_REMEMBERED:
            _texts.clear()
        _texts[frames] = lines, text
    return text


def _text_of_frame(filename: str, function: str, number: int, line: str) -> str:
    where = f'  File "{filename}", line {number}, in {function}\n'
    source = line.strip()
    return f"{where}    {source[:MAX_LINE_CHARS]}\n" if source else where


_text_of_short_frame = lru_cache(maxsize=4096)(_text_of_frame)


def _read_source(filename: str) -> list[str]:
    if filename in _sourceless:
        return []
    source = linecache.getlines(filename)
    if not source and len(filename) <= MAX_NAME_CHARS_REMEMBERED:
        if len(_sourceless) >= MAX_TEXTS_REMEMBERED:
            _sourceless.clear()
        _sourceless.add(filename)
    return source


def _notes(error: BaseException) -> str:
    notes = safe_getattr(error, "__notes__")
    if type(notes) is not list:
        return ""
    return "".join(f"{note[:MAX_LINE_CHARS]}\n" for note in notes[:MAX_NOTES] if type(note) is str)


def group_members(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the first exceptions in a group and its nested groups, at most `MAX_GROUP_MEMBERS`."""
    found: list[BaseException] = []
    waiting = list(reversed(group.exceptions))
    visits = 0
    while waiting and len(found) < MAX_GROUP_MEMBERS and visits < MAX_GROUP_VISITS:
        visits += 1
        member = waiting.pop()
        if isinstance(member, BaseExceptionGroup):
            waiting.extend(reversed(member.exceptions))
        else:
            found.append(member)
    return found


MAX_FRAMES = 8
"""The maximum number of innermost frames; the cause is seldom further out."""
MAX_VARIABLES = 24
"""The maximum number of variables of each frame."""
MAX_VALUE_CHARS = 200
MAX_LOOKED_AT_CHARS = 4_096
"""The number of characters of a printed value that are searched for secrets; the rest is not shown."""


class _Short(reprlib.Repr):
    """A printer of values that reads only a part of a large one. It redacts secrets before it cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlong = 3, 60

    def repr_str(self, text: str, level: int) -> str:
        shown = redact_text(text[:MAX_LOOKED_AT_CHARS])
        return repr(shown[:MAX_VALUE_CHARS]) + ("…" if len(shown) > MAX_VALUE_CHARS else "")

    def repr_bytes(self, data: bytes, level: int) -> str:
        return repr(data[:32]) + ("…" if len(data) > 32 else "")

    def repr_instance(self, value: Any, level: int) -> str:
        return redact_text(repr(value)[:MAX_LOOKED_AT_CHARS])

    repr_bytearray = repr_bytes


_short = _Short().repr


def describe_variables(error: BaseException) -> str:
    """Return the innermost frames with their variables, outermost first; empty if there are none. Never raise.

    A variable with the name of a secret is hidden, and so is any text with the form of a secret.
    """
    try:
        return "\n".join(line for frame, at in _frames(error) for line in _lines(frame, at))
    except BaseException:  # a value may raise anything when it is printed, and the failure itself must not be lost
        return ""


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    frames: list[tuple[FrameType, int]] = []
    link: TracebackType | None = error.__traceback__
    for _ in range(MAX_FRAMES_WALKED):
        if link is None:
            break
        frames.append((link.tb_frame, link.tb_lineno))
        link = link.tb_next
    inner = [(frame, at) for frame, at in frames if not frame.f_code.co_filename.startswith(OWN_FOLDER)]
    return inner[-MAX_FRAMES:]


def _lines(frame: FrameType, at: int) -> list[str]:
    code = frame.f_code
    shown = [] if code.co_name == "<module>" else [item for item in frame.f_locals.items() if _is_shown(*item)]
    lines = [f'File "{code.co_filename}", line {at}, in {code.co_qualname}']
    lines += [f"    {name} = {_value(name, value)}" for name, value in shown[:MAX_VARIABLES]]
    if len(shown) > MAX_VARIABLES:
        lines.append(f"    … {len(shown) - MAX_VARIABLES:,} more")
    return lines


def _is_shown(name: str, value: Any) -> bool:
    return not name.startswith("__") and not isinstance(value, ModuleType)


def _value(name: str, value: Any) -> str:
    if names_a_secret(name):
        return REDACTED
    try:
        text = _short(value)
    except BaseException:
        return f"<{type.__dict__['__name__'].__get__(type(value))} that cannot be printed>"
    line = redact_text(" ".join(text.split()))
    return line if len(line) <= MAX_VALUE_CHARS else f"{line[: MAX_VALUE_CHARS - 1]}…"
