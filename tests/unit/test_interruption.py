"""A mistake in Redrive's code differs from an exception from outside by the code that it came through."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from redrive.model.ids import make_id
from redrive.model.item import Status
from redrive.stores.interruption import is_mistake


def handler() -> None:
    raise TimeoutError("too long")


def handler_with_a_mistake() -> None:
    json.loads("{")


def interrupt() -> None:
    raise KeyboardInterrupt


mistake = partial(make_id, "no number", 0)  # type: ignore[arg-type]


def within(package: str, call: Callable[[], object]) -> Callable[[], object]:
    """The call, made by a function of another package."""
    functions: dict[str, Any] = {"__name__": f"{package}.module"}
    exec("def within(call):\n    call()", functions)
    return partial(functions["within"], call)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (mistake, True),
        (partial(Status, "nowhere"), True),
        (within("contextlib", mistake), True),
        (within("psycopg", mistake), False),
        (within("redrive", handler), False),
        (within("redrive", handler_with_a_mistake), False),
        (within("redrive", within("threading", handler_with_a_mistake)), False),
        (within("redrive", interrupt), False),
        (handler, False),
    ],
)
def test_mistake_is_raised_by_own_code_that_no_other_called(call: Callable[[], object], expected: bool) -> None:
    with pytest.raises(BaseException) as raised:  # noqa: PT011
        call()
    own = raised.tb.tb_next  # what a store sees of it
    assert is_mistake(raised.value.with_traceback(own)) is expected
