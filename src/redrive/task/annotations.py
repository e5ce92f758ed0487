"""The annotations of a function: resolved when they are needed, and refused where they cannot be read from JSON."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Union

import msgspec

from redrive.errors import ArgumentsInvalid
from redrive.model.judge import Again, Dead
from redrive.task.context import Context
from redrive.task.outcomes import Release, Retry

_SEEMS_CONTEXT = re.compile(r"[\"']?(\w+\.)*Context( *\| *None)?[\"']?")
_OUTCOMES = (Retry, Release, Dead, Again)


class Hints:
    """What the names in a function's annotations mean."""

    def __init__(self, function: Callable[..., Any]) -> None:
        innermost: Any = inspect.unwrap(function)
        if not inspect.isroutine(innermost):
            innermost = type(innermost).__call__
        self._globals: dict[str, Any] = getattr(innermost, "__globals__", {})
        self._innermost = innermost

    def of(self, task: str, parameter: inspect.Parameter) -> Any:
        """The type of a parameter; anything where it has none."""
        try:
            return self._resolved(parameter.annotation)
        except Exception as error:
            if self.seems_context(parameter.annotation):  # imported for type checkers only
                return Context
            problem = f"the type of {parameter.name} cannot be told: {error}; import it where the task is defined"
            raise ArgumentsInvalid(task, problem) from error

    def of_return(self, annotation: Any) -> Any:
        """What the function says that it returns; None where it says nothing, or nothing that can be resolved."""
        try:
            return None if annotation is inspect.Signature.empty else self._resolved(annotation)
        except Exception:
            return None

    @staticmethod
    def seems_context(annotation: Any) -> bool:
        """Whether it is the context, as far as can be told without resolving names."""
        if isinstance(annotation, str):
            return _SEEMS_CONTEXT.fullmatch(annotation) is not None
        return is_context(annotation)

    def _resolved(self, annotation: Any) -> Any:
        if annotation is inspect.Parameter.empty:
            return Any
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        return typing.get_type_hints(holder, self._globals, self._locals(), include_extras=True)["it"]

    def _locals(self) -> dict[str, Any]:
        """What the function can see of the functions around it."""
        try:
            return dict(inspect.getclosurevars(self._innermost).nonlocals)
        except (TypeError, ValueError):
            return {}


def is_context(kind: Any) -> bool:
    """Whether a parameter of that type is given the context."""
    return kind is Context or (_is_union(kind) and set(typing.get_args(kind)) == {Context, type(None)})


def without_outcomes(kind: Any) -> Any:
    """The type of the results alone, without what a handler returns to steer; None where nothing is left."""
    if not _is_union(kind):
        return None if kind in _OUTCOMES else kind
    left = tuple(each for each in typing.get_args(kind) if each not in _OUTCOMES)
    return Union[left] if left else None  # noqa: UP007  # there may be one, or many


def check_type(task: str, name: str, kind: Any) -> None:
    """Raise unless values of that type can be read from JSON."""
    try:
        info = msgspec.inspect.type_info(kind)
    except (TypeError, ValueError) as error:
        raise ArgumentsInvalid(task, f"the type of {name} cannot be read from JSON: {error}") from None
    for each in _within(info, set()):
        if isinstance(each, msgspec.inspect.CustomType):
            cls: Any = each.cls
            shown = f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
            raise ArgumentsInvalid(
                task,
                f"the type of {name} cannot be read from JSON: {shown} is a class of its own; make it a dataclass or a "
                f"msgspec.Struct, or take what it is made of",
            )


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (Union, types.UnionType)


def _within(info: Any, seen: set[int]) -> Iterator[Any]:
    """A type and all that it is made of."""
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.Type):
        yield info
    for name in getattr(info, "__struct_fields__", ()):
        value = getattr(info, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field):
                yield from _within(part, seen)
