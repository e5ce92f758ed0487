"""`Broker` and `AsyncBroker` have the same methods. The blocking one is generated, apart from its base."""

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import AsyncBroker, Broker, connect, connect_async
from redrive.broker.api.base import BrokerBase
from redrive.broker.api.handle import QueueHandle
from redrive.broker.async_api.handle import AsyncQueueHandle

SOURCE = Path(redrive.__file__).parent
FILES = {path: path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
GENERATED = {path: made[1] for path, text in FILES.items() if (made := re.match(r"# Generated from (\S+) by", text))}
RENAMED = (
    ("an (?=`?Async)", "a "),
    ("Async", ""),
    (r"async_(?=api)|_async\b", ""),
    (r", (on an|and between) event loops?\.", "."),
)
ANSWERED_FROM_MEMORY = {"queue", "on_breaker_change"}
ITERATED = {"export", "follow"}


def methods(face: type[Any]) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(face, inspect.isfunction) if not name.startswith("_")}


def signatures(face: type[Any]) -> dict[str, str]:
    return {name: str(inspect.signature(method)) for name, method in methods(face).items()}


def texts(path: Path) -> list[str]:
    return [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def renamed(text: str) -> str:
    for pattern, replacement in RENAMED:
        text = re.sub(pattern, replacement, text)
    return text


@pytest.mark.parametrize(("blocking", "awaited"), [(Broker, AsyncBroker), (QueueHandle, AsyncQueueHandle)])
def test_both_faces_have_the_same_methods(blocking: type[Any], awaited: type[Any]) -> None:
    assert signatures(blocking) == {name: renamed(text) for name, text in signatures(awaited).items()}
    assert len(signatures(blocking)) > 10


def test_only_the_base_of_the_blocking_face_is_written_by_hand() -> None:
    written = {path for path in (SOURCE / "broker/api").glob("*.py") if path not in GENERATED}
    assert written == {SOURCE / "broker/api/base.py"}
    assert SOURCE / "broker/broker.py" in GENERATED


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_names_differ_in_the_texts_of_both_faces(path: Path) -> None:
    assert texts(path) == [renamed(text) for text in texts(SOURCE / GENERATED[path])]


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


@pytest.mark.parametrize("face", [AsyncBroker, AsyncQueueHandle])
def test_every_method_of_the_asynchronous_face_is_awaited(face: type[Any]) -> None:
    plain = {name for name, method in methods(face).items() if not inspect.iscoroutinefunction(method)}
    assert plain == (ANSWERED_FROM_MEMORY | ITERATED if face is AsyncBroker else set())


@pytest.mark.parametrize("name", sorted(ITERATED))
def test_what_is_iterated_is_iterated_on_both_faces(name: str) -> None:
    assert inspect.get_annotations(methods(Broker)[name])["return"].startswith("Iterator[")
    assert inspect.get_annotations(methods(AsyncBroker)[name])["return"].startswith("AsyncIterator[")


def test_what_the_faces_give_can_be_imported_from_redrive() -> None:
    ours = set()
    for face in (Broker, AsyncBroker):
        for method in (method for name, method in methods(face).items() if name not in vars(BrokerBase)):
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
