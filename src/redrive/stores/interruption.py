"""Telling an exception of the engine from one that was raised from outside: by a signal handler, as for Ctrl-C or an
alarm. That one is the caller's, whatever its class: it says nothing about the engine, and comes out as itself."""

from __future__ import annotations

import sys
import traceback

_LIBRARIES = frozenset({"redis", "hiredis", "ssl", "socket"})
"""Whose code turns errors of the system into errors of its own."""
_OURS = frozenset({"redrive", *sys.stdlib_module_names})
"""Whose code raises where Redrive has a mistake. A signal handler is code of the program."""


def interruption(
    error: BaseException, before: BaseException | None, own: tuple[type[BaseException], ...]
) -> BaseException | None:
    """What was raised from outside, where that is what happened; None where the error is the engine's.

    A driver that is interrupted may raise an error of its own instead, with what interrupted it as its context. `own`
    are the classes of the engine's errors. `before` is what the caller was handling already.
    """
    found: BaseException | None = error
    while found is not None and found is not before:
        if not isinstance(found, own) and not _is_of_the_system(found):
            return found
        found = found.__context__
    return None


def is_mistake(error: BaseException) -> bool:
    """Whether code of Redrive raised it, called by no other: neither by the driver, whose connection is as it was, nor
    by a signal handler."""
    came_through = _packages(error)[1:]
    return isinstance(error, Exception) and bool(came_through) and _OURS.issuperset(came_through)


def _is_of_the_system(error: BaseException) -> bool:
    """Whether a library met it in a call of the system. What a signal handler raises there comes from the handler."""
    return isinstance(error, Exception) and _packages(error)[-1] in _LIBRARIES


def _packages(error: BaseException) -> list[str]:
    """The packages of the functions that an error came through, the one that raised it last."""
    frames = traceback.walk_tb(error.__traceback__)
    return ["", *(str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames)]
