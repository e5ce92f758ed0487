"""How a row of the table becomes a route.

The function of a row is a method of the broker, or a function whose first parameter is `request`. Its parameters are
the fields of the call, with their defaults, and its docstring describes it: the first clause is the summary. The
vocabulary says what a parameter is in JSON, by its name; a parameter that is `Annotated` says it itself. A function of
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
    """The shape of an answer: its type in the document, and how it is made of what the function returns."""

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
    """The route of a function. An answer that is a type is what the function returns.

    The example says what every call must say, and what the row adds.
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
        # The method by its name: a broker that is bound to a caller overrides some.
        method = partial(function, request) if takes_request else getattr(request.broker, function.__name__)
        return await shape.view(request, await method(**given))

    shown = {name: words[name].example for name in required} | dict(example)
    return route(request_type=request_type, handler=handle, example=shown)


def _arguments(request: Request, call: Any, words: Mapping[str, Word]) -> dict[str, Any]:
    """What the function is called with: the fields of the call, read."""
    given: dict[str, Any] = {}
    for name, word in words.items():
        value = getattr(call, name)
        read = value if word.read is None or value is None else word.read(request, value)
        given |= read if word.is_spread else {name: read}
    return given


def _word(function: Callable[..., Any], parameter: Parameter) -> Word:
    """What a parameter is in JSON."""
    if _is_annotated(parameter):
        return Word(parameter.annotation)
    word = WORDS.get(f"{function.__name__}.{parameter.name}") or WORDS.get(parameter.name)
    if word is None:
        raise TypeError(f"{function.__qualname__}: the vocabulary of calls in JSON has no word {parameter.name!r}")
    return word


def _field(parameter: Parameter, word: Word) -> tuple[str, Any] | tuple[str, Any, Any]:
    """A field of the call: optional where the parameter has a default, or collects what is given by name."""
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
    """What is made of the value alone."""

    async def made(request: Request, value: Any) -> Any:
        return view(value)

    return Answer(kind, made)


def whole(kind: type[msgspec.Struct]) -> Answer:
    """The value itself."""
    return plain(view_type(kind), view_of)


def one(field: str, kind: type[msgspec.Struct], name: str, text: str) -> Answer:
    """The value as a field."""
    return plain(defined(name, [(field, view_type(kind))], text), lambda value: {field: view_of(value)})


def many(field: str, kind: type[msgspec.Struct], name: str, text: str) -> Answer:
    """A list of values as a field."""
    answer = defined(name, [(field, list[view_type(kind)])], text)  # type: ignore[misc]
    return plain(answer, lambda values: {field: [view_of(value) for value in values]})


def number(field: str, name: str, text: str) -> Answer:
    """How many, as a field."""
    return plain(defined(name, [(field, int)], text), lambda value: {field: value})
