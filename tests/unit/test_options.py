"""Options are declared once: all methods that take them by name take the same ones, and each has a text."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from redrive import AsyncBroker, Broker, connect, connect_async, new_item
from redrive.broker.flows import operations
from redrive.capture.capture_settings import CaptureOptions, CaptureSettings
from redrive.connect import _open_core
from redrive.errors import InvalidInput
from redrive.mailbox import AsyncMailbox, Mailbox
from redrive.model import declaration
from redrive.model.declaration import options_of, texts_of
from redrive.model.filter import Filter
from redrive.model.options import (
    Conditions,
    ConnectOptions,
    ItemOptions,
    MessageOptions,
    OperationOptions,
    PlanConditions,
    StartOptions,
)
from redrive.model.queue import QueueSettings
from redrive.model.queue_options import QueueOptions
from redrive.server.field_types import FilterFields
from redrive.server.routes.operations import StartOperationCall
from redrive.server.routes.produce import ProducedItem
from redrive.task.app import App
from redrive.task.task_options import PutOptions, TaskOptions

DECLARED = (
    *(CaptureOptions, Conditions, ConnectOptions, ItemOptions, OperationOptions),
    *(PutOptions, QueueOptions, StartOptions, TaskOptions),
)
FACES = (Broker, AsyncBroker)
MAILBOXES = (Mailbox, AsyncMailbox)
OF_JSON_ITEMS = {"payload", "encoding", "kind", "reference"}
"""Fields of an item in JSON that say how its payload and headers are written."""


@pytest.mark.parametrize("declared", DECLARED)
def test_every_option_has_a_text(declared: Any) -> None:
    texts = texts_of(declared)
    assert list(texts) == list(declared.__annotations__)
    assert all(text.endswith(".") and text == " ".join(text.split()) for text in texts.values())


@pytest.mark.parametrize(
    ("declared", "taken"),
    [
        (ItemOptions, {*inspect.signature(new_item).parameters} - {"value"}),
        (ItemOptions, {*ProducedItem.__struct_fields__} - OF_JSON_ITEMS),
        (Conditions, {*Filter.__struct_fields__}),
        (Conditions, {*FilterFields.__struct_fields__, "status"}),
        (QueueOptions, {*QueueSettings.__struct_fields__}),
        (CaptureOptions, {*CaptureSettings.__struct_fields__}),
        (ConnectOptions, {*inspect.signature(_open_core).parameters} - {"url"}),
    ],
)
def test_same_names_where_they_are_taken(declared: Any, taken: set[str]) -> None:
    assert {*declared.__annotations__} == taken


def test_operation_options_are_those_of_the_flow_and_of_json() -> None:
    assert {*OperationOptions.__annotations__} <= {*inspect.signature(operations.start_operation).parameters}
    assert {*OperationOptions.__annotations__} <= {*StartOperationCall.__struct_fields__}


@pytest.mark.parametrize(
    ("declared", "function"), [(ItemOptions, new_item), (ConnectOptions, _open_core)], ids=["put", "connect"]
)
def test_text_names_the_default(declared: Any, function: Callable[..., Any]) -> None:
    for name, option in options_of(declared).items():
        default = inspect.signature(function).parameters[name].default
        assert (default is None) == option.is_optional
        assert default is None or f"{default} unless given" in texts_of(declared)[name].replace("`", "")


@pytest.mark.parametrize(
    ("function", "declared"),
    [
        (connect, ConnectOptions),
        (connect_async, ConnectOptions),
        *((face.put, ItemOptions) for face in FACES),
        *((method, MessageOptions) for box in MAILBOXES for method in (box.send, box.request)),
        *((getattr(face, name), Conditions) for face in FACES for name in ("find", "count", "export")),
        *((face.plan_operation, PlanConditions) for face in FACES),
        *((getattr(face, name), QueueOptions) for face in FACES for name in ("create_queue", "update_queue")),
        *((face.start_operation, StartOptions) for face in FACES),
    ],
)
def test_help_lists_every_option(function: Callable[..., Any], declared: Any) -> None:
    first, _, shown = (inspect.getdoc(function) or "").partition("\n\n")
    assert first.endswith((".", ")"))
    for name, text in texts_of(declared).items():
        assert f"\n{name}: {text}" in f"\n{shown}"


def test_options_without_their_source_have_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: object) -> str:
        raise OSError

    monkeypatch.setattr(inspect, "getsource", missing)
    monkeypatch.setattr(declaration, "_classes", declaration._classes.__wrapped__)
    assert texts_of.__wrapped__(ItemOptions) == dict.fromkeys(ItemOptions.__annotations__, "")


def test_app_refuses_an_unknown_option_when_it_is_made() -> None:
    with pytest.raises(InvalidInput, match=r"no option 'nmespace' \(did you mean namespace\?\)"):
        App("memory://", nmespace="x")  # type: ignore[call-arg]
