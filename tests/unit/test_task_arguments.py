"""Arguments of tasks: written as JSON by name, checked by the types of the function, and read back as those types."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import App, Context, Dead, Retry
from redrive.errors import InvalidArguments, InvalidInput
from redrive.model.item import Result
from redrive.model.payload import BYTES, JSON
from redrive.task.arguments import Arguments, Undecodable

if TYPE_CHECKING:
    import redrive
    from redrive.model.item import Nonsense  # type: ignore[attr-defined]


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    article: str
    count: int = 1


class Order(msgspec.Struct):
    number: int
    lines: list[Line] = []


class Custom:
    pass


def plain(to: str, subject: str = "hi", *, copies: int = 1) -> None: ...
def nothing() -> None: ...
def untyped(a, b=2): ...  # type: ignore[no-untyped-def]
def spread(first: int, /, second: int = 2, *rest: int, flag: bool = False, **named: str) -> None: ...
def with_context(to: str, *, context: Context) -> None: ...
def context_first(context: Context, to: str) -> None: ...
def context_for_checkers(to: str, context: "redrive.Context") -> None: ...
def context_maybe(to: str, context: Context | None = None) -> None: ...
def two_contexts(a: Context, b: Context) -> None: ...
def forward(later: "Later") -> "Later": ...  # type: ignore[empty-body]
def mutable(numbers: list[int] = [1, 2]) -> None: ...  # noqa: B006


class Later(msgspec.Struct):
    value: int


def arguments(function: Callable[..., Any]) -> Arguments:
    return Arguments("send", function)


def there_and_back(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    made = arguments(function)
    back, named = made.bind(made.encode(args, kwargs), JSON, None)
    return list(back), named


def test_payload_is_an_object_of_the_arguments_by_name() -> None:
    payload = arguments(plain).encode(("ann@example.com",), {"copies": 2})
    assert json.loads(payload) == {"to": "ann@example.com", "copies": 2}


def test_same_call_is_the_same_payload_however_it_is_written() -> None:
    made = arguments(plain)
    calls = [
        made.encode(("ann", "x"), {"copies": 2}),
        made.encode(("ann",), {"copies": 2, "subject": "x"}),
        made.encode((), {"copies": 2, "subject": "x", "to": "ann"}),
    ]
    assert set(calls) == {b'{"to":"ann","subject":"x","copies":2}'}


def test_defaults_are_left_to_the_function() -> None:
    assert there_and_back(plain, "ann") == ([], {"to": "ann"})
    assert there_and_back(mutable) == ([], {})


def test_function_without_arguments_has_an_empty_object() -> None:
    assert arguments(nothing).encode((), {}) == b"{}"
    assert there_and_back(nothing) == ([], {})


def test_arguments_without_a_type_come_as_json_has_them() -> None:
    assert there_and_back(untyped, [1, "x"], b={"y": None}) == ([], {"a": [1, "x"], "b": {"y": None}})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 3),
        (float, 0.5),
        (str, "x\0y"),
        (bytes, b"\0\xff"),
        (date, date(2026, 3, 1)),
        (datetime, datetime(2026, 3, 1, 12, tzinfo=UTC)),
        (timedelta, timedelta(seconds=90)),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("0.10")),
        (Colour, Colour.RED),
        (Line, Line("chair", 4)),
        (Order, Order(1, [Line("table")])),
        (list[Line], [Line("chair")]),
        (dict[str, date], {"a": date(2026, 1, 1)}),
        (dict[int, str], {1: "one"}),
        (set[int], {1, 2}),
        (tuple[int, str], (1, "x")),
        (int | None, None),
        (Annotated[int, msgspec.Meta(ge=0)], 0),
        (Any, {"x": [1]}),
    ],
    ids=str,
)
def test_value_of_a_type_comes_back_as_it_was(kind: Any, value: Any) -> None:
    def function(value): ...  # type: ignore[no-untyped-def]

    function.__annotations__["value"] = kind
    assert there_and_back(function, value) == ([], {"value": value})


@given(st.integers(), st.lists(st.integers()), st.booleans(), st.dictionaries(st.text(max_size=5), st.text()))
def test_positional_spread_and_named_arguments_come_back(
    first: int, rest: list[int], flag: bool, named: dict[str, str]
) -> None:
    named = {key: value for key, value in named.items() if key not in ("flag", "second")}
    expected = ([first, 5, *rest], {"flag": flag, **named})
    assert there_and_back(spread, first, 5, *rest, flag=flag, **named) == expected


def test_positional_argument_that_is_left_out_is_the_default() -> None:
    assert there_and_back(spread, 1) == ([1, 2], {})


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((17,), {}, "to: Expected `str`, got `int`"),
        ((), {}, "missing a required argument: 'to'"),
        (("ann",), {"bcc": "x"}, "got an unexpected keyword argument 'bcc'"),
        (("ann",), {"subjct": "x"}, "got an unexpected keyword argument 'subjct' (did you mean subject?)"),
        (("ann", "hi", 3), {}, "too many positional arguments"),
        (("ann",), {"to": "bob"}, "multiple values for argument 'to'"),
        (("ann",), {"copies": float("nan")}, "copies is nan, which JSON cannot hold; use null or a text"),
        (("ann",), {"subject": Custom()}, "subject cannot be written as JSON"),
        (("a\ud800",), {}, "to has a lone surrogate"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_given(
    args: tuple[Any, ...], kwargs: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidArguments) as refused:
        arguments(plain).encode(args, kwargs)
    assert isinstance(refused.value, InvalidInput)
    assert refused.value.task == "send"
    assert refused.value.problem.startswith(problem)


def test_error_names_the_place_inside_an_argument() -> None:
    def function(lines: list[Line]) -> None: ...

    with pytest.raises(InvalidArguments, match=r"lines\[1\]\.count: Expected `int`, got `str`"):
        arguments(function).encode(([{"article": "a"}, {"article": "b", "count": "two"}],), {})


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b'{"to": "\xff"}', b"[" * 100_000])
def test_payload_that_is_not_json_is_undecodable(payload: bytes) -> None:
    with pytest.raises((Undecodable, InvalidArguments)) as refused:
        arguments(plain).bind(payload, JSON, None)
    # Of brackets without end, the first one says already that this is no object.
    assert refused.type is (InvalidArguments if payload.startswith(b"[") else Undecodable)


def test_nesting_without_end_is_undecodable() -> None:
    with pytest.raises(Undecodable):
        arguments(untyped).bind(b'{"a":' * 100_000, JSON, None)


def test_payload_of_another_content_type_is_undecodable() -> None:
    with pytest.raises(Undecodable, match="application/octet-stream"):
        arguments(plain).bind(b'{"to": "ann"}', BYTES, None)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"{}", "missing a required argument: 'to'"),
        (b'{"to": 1}', "to: Expected `str`, got `int`"),
        (b'{"to": "x", "bcc": 1}', "got an unexpected keyword argument 'bcc'"),
        (b'["x"]', "Expected `object`, got `array`"),
    ],
)
def test_json_that_does_not_fit_names_the_argument(payload: bytes, problem: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        arguments(plain).bind(payload, JSON, None)
    assert refused.value.problem == problem


@pytest.mark.parametrize("function", [with_context, context_first, context_for_checkers, context_maybe])
def test_context_is_given_and_is_no_argument(function: Callable[..., Any]) -> None:
    context: Any = object()
    made = arguments(function)
    assert json.loads(made.encode(("ann",), {})) == {"to": "ann"}
    assert made.bind(b'{"to": "ann"}', JSON, context)[1] == {"to": "ann", "context": context}
    with pytest.raises(InvalidArguments):
        made.bind(b'{"to": "ann", "context": {}}', JSON, context)
    assert made.required == ("to",)


def test_two_parameters_for_the_context_are_refused() -> None:
    with pytest.raises(InvalidArguments, match="two parameters for the context"):
        arguments(two_contexts).check()


def test_type_that_is_defined_below_the_function_is_found_when_it_is_needed() -> None:
    assert there_and_back(forward, Later(1)) == ([], {"later": Later(1)})


def test_type_of_a_function_around_is_found() -> None:
    class Inner(msgspec.Struct):
        value: int

    def function(inner: "Inner") -> int:
        return Inner(inner.value).value

    assert there_and_back(function, Inner(3)) == ([], {"inner": Inner(3)})


def test_type_that_cannot_be_told_is_an_error_that_names_task_and_parameter() -> None:
    def function(thing: "Nonsense") -> None: ...

    with pytest.raises(InvalidArguments, match=r"task 'send': the type of thing cannot be resolved: .*Nonsense"):
        arguments(function).check()


@pytest.mark.parametrize(
    "kind", [Custom, list[Custom], dict[str, Custom | None], complex, int | list[int] | set[int]], ids=str
)
def test_type_that_cannot_be_read_from_json_is_an_error_that_names_task_and_parameter(kind: Any) -> None:
    def function(thing): ...  # type: ignore[no-untyped-def]

    function.__annotations__["thing"] = kind
    with pytest.raises(InvalidArguments, match="task 'send': the type of thing cannot be read from JSON"):
        arguments(function).check()


def test_app_checks_all_of_its_tasks() -> None:
    app = App("memory://")

    @app.queue("jobs").task
    def broken(thing: Custom) -> None: ...

    with pytest.raises(InvalidArguments, match="task 'broken'"):
        app.check()


def result(value: object) -> Result:
    return Result(msgspec.json.encode(value), JSON)


def test_result_comes_as_the_type_that_the_function_says() -> None:
    def due() -> date: ...  # type: ignore[empty-body]
    def steered() -> Line | Retry | Dead: ...  # type: ignore[empty-body]
    def silent(): ...  # type: ignore[no-untyped-def]
    def unknown() -> "Nonsense": ...

    assert arguments(due).returned(result("2026-03-01")) == date(2026, 3, 1)
    assert arguments(steered).returned(result({"article": "chair"})) == Line("chair")
    assert arguments(silent).returned(result({"x": 1})) == {"x": 1}
    assert arguments(unknown).returned(result([1])) == [1]


def test_result_of_another_type_than_the_function_says_comes_as_it_is() -> None:
    def number() -> int: ...  # type: ignore[empty-body]

    assert arguments(number).returned(result("three")) == "three"
