"""Safe reading of arguments, which may be any objects and run any code when they are read.

An exception that the object raises becomes an `InvalidInput` that names the argument, with the original as its cause.
An error that is no `Exception`, such as KeyboardInterrupt, passes unchanged, and so does one that a signal handler of
the program raises concurrently.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # its `getsignal` does not print the handler, as that of `signal` does
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MethodType
from typing import Any

import msgspec

from redrive.errors import InvalidInput, InvalidSetting, RedriveError


@contextmanager
def checking_input(what: str) -> Iterator[None]:
    """Convert exceptions raised in the block, which only reads the argument `what`, to InvalidInput."""
    try:
        yield
    except RedriveError:
        raise
    except Exception as error:
        if is_of_a_signal(error):
            raise
        raise unreadable(what, error) from error


def is_of_a_signal(error: BaseException) -> bool:
    """Return whether a signal handler raised it, which may run between any two instructions of the main thread."""
    handlers = {_code(_signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    link = error.__traceback__
    while link is not None and link.tb_frame.f_code not in handlers:
        link = link.tb_next
    return link is not None


def _code(handler: Any) -> CodeType | None:
    """Return the code of a function, a method, a partial of these, or a callable object; None for a default handler."""
    while isinstance(handler, partial):
        handler = handler.func
    if not isinstance(handler, FunctionType | MethodType):
        handler = type(handler).__call__ if callable(handler) else None
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None


def unreadable(what: str, error: Exception) -> InvalidInput:
    """Return the InvalidInput for an argument that raised an error when it was read."""
    return InvalidInput(f"{what} cannot be read: {type(error).__name__}{_text(error)}; give a plain value")


def exact_str(text: str) -> str:
    """Return the same text as a plain str: a subclass may override length, hash and equality."""
    return text if type(text) is str else str.__str__(text)


def set_member(struct: msgspec.Struct, field: str, kind: type[StrEnum], setting: str) -> None:
    """Replace the text of a field, which a program may have given, by the member of its enumeration."""
    value = getattr(struct, field)
    if value.__class__ is not kind:
        if value not in tuple(kind):
            raise InvalidSetting(setting, f"must be one of {', '.join(kind)}")
        msgspec.structs.force_setattr(struct, field, kind(value))


def flag(what: str, value: object) -> bool:
    """Return a switch as a bool."""
    if value is True or value is False:
        return bool(value)
    with checking_input(what):
        return bool(value)


def listed(what: str, values: Iterable[Any], most: int) -> tuple[Any, ...]:
    """Return the members of an iterable, which may be infinite: at most `most` + 1 of one that is no list or tuple."""
    if type(values) is tuple or type(values) is list:
        return tuple(values)
    with checking_input(what):
        return tuple(islice(values, most + 1))


def table(what: str, values: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return a dict unchanged, or a copy of another mapping, read once. Raise InvalidInput for a copy over `most`."""
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
