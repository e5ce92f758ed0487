"""Fingerprints: one short identifier for all failures that have the same root cause.

With a traceback it is a hash of the error's type and the locations of its frames; without one, of the type and the
text with its varying parts replaced. It is the same in every process and on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

MAX_PLACES = 32
MAX_NORMALISED_CHARS = 1_024
# A real stack is far below this limit; a fabricated chain of frames is bounded here.
MAX_FRAMES_WALKED = 10_000

OWN_FOLDER = str(Path(__file__).parent.parent)
"""The folder of the Redrive package."""


# File, function and line. Not the code object, which is equal to that of a copy in another file.
Frame: TypeAlias = tuple[str, str, int]
Frames: TypeAlias = tuple[Frame, ...]
MAX_FRAMES_REMEMBERED = 48
"""The maximum number of frames for which derived texts and fingerprints are cached."""
MAX_CHARS_REMEMBERED = 16_384
"""The maximum number of characters in the names and lines of such frames: generated code can have long ones."""
MAX_NAME_CHARS_REMEMBERED = 1_024
_MAX_REMEMBERED = 1_024


def frames_of(error: BaseException) -> Frames:
    """Return the frames of an exception, outermost first, without the frames of Redrive before those of the handler."""
    frames: list[Frame] = []
    own = 0
    link: TracebackType | None = error.__traceback__
    while link is not None and len(frames) < MAX_FRAMES_WALKED:
        code = link.tb_frame.f_code
        filename = code.co_filename
        if own == len(frames) and filename.startswith(OWN_FOLDER):
            own += 1
        frames.append((filename, code.co_qualname, link.tb_lineno))
        link = link.tb_next
    return tuple(frames if own == len(frames) else frames[own:])


def fingerprint_of_frames(type: str, frames: Frames, text: str) -> str:
    """Return the fingerprint of an exception with these frames; `text` is used only if there are no frames."""
    if not frames:
        return fingerprint(type, (), text)
    if len(frames) > MAX_FRAMES_REMEMBERED:
        return _of_frames(type, frames)
    key = type, frames
    found = _of_few_frames.get(key)
    if found is None:
        found = _of_frames(type, frames)
        if sum([len(filename) + len(function) for filename, function, _ in frames]) <= MAX_CHARS_REMEMBERED:
            if len(_of_few_frames) >= _MAX_REMEMBERED:
                _of_few_frames.clear()
            _of_few_frames[key] = found
    return found


_of_few_frames: dict[tuple[str, Frames], str] = {}


def _of_frames(type: str, frames: Frames) -> str:
    places = [
        (_short_location if len(filename) + len(function) <= MAX_NAME_CHARS_REMEMBERED else frame_location)(
            filename, function
        )
        for filename, function, _ in frames
    ]
    return fingerprint(type, places, "")


def fingerprint(type: str, places: Iterable[str], text: str) -> str:
    """Return 16 hex digits. `places` are from `frame_location`, outermost first; without them, `text` is used."""
    # Each place once, so that a recursion has one fingerprint at every depth.
    unique = tuple(dict.fromkeys(places))[-MAX_PLACES:]
    return _digest("frames", type, *unique) if unique else _digest_of_text(type, normalise_text(text))


def frame_location(filename: str, qualname: str) -> str:
    """Return the file and function of a frame, without folder and line, which change with every deployment."""
    parts = filename.replace("\\", "/").rsplit("/", 2)
    # `__init__.py` is ambiguous without the name of its package.
    name = "/".join(parts[-2:]) if parts[-1] == "__init__.py" else parts[-1]
    return f"{name}:{qualname}"


_short_location = lru_cache(maxsize=4096)(frame_location)


def normalise_text(text: str) -> str:
    """Return the text with varying parts (numbers, ids, paths, …) replaced, so that one cause has one text."""
    return " ".join(_VARYING.sub(_placeholder, text[:MAX_NORMALISED_CHARS]).split())


def _digest(*parts: str) -> str:
    joined = "\0".join(parts).encode("utf-8", "surrogatepass")
    return blake2b(joined, digest_size=8).hexdigest()


@lru_cache(maxsize=_MAX_REMEMBERED)
def _digest_of_text(type: str, text: str) -> str:
    return _digest("text", type, text)


def _placeholder(match: re.Match[str]) -> str:
    return f"<{match.lastgroup}>"


_HEX = "[0-9a-fA-F]"
# In this order: more specific patterns are tried first.
_VARYING = re.compile(
    "|".join(
        (
            rf"(?P<uuid>\b{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}\b)",
            r"(?P<text>(?<!\w)'[^'\n]*'(?!\w)|(?<!\w)\"[^\"\n]*\"(?!\w)|`[^`\n]*`)",
            r"(?P<email>(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+)",
            r"(?P<url>\b[a-zA-Z][a-zA-Z0-9+.-]{1,15}://[^\s'\"<>)\]]+)",
            r"(?P<date>\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)",
            r"(?P<time>\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b)",
            r"(?P<address>\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b|"
            rf"\b(?:{_HEX}{{1,4}}:){{3,7}}{_HEX}{{1,4}}\b)",
            r"(?P<path>(?<![\w/\\.])(?:[a-zA-Z]:|~|\.{1,2})?(?:[/\\][\w.@+-]+)+[/\\]?)",
            rf"(?P<hex>\b0[xX]{_HEX}+\b|\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F]){_HEX}{{8,}}\b)",
            r"(?P<n>(?<![\w])[-+]?\d+(?:[.,]\d+)*|\d+(?:[.,]\d+)*)",
        )
    )
)
