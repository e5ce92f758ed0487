"""What a caller gives. It may be any object, and do anything when something is asked of it.

The checks of arguments ask it here. What the object raises becomes an `InvalidInput` that names the argument, with the
original as its cause; what is no `Exception`, such as KeyboardInterrupt, passes as itself, and so does what a signal
handler of the program raises meanwhile.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MethodType
from typing import Any

from redrive.errors import InvalidInput, RedriveError


@contextmanager
def checking_input(what: str) -> Iterator[None]:
    """While this runs, the argument is looked at, and nothing has been changed."""
    try:
        yield
    except RedriveError:
        raise
    except Exception as error:
        if is_of_a_signal(error):
            raise
        raise unreadable(what, error) from error


def is_of_a_signal(error: BaseException) -> bool:
    """Whether a signal handler raised it, which may run between any two instructions of the main thread."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    link = error.__traceback__
    while link is not None and link.tb_frame.f_code not in handlers:
        link = link.tb_next
    return link is not None


def _code(handler: Any) -> CodeType | None:
    """Of a function, a method, a partial of these, or an object that can be called. None of a default."""
    while isinstance(handler, partial):
        handler = handler.func
    if not isinstance(handler, FunctionType | MethodType):
        handler = type(handler).__call__ if callable(handler) else None
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None


def unreadable(what: str, error: Exception) -> InvalidInput:
    """The refusal of an argument that raised an error when it was looked at."""
    return InvalidInput(f"{what} cannot be read: {type(error).__name__}{_text(error)}; give a plain value")


def exact_str(text: str) -> str:
    """The same text as a str and nothing more: a subclass may have its own idea of length, hash and equality."""
    return text if type(text) is str else str.__str__(text)


def flag(what: str, value: object) -> bool:
    """Whether a switch is on."""
    if value is True or value is False:
        return bool(value)
    with checking_input(what):
        return bool(value)


def listed(what: str, values: Iterable[Any], most: int) -> tuple[Any, ...]:
    """What an iterable gives, and one more than `most` at most: it may have no end."""
    if type(values) is tuple or type(values) is list:
        return tuple(values)
    with checking_input(what):
        return tuple(islice(values, most + 1))


def table(what: str, values: Mapping[str, Any], most: int) -> dict[str, Any]:
    """A copy of a table, read once. Raises where it has more than `most` entries: it may have no end."""
    if type(values) is dict:
        return values
    with checking_input(what):
        copied = dict(islice(values.items(), most + 1))
    if len(copied) > most:
        raise InvalidInput(f"{what} has more than {most:,} entries")
    return copied


def _text(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:
        return ""
    return f": {text[:200]}" if text else ""
