"""A mistake in Redrive's code differs from an exception from outside by the code that it came through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redrive.model.ids import make_id
from redrive.model.item import Status
from redrive.stores.interruption import is_mistake


def handler() -> None:
    raise TimeoutError("too long")


def interrupt() -> None:
    raise KeyboardInterrupt


def within(package: str, call: Callable[[], object]) -> Callable[[], object]:
    """The call, made by a function of another package."""
    functions: dict[str, Any] = {"__name__": f"{package}.module"}
    exec("def within(call):\n    call()", functions)
    return lambda: functions["within"](call)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: make_id("no number", 0), True),  # type: ignore[arg-type]
        (lambda: Status("nowhere"), True),
        (within("contextlib", lambda: make_id("no number", 0)), True),  # type: ignore[arg-type]
        (within("psycopg", lambda: make_id("no number", 0)), False),  # type: ignore[arg-type]
        (within("redrive", handler), False),
        (within("redrive", interrupt), False),
        (handler, False),
    ],
)
def test_mistake_is_raised_by_own_code_and_outside_of_the_driver(call: Callable[[], object], expected: bool) -> None:
    with pytest.raises(BaseException) as raised:  # noqa: PT011
        call()
    assert is_mistake(raised.value, "psycopg") is expected
