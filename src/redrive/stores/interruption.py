"""Distinction of exceptions of the engine from those raised by a signal handler, as for Ctrl-C or an alarm. The latter
belong to the caller, regardless of their class: they say nothing about the engine and are raised unchanged."""

from __future__ import annotations

import sys
import traceback

_LIBRARIES = frozenset({"redis", "hiredis", "ssl", "socket"})
"""Packages whose code raises errors of their own for errors of the system."""
_OURS = frozenset({"redrive", *sys.stdlib_module_names})
"""Packages whose exceptions are mistakes in Redrive. A signal handler is code of the program."""


def interruption(
    error: BaseException, before: BaseException | None, own: tuple[type[BaseException], ...]
) -> BaseException | None:
    """Return the exception that was raised from outside the engine, or None if the error is the engine's.

    An interrupted driver may raise an error of its own, with the interruption as its context. `own` are the classes of
    the engine's errors. `before` is the exception that the caller was already handling.
    """
    found: BaseException | None = error
    while found is not None and found is not before:
        if not isinstance(found, own) and not _is_of_the_system(found):
            return found
        found = found.__context__
    return None


def is_mistake(error: BaseException) -> bool:
    """Return whether code of Redrive raised the error, called only by Redrive: neither by the driver, whose connection
    is unchanged, nor by a signal handler."""
    came_through = _packages(error)[1:]
    return isinstance(error, Exception) and bool(came_through) and _OURS.issuperset(came_through)


def _is_of_the_system(error: BaseException) -> bool:
    """Return whether a library raised the error in a system call, and not a signal handler during that call."""
    return isinstance(error, Exception) and _packages(error)[-1] in _LIBRARIES


def _packages(error: BaseException) -> list[str]:
    """Return the packages of the functions that an error passed through; the one that raised it is last."""
    frames = traceback.walk_tb(error.__traceback__)
    return ["", *(str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames)]
