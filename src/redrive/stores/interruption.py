"""Telling an exception of the engine from one that was raised from outside: by a signal handler, as for Ctrl-C or an
alarm. That one is the caller's, whatever its class: it says nothing about the engine, and comes out as itself."""

from __future__ import annotations

from types import TracebackType

_LIBRARIES = frozenset({"redis", "hiredis", "ssl", "socket"})
"""Whose code turns errors of the system into errors of its own."""


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


def _is_of_the_system(error: BaseException) -> bool:
    """Whether a library met it in a call of the system. What a signal handler raises there comes from the handler."""
    if not isinstance(error, Exception):
        return False
    place: TracebackType | None = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    module = "" if place is None else str(place.tb_frame.f_globals.get("__name__"))
    return module.partition(".")[0] in _LIBRARIES
