"""`Broker` and `AsyncBroker` have the same methods with the same parameters."""

import inspect
from typing import Any

import pytest

from redrive import AsyncBroker, Broker, connect, connect_async

ANSWERED_FROM_MEMORY = {"durability"}


def methods(face: type[Any]) -> dict[str, Any]:
    return {name: value for name, value in vars(face).items() if inspect.isfunction(value) and not name.startswith("_")}


def test_both_faces_have_the_same_methods() -> None:
    assert methods(Broker).keys() == methods(AsyncBroker).keys()
    assert len(methods(Broker)) > 20


@pytest.mark.parametrize("name", sorted(methods(Broker)))
def test_parameters_and_results_are_the_same(name: str) -> None:
    blocking, awaited = (inspect.signature(methods(face)[name]) for face in (Broker, AsyncBroker))
    assert str(blocking) == str(awaited)


@pytest.mark.parametrize("name", sorted(methods(Broker)))
def test_documentation_is_the_same(name: str) -> None:
    assert inspect.getdoc(methods(Broker)[name]) == inspect.getdoc(methods(AsyncBroker)[name])


@pytest.mark.parametrize("name", sorted(methods(AsyncBroker).keys() - ANSWERED_FROM_MEMORY))
def test_every_method_of_the_asynchronous_face_is_awaited(name: str) -> None:
    assert inspect.iscoroutinefunction(methods(AsyncBroker)[name])


def test_both_are_opened_in_the_same_way() -> None:
    blocking, awaited = inspect.signature(connect), inspect.signature(connect_async)
    assert blocking.parameters == awaited.parameters


def test_faces_can_be_used_in_a_with_statement() -> None:
    assert {"__enter__", "__exit__"} <= vars(Broker).keys()
    assert {"__aenter__", "__aexit__"} <= vars(AsyncBroker).keys()
