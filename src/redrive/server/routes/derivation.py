"""The conversion of a row of the table into a route.

The function of a row is a method of the broker, or a function whose first parameter is `request`. Its parameters are
the fields of the call, with their defaults, and its docstring describes it: the first clause is the summary. The
vocabulary defines the JSON type of a parameter by its name; an `Annotated` parameter defines its own. A function of
`request` and `call` is the handler itself, and the type of `call` has the fields.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, NamedTuple, get_origin

import msgspec

from redrive.auth.principal import Permission
from redrive.server.request import Request
from redrive.server.route import DirectCall, Route
from redrive.server.routes.vocabulary import WORDS, Word
from redrive.wire.json_views import defined, view_of, view_type


class Answer(NamedTuple):
    """The form of a response: its type in the document, and the function that makes it from the function's result."""

    type: type[Any]
    view: Callable[[Request, Any], Awaitable[Any]]


def row(
    name: str,
    function: Callable[..., Awaitable[Any]],
    permission: Permission,
    answer: Answer | type[Any],
    *,
    example: Mapping[str, Any] = {},
    namespace: str | None = None,
    direct: DirectCall | None = None,
) -> Route:
    """Return the route of a function. If `answer` is a type, the function returns the response itself.

    The example contains the required fields, and `example`.
    """
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    text = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
    shape = answer if isinstance(answer, Answer) else plain(answer, lambda value: value)
    route = partial(
        Route,
        name=name,
        summary=re.split("[.:;] ", text)[0].removesuffix("."),
        response_type=shape.type,
        permission=permission,
        namespace=namespace,
        direct=direct,
    )
    if parameters[-1].name == "call":
        return route(request_type=parameters[-1].annotation, handler=function, example=example)
    takes_request = parameters.pop(0).name == "request"
    words = {each.name: _word(function, each) for each in parameters}
    request_type = msgspec.defstruct(
        "".join(part.title() for part in re.split("[._]", name)) + "Call",
        [_field(each, words[each.name]) for each in parameters],
        namespace={"__doc__": text},
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    required = [field.name for field in msgspec.structs.fields(request_type) if field.required]

    async def handle(request: Request, call: Any) -> Any:
        given = _arguments(request, call, words)
        # By name: a bound broker overrides some methods.
        method = partial(function, request) if takes_request else getattr(request.broker, function.__name__)
        return await shape.view(request, await method(**given))

    shown = {name: words[name].example for name in required} | dict(example)
    return route(request_type=request_type, handler=handle, example=shown)


def _arguments(request: Request, call: Any, words: Mapping[str, Word]) -> dict[str, Any]:
    """Return the arguments of the function, converted from the fields of the call."""
    given: dict[str, Any] = {}
    for name, word in words.items():
        value = getattr(call, name)
        read = value if word.read is None or value is None else word.read(request, value)
        given |= read if word.is_spread else {name: read}
    return given


def _word(function: Callable[..., Any], parameter: Parameter) -> Word:
    """Return the JSON form of a parameter."""
    if _is_annotated(parameter):
        return Word(parameter.annotation)
    word = WORDS.get(f"{function.__name__}.{parameter.name}") or WORDS.get(parameter.name)
    if word is None:
        raise TypeError(f"{function.__qualname__}: the vocabulary of calls in JSON has no word {parameter.name!r}")
    return word


def _field(parameter: Parameter, word: Word) -> tuple[str, Any] | tuple[str, Any, Any]:
    """Return a field of the call: optional if the parameter has a default, or collects keyword arguments."""
    kind = word.type | None if parameter.default is None and not _is_annotated(parameter) else word.type
    if word.text is not None:
        kind = Annotated[kind, msgspec.Meta(description=word.text)]
    if word.required:
        return (parameter.name, kind)
    if word.is_spread:
        return (parameter.name, kind, {})
    return (parameter.name, kind) if parameter.default is Parameter.empty else (parameter.name, kind, parameter.default)


def _is_annotated(parameter: Parameter) -> bool:
    return get_origin(parameter.annotation) is Annotated


def plain(kind: type[Any], view: Callable[[Any], Any]) -> Answer:
    """Return the answer that `view` makes from the value alone."""

    async def made(request: Request, value: Any) -> Any:
        return view(value)

    return Answer(kind, made)


def whole(kind: type[msgspec.Struct]) -> Answer:
    """Return the answer that is the view of the value."""
    return plain(view_type(kind), view_of)


def one(field: str, kind: type[msgspec.Struct], name: str, text: str) -> Answer:
    """Return the answer with the value in one field."""
    return plain(defined(name, [(field, view_type(kind))], text), lambda value: {field: view_of(value)})


def many(field: str, kind: type[msgspec.Struct], name: str, text: str) -> Answer:
    """Return the answer with a list of values in one field."""
    answer = defined(name, [(field, list[view_type(kind)])], text)  # type: ignore[misc]
    return plain(answer, lambda values: {field: [view_of(value) for value in values]})


def number(field: str, name: str, text: str) -> Answer:
    """Return the answer with a number in one field."""
    return plain(defined(name, [(field, int)], text), lambda value: {field: value})
