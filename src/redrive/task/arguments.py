"""Arguments: a call is encoded as a JSON object of named arguments, and decoded to a call again, checked by type.

The types are the annotations of the function. They are resolved at the first use, so a function may name types that
are defined below it; annotations that cannot be read from JSON are refused.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, NamedTuple, Union

import msgspec
from msgspec import UNSET, UnsetType

from redrive.errors import InvalidArguments, InvalidPayload, RedriveError
from redrive.model.caller_input import is_of_a_signal, unreadable
from redrive.model.item import Result
from redrive.model.judge import Dead, RetryVerdict
from redrive.model.limits import MAX_STORABLE_BYTES
from redrive.model.payload import encode_payload, is_json
from redrive.model.text import suggest
from redrive.task.context import Context, Release, Retry

_SEEMS_CONTEXT = re.compile(r"[\"']?(\w+\.)*Context( *\| *None)?[\"']?")
_OUTCOMES = (Retry, Release, Dead, RetryVerdict)


class TypeHints:
    """The types that the annotations of a function name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        innermost: Any = inspect.unwrap(function)
        if not inspect.isroutine(innermost):
            innermost = type(innermost).__call__
        self._globals: dict[str, Any] = getattr(innermost, "__globals__", {})
        self._innermost = innermost

    def of(self, task: str, parameter: inspect.Parameter) -> Any:
        """Return the type of a parameter; Any if it has none."""
        try:
            return self._resolved(parameter.annotation)
        except Exception as error:
            if self.seems_context(parameter.annotation):  # imported for type checkers only
                return Context
            problem = f"the type of {parameter.name} cannot be resolved: {error}; import it where the task is defined"
            raise InvalidArguments(task, problem) from error

    def return_type(self, annotation: Any) -> Any:
        """Return the annotated return type; None without annotation, or if it cannot be resolved."""
        try:
            return None if annotation is inspect.Signature.empty else self._resolved(annotation)
        except Exception:
            return None

    @staticmethod
    def seems_context(annotation: Any) -> bool:
        """Return whether it is the context, as far as is known without resolving names."""
        if isinstance(annotation, str):
            return _SEEMS_CONTEXT.fullmatch(annotation) is not None
        return is_context(annotation)

    def _resolved(self, annotation: Any) -> Any:
        if annotation is inspect.Parameter.empty:
            return Any
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        return typing.get_type_hints(holder, self._globals, self._locals(), include_extras=True)["it"]

    def _locals(self) -> dict[str, Any]:
        """Return the variables of enclosing functions that the function refers to."""
        try:
            return dict(inspect.getclosurevars(self._innermost).nonlocals)
        except (TypeError, ValueError):
            return {}


def is_context(kind: Any) -> bool:
    """Return whether a parameter of that type receives the context."""
    return kind is Context or (_is_union(kind) and set(typing.get_args(kind)) == {Context, type(None)})


def strip_outcome_types(kind: Any) -> Any:
    """Return the type of the results, without outcomes such as `Retry`; None if nothing is left."""
    if not _is_union(kind):
        return None if kind in _OUTCOMES else kind
    left = tuple(each for each in typing.get_args(kind) if each not in _OUTCOMES)
    return Union[left] if left else None  # noqa: UP007  # there may be one, or many


def check_type(task: str, name: str, kind: Any) -> None:
    """Raise InvalidArguments unless values of that type can be read from JSON."""
    try:
        info = msgspec.inspect.type_info(kind)
    except (TypeError, ValueError) as error:
        raise InvalidArguments(task, f"the type of {name} cannot be read from JSON: {error}") from None
    for each in _within(info, set()):
        if isinstance(each, msgspec.inspect.CustomType):
            cls: Any = each.cls
            raise InvalidArguments(
                task,
                f"the type of {name} cannot be read from JSON: {_shown(cls)} is a custom class; make it a dataclass or "
                f"a msgspec.Struct, or take what it is made of",
            )


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (Union, types.UnionType)


def _within(info: Any, seen: set[int]) -> Iterator[Any]:
    """Yield a type and all types that it is made of."""
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


_SPREAD = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_AT = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"^Object missing required field `(.*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$")


class Undecodable(Exception):
    """An error for a payload that is not JSON, so that the arguments are unknown."""


class _Plan(NamedTuple):
    """The rules to encode and decode calls of one function."""

    signature: inspect.Signature
    """The signature without the context."""
    context: str | None
    """The parameter that receives the context."""
    decode: Callable[[bytes], Any]
    names: tuple[str, ...]
    """The parameters except the context."""
    positional: tuple[str, ...]
    """Those of them that can be passed by position."""
    by_name: bool
    """True if every argument can be passed by its name."""
    convert: Callable[[dict[str, Any]], Any]
    """Return arguments as `decode` does, without JSON: what the annotations make of them."""


class Arguments:
    """The arguments of one task."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self._task = task
        self._hints = TypeHints(function)
        self._signature = inspect.signature(function)
        self._made: _Plan | None = None
        self._returns: Any = UNSET

    @property
    def required(self) -> tuple[str, ...]:
        """Arguments without which the function cannot be called, as far as is known without resolving the types."""
        parameters = self._signature.parameters.values()
        given = [each for each in parameters if each.default is each.empty and each.kind not in _SPREAD]
        return tuple(each.name for each in given if not self._hints.seems_context(each.annotation))

    def check(self) -> None:
        """Raise `InvalidArguments` if the type of a parameter cannot be resolved, or read from JSON."""
        self._made or self._make()

    def encode(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """Return the payload of a call. Raises `InvalidArguments` if the function does not accept these arguments."""
        plan = self._made or self._make()
        return self._encode(plan, self._given(plan, args, kwargs))[0]

    def encode_exactly(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """Return the payload of a call. Raises `InvalidArguments` also for an argument that does not come back equal:
        neither as it was given, nor as its annotation says."""
        plan = self._made or self._make()
        given = self._given(plan, args, kwargs)
        payload, read = self._encode(plan, given)
        for name, value in given.items():
            found = getattr(read, name)
            if (problem := _difference(name, value, found)) and _difference(
                name, _as_annotated(plan, given, name), found
            ):
                raise InvalidArguments(self._task, f"{problem}; annotate the parameter with its type")
        return payload

    def _encode(self, plan: _Plan, given: dict[str, Any]) -> tuple[bytes, Any]:
        """Return the payload of arguments, and what is read back from it."""
        try:
            payload, _ = encode_payload(
                {name: self._builtins(name, value) for name, value in given.items()}, None, MAX_STORABLE_BYTES
            )
        except InvalidPayload as error:
            raise InvalidArguments(self._task, f"{error.path.removeprefix('$.')} {error.problem}") from None
        try:
            return payload, self._read(plan, payload)
        except (RedriveError, Undecodable):
            raise
        except Exception as error:  # from a type of the caller, which is built from the payload
            if is_of_a_signal(error):
                raise
            raise InvalidArguments(self._task, str(unreadable("what was given", error))) from error

    def bind(self, payload: bytes, content_type: str, context: Context | None) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments of a call. Raises `Undecodable`, or `InvalidArguments` if the JSON does not fit."""
        plan = self._made or self._make()
        if not is_json(content_type):
            raise Undecodable(f"the payload is {content_type!r:.80}, and arguments of a task are JSON")
        values = self._read(plan, payload)
        if not plan.by_name:
            return self._positions(plan, values, context)
        kwargs = {name: value for name in plan.names if (value := getattr(values, name)) is not UNSET}
        if plan.context is not None:
            kwargs[plan.context] = context
        return (), kwargs

    def returned(self, result: Result) -> Any:
        """Return what the function returned, as its annotated type if that is possible, else as in JSON."""
        if self._returns is UNSET:
            self._returns = strip_outcome_types(self._hints.return_type(self._signature.return_annotation))
        if self._returns is not None and is_json(result.content_type):
            try:
                return msgspec.json.decode(result.payload, type=self._returns)
            except (msgspec.MsgspecError, TypeError, ValueError):
                pass  # the value does not fit the annotation
        return result.value

    def _make(self) -> _Plan:
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        kept: list[inspect.Parameter] = []
        context: str | None = None
        for parameter in self._signature.parameters.values():
            found = self._hints.of(self._task, parameter)
            if is_context(found):
                if context is not None:
                    raise InvalidArguments(
                        self._task, f"has two parameters for the context, {context} and {parameter.name}"
                    )
                context = parameter.name
                continue
            check_type(self._task, parameter.name, found)
            kept.append(parameter)
            fields.append(_field(parameter, found))
        table = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self._made = _Plan(
            self._signature.replace(parameters=kept),
            context,
            msgspec.json.Decoder(table).decode,
            tuple(parameter.name for parameter in kept),
            tuple(parameter.name for parameter in kept if parameter.kind is parameter.POSITIONAL_OR_KEYWORD),
            all(parameter.kind in _BY_NAME for parameter in self._signature.parameters.values()),
            partial(msgspec.convert, type=table),
        )
        return self._made

    def _given(self, plan: _Plan, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return arguments by name, in the order of the signature: equal calls have equal payloads."""
        if plan.by_name and len(args) <= len(plan.positional):
            named = dict(zip(plan.positional, args, strict=False))
            if not kwargs:
                return named
            if named.keys().isdisjoint(kwargs):
                named.update(kwargs)
                given = {name: named[name] for name in plan.names if name in named}
                if len(given) == len(named):
                    return given
        try:
            # Several times slower, but it reports every kind of invalid call.
            return plan.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidArguments(self._task, f"{error}{_meant(kwargs, plan.names)}") from None

    def _read(self, plan: _Plan, payload: bytes) -> Any:
        try:
            return plan.decode(payload)
        except msgspec.ValidationError as error:
            raise InvalidArguments(self._task, _told(str(error))) from None
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise Undecodable(f"the payload cannot be read as JSON: {error}") from None

    def _positions(self, plan: _Plan, values: Any, context: Context | None) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments of a function with positional-only or variadic parameters."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self._signature.parameters.values():
            value: Any = context if parameter.name == plan.context else getattr(values, parameter.name)
            match parameter.kind:
                case parameter.VAR_POSITIONAL:
                    args += () if value is UNSET else value
                case parameter.VAR_KEYWORD:
                    kwargs.update({} if value is UNSET else value)
                case parameter.KEYWORD_ONLY:
                    if value is not UNSET:
                        kwargs[parameter.name] = value
                case _:
                    args.append(parameter.default if value is UNSET else value)
        return args, kwargs

    def _builtins(self, name: str, value: Any) -> Any:
        try:
            return msgspec.to_builtins(value, str_keys=True)
        except Exception as error:
            if is_of_a_signal(error):
                raise
            if isinstance(error, TypeError | ValueError | RecursionError | OverflowError):
                raise InvalidArguments(self._task, f"{name} cannot be written as JSON: {error}") from None
            raise InvalidArguments(self._task, str(unreadable(name, error))) from error


def _field(parameter: inspect.Parameter, kind: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    """Return a field of the payload. If it is omitted in a call, the default of the function applies."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        kind = list[kind]
    elif parameter.kind is parameter.VAR_KEYWORD:
        kind = dict[str, kind]
    elif parameter.default is parameter.empty:
        return parameter.name, kind
    return parameter.name, Union[kind, UnsetType], UNSET  # noqa: UP007  # `|` does not take every kind of hint


def _as_annotated(plan: _Plan, given: dict[str, Any], name: str) -> Any:
    """Return an argument as its annotation says; as it was given, if the arguments do not fit all annotations."""
    try:
        return getattr(plan.convert(given), name)
    except Exception as error:
        if is_of_a_signal(error):
            raise
        return given[name]


def _difference(where: str, given: Any, read: Any) -> str | None:
    """Return what a value lost in JSON, and where; None if it is equal."""
    kind, came = type(given), type(read)
    try:
        if read == given or (isinstance(given, Decimal) and given.is_nan() and str(read) == str(given)):
            return None
    except Exception as error:  # an `__eq__` of the caller
        if is_of_a_signal(error):
            raise
    parts: Iterable[tuple[str, Any, Any]]
    if isinstance(given, dict) and isinstance(read, dict):
        if (key := next((key for key in given if key not in read), None)) is not None:
            return f"{where} has a key that is {_shown(type(key))}, and would come back as str"
        parts = ((f"{where}[{str(key)[:40]!r}]", each, read[key]) for key, each in given.items())
    elif kind is came and isinstance(given, list | tuple) and len(given) == len(read):
        parts = ((f"{where}[{at}]", *pair) for at, pair in enumerate(zip(given, read, strict=True)))
    elif kind is came and (names := fields_of(kind)):  # type: ignore[arg-type]  # equal if its fields are
        parts = ((f"{where}.{name}", getattr(given, name), getattr(read, name)) for name in names)
    else:
        return f"{where} is {_shown(kind)}, and would come back as {_shown(came)}"
    return next(filter(None, (_difference(*part) for part in parts)), None)


@lru_cache(maxsize=1024)
def fields_of(kind: type) -> tuple[str, ...]:
    """Return the fields of a record that can be written as JSON: a struct, a dataclass or a class of attrs."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return tuple(
        getattr(kind, "__dataclass_fields__", None) or [each.name for each in getattr(kind, "__attrs_attrs__", ())]
    )


def _shown(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _meant(given: Iterable[str], names: Sequence[str]) -> str:
    """Return a suggestion for the first argument that the function does not have, or an empty text."""
    return next((suggest(name, names, {}) for name in given if name not in names), "")


def _told(text: str) -> str:
    """Translate what msgspec reports of a JSON object into a text about arguments."""
    if missing := _MISSING.match(text):
        return f"missing a required argument: '{missing[1]}'"
    if unknown := _UNKNOWN.match(text):
        return f"got an unexpected keyword argument '{unknown[1]}'"
    at = _AT.search(text)
    return f"{at[1]}: {text[: at.start()]}" if at and at[1] else text
