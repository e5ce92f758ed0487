"""Variables of the frames that an exception passed through, as text that is bounded and without secrets.

Only where somebody asked for it: values are asked how they print, which is code of theirs.
"""

from __future__ import annotations

import reprlib
from types import FrameType, ModuleType, TracebackType
from typing import Any

from redrive.model.fingerprint import MAX_FRAMES_WALKED, OWN_FOLDER
from redrive.model.redact import names_a_secret, redact_text
from redrive.model.secret_forms import REDACTED

MAX_FRAMES = 8
"""The innermost frames; what went wrong is seldom further out."""
MAX_VARIABLES = 24
"""Of each frame."""
MAX_VALUE_CHARS = 200
MAX_LOOKED_AT_CHARS = 4_096
"""Of a value that prints longer, the rest is not looked at, and not shown."""


class _Short(reprlib.Repr):
    """Prints values without walking through all of a large one. Secrets are looked for before anything is cut."""

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
    """The innermost frames with their variables, outermost first. Never raises; empty where there is nothing to tell.

    A variable whose name is that of a secret is hidden, and so is what has the form of one.
    """
    try:
        return "\n".join(line for frame, at in _frames(error) for line in _lines(frame, at))
    except BaseException:  # whatever values do when they are printed, the failure itself must not be lost for it
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
