"""`Broker` and `AsyncBroker` have the same methods with the same parameters."""

import inspect
import re
import sys
from typing import Any

import pytest

import redrive
from redrive import AsyncBroker, Broker, connect, connect_async
from redrive.broker.api.handle import QueueHandle
from redrive.broker.async_api.handle import AsyncQueueHandle

ANSWERED_FROM_MEMORY = {"durability", "queue", "on_breaker_change"}
ITERATED = {"export", "follow"}


def methods(face: type[Any]) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(face, inspect.isfunction) if not name.startswith("_")}


def test_both_faces_have_the_same_methods() -> None:
    assert methods(Broker).keys() == methods(AsyncBroker).keys()
    assert len(methods(Broker)) > 20


@pytest.mark.parametrize("name", sorted(methods(Broker)))
def test_parameters_and_results_are_the_same(name: str) -> None:
    blocking, awaited = (inspect.signature(methods(face)[name]) for face in (Broker, AsyncBroker))
    assert str(blocking) == re.sub("Async(QueueHandle|Iterator)", r"\1", str(awaited))


@pytest.mark.parametrize("name", sorted(methods(QueueHandle)))
def test_handles_are_the_same(name: str) -> None:
    blocking, awaited = (inspect.signature(methods(face)[name]) for face in (QueueHandle, AsyncQueueHandle))
    assert str(blocking) == str(awaited)
    assert inspect.iscoroutinefunction(methods(AsyncQueueHandle)[name])


@pytest.mark.parametrize("name", ["lease", "put_many"])
def test_handle_takes_what_the_broker_takes_but_the_name(name: str) -> None:
    parameters = inspect.signature(methods(Broker)[name]).parameters
    assert {key: parameters[key] for key in parameters if key != "queue"} == inspect.signature(
        methods(QueueHandle)[name]
    ).parameters


def test_handle_works_on_its_queue() -> None:
    with connect("memory://", maintenance=False) as broker:
        broker.create_queue("jobs")
        jobs = broker.queue("jobs")
        jobs.put(1, priority=9)
        jobs.put_many([2, 3])
        assert [lease.value for lease in jobs.lease(3)] == [1, 2, 3]
        assert (jobs.get().name, jobs.stats().active) == ("jobs", 3)
        assert [lease.value for lease in jobs.find(status="active", order="oldest").items] == [1, 2, 3]
        assert (jobs.count(status="active"), jobs.groups(), jobs.feed().entries) == (3, (), ())
        assert jobs.plan_operation("redrive").total == jobs.start_operation("redrive").expected == 0


@pytest.mark.parametrize("name", sorted(methods(Broker)))
def test_documentation_is_the_same(name: str) -> None:
    assert inspect.getdoc(methods(Broker)[name]) == inspect.getdoc(methods(AsyncBroker)[name])


@pytest.mark.parametrize("name", sorted(methods(AsyncBroker).keys() - ANSWERED_FROM_MEMORY - ITERATED))
def test_every_method_of_the_asynchronous_face_is_awaited(name: str) -> None:
    assert inspect.iscoroutinefunction(methods(AsyncBroker)[name])


@pytest.mark.parametrize("name", sorted(ITERATED))
def test_what_is_iterated_is_iterated_on_both_faces(name: str) -> None:
    assert inspect.get_annotations(methods(Broker)[name])["return"].startswith("Iterator[")
    assert inspect.get_annotations(methods(AsyncBroker)[name])["return"].startswith("AsyncIterator[")


def test_what_the_faces_give_can_be_imported_from_redrive() -> None:
    ours = set()
    for face in (Broker, AsyncBroker):
        for method in methods(face).values():
            module = vars(sys.modules[method.__module__])
            words = re.findall(r"[A-Za-z_]+", " ".join(map(str, inspect.get_annotations(method).values())))
            ours |= {word for word in words if getattr(module.get(word), "__module__", "").startswith("redrive.")}
    assert ours <= {*redrive.__all__, "Token", "Instant"}
    assert {"Settled", "AuditEntry", "QueueStats", "Operation", "Page"} <= ours


def test_both_are_opened_in_the_same_way() -> None:
    blocking, awaited = inspect.signature(connect), inspect.signature(connect_async)
    assert blocking.parameters == awaited.parameters


def test_faces_can_be_used_in_a_with_statement() -> None:
    assert {"__enter__", "__exit__"} <= vars(Broker).keys()
    assert {"__aenter__", "__aexit__"} <= vars(AsyncBroker).keys()
