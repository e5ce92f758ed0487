"""Declarations of options, read: types and bounds of the keys of a TypedDict, and the texts under them.

Texts are docstrings in the source, where people and editors expect them. Where the source is not installed, there are
none: help is shorter, and nothing else changes.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

from msgspec import Meta

_F = TypeVar("_F", bound=Callable[..., Any])
_CACHE = lru_cache(maxsize=None)


class Option(NamedTuple):
    """What is declared of one option."""

    type: Any
    """What it takes, beside None."""
    is_optional: bool
    """Whether None may be given."""
    bounds: Meta
    """The least and the most that it may be."""
    choices: type[StrEnum] | None
    """The words that it takes, if these are all."""


@_CACHE
def options_of(declared: Any) -> Mapping[str, Option]:
    """All options of a declaration, by name."""
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
    """What each option means, by name."""
    module = sys.modules[declared.__module__]
    found = _classes(declared.__module__).get(declared.__name__)
    if found is None:
        return dict.fromkeys(declared.__annotations__, "")
    texts: dict[str, str] = {}
    for base in found.bases:
        if isinstance(base, ast.Name) and base.id != "TypedDict":
            texts.update(texts_of(getattr(module, base.id)))
    return {**texts, **dict(_documented(found.body))}


@_CACHE
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    try:
        source = inspect.getsource(sys.modules[module])
    except OSError:
        return {}
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for key, below in pairwise(body):
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name) and isinstance(below, ast.Expr):
            yield key.target.id, " ".join(str(ast.literal_eval(below.value)).split())


def lists_options(declared: Any) -> Callable[[_F], _F]:
    """Add what each option means to the docstring of a function, for `help`."""

    def add(function: _F) -> _F:
        texts = "\n".join(f"{name}: {text}" for name, text in texts_of(declared).items())
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{texts}"
        return function

    return add
