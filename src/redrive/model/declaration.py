"""A reader of option declarations: types and bounds of the keys of a TypedDict, and the texts under them.

Texts are docstrings in the source, where readers and editors expect them. If the source is not installed, they are
empty: help is shorter, and nothing else changes.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

from msgspec import Meta

_F = TypeVar("_F", bound=Callable[..., Any])
_CACHE = lru_cache(maxsize=None)
_CLASS = re.compile(r"^class (\w+)\((.*)\):\n", re.MULTILINE)
_KEY = re.compile(r'^    (\w+): [^\n]+\n    """(.*?)"""$', re.MULTILINE | re.DOTALL)


class Option(NamedTuple):
    """The declaration of one option."""

    type: Any
    """The type that it accepts, without None."""
    is_optional: bool
    """True if it accepts None."""
    bounds: Meta
    """Its minimum and maximum."""
    choices: type[StrEnum] | None
    """The enumeration that it accepts, if it is limited to one."""


@_CACHE
def options_of(declared: Any) -> Mapping[str, Option]:
    """Return all options of a declaration, by name."""
    return {name: _option(hint) for name, hint in declared.__annotations__.items()}


def _option(hint: Any) -> Option:
    parts = [part for part in get_args(hint) if part is not NoneType]
    is_optional = NoneType in get_args(hint)
    kind: Any = Union[tuple(parts)] if is_optional else hint  # noqa: UP007  # made of parts
    words = (part for part in parts if isinstance(part, type) and issubclass(part, StrEnum))
    if get_origin(kind) is Annotated:
        return Option(kind.__origin__, is_optional, kind.__metadata__[0], None)
    return Option(kind, is_optional, Meta(), next(words, None))


@_CACHE
def texts_of(declared: Any) -> Mapping[str, str]:
    """Return the description of each option, by name, with those inherited from the bases."""
    bases, body = _classes(declared.__module__).get(declared.__name__, ("", ""))
    texts = dict.fromkeys(declared.__annotations__, "")
    for base in bases.split(", "):
        if base != "TypedDict" and (inherited := getattr(sys.modules[declared.__module__], base, None)):
            texts |= texts_of(inherited)
    return texts | {name: " ".join(text.split()) for name, text in _KEY.findall(body) if name in texts}


@_CACHE
def _classes(module: str) -> Mapping[str, tuple[str, str]]:
    """Return the bases and the body of each class, found by a pattern: parsing the source takes five times as long."""
    try:
        _, *parts = _CLASS.split(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {name: (bases, body) for name, bases, body in zip(*(parts[start::3] for start in range(3)), strict=True)}


def lists_options(declared: Any) -> Callable[[_F], _F]:
    """Return a decorator that adds the description of each option to the docstring of a function, for `help`."""

    def add(function: _F) -> _F:
        texts = "\n".join(f"{name}: {text}" for name, text in texts_of(declared).items())
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{texts}"
        return function

    return add
