"""What a signal handler raises while an argument is looked at comes out as itself."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from redrive import App, Broker, connect
from redrive.model.caller_input import checking_input


class Alarm(Exception):
    """A time limit of the program."""


class Handler:
    def __call__(self, *_: object) -> None:
        raise Alarm

    def method(self, *_: object) -> None:
        raise Alarm


def function(*_: object) -> None:
    raise Alarm


HANDLERS: dict[str, Callable[..., None]] = {
    "function": function,
    "method": Handler().method,
    "object": Handler(),
    "partial": partial(function, 1),
}


@pytest.fixture(params=HANDLERS, autouse=True)
def handler(request: pytest.FixtureRequest) -> Iterator[None]:
    signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


class Slow:
    """Takes so long to look at that the signal comes in."""

    @property
    def __class__(self) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return object

    def __eq__(self, other: object) -> bool:
        signal.raise_signal(signal.SIGUSR1)
        return False

    __hash__ = object.__hash__


@dataclasses.dataclass
class Made:
    """Interrupted as it is made of what was written."""

    size: int

    def __post_init__(self) -> None:
        signal.raise_signal(signal.SIGUSR1)


def edit(value: Any) -> Any:
    signal.raise_signal(signal.SIGUSR1)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with connect("memory://", maintenance=False) as broker:
        broker.create_queue("jobs")
        yield broker


def test_looking_at_an_argument() -> None:
    with pytest.raises(Alarm), checking_input("thing"):
        signal.raise_signal(signal.SIGUSR1)


def test_duration(broker: Broker) -> None:
    with pytest.raises(Alarm):
        broker.lease("jobs", wait=Slow())  # type: ignore[arg-type]


def test_payload(broker: Broker) -> None:
    with pytest.raises(Alarm):
        broker.put("jobs", [Slow()])


def test_edit(broker: Broker) -> None:
    receipt = broker.put_failed("jobs", 1, "broke")
    with pytest.raises(Alarm):
        broker.redrive([receipt.id], edit=edit)


def test_argument_of_a_task() -> None:
    with App("memory://", maintenance=False) as app:

        @app.queue("jobs").task
        def send(made: Made) -> None: ...

        with pytest.raises(Alarm):
            send.item(made={"size": 1})
