"""Arguments of policies and loops are checked where they are given, not at the first failure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from redrive.mailbox import (
    DeadLetter,
    DLQPolicy,
    DLQRoutes,
    EvalLoop,
    EvalRequest,
    EvalResult,
    InvalidParameterError,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    Score,
)
from redrive.testing import FakeMailbox

Ask = MainLoopRequest[str]
Answer = MainLoopResult[int]


@dataclass(frozen=True, slots=True)
class OwnRequest(MainLoopRequest[str]):
    """A request type of a program."""

    color: str = "red"


class OneByOne:
    """An adapter whose method takes one request too many."""

    def evaluate(self, request: str, other: str) -> int:
        return 0


def requests(body: Any = Ask, reply: Any = Answer) -> FakeMailbox[Any, Any]:
    return FakeMailbox("requests", body=body, reply=reply)


def letters() -> FakeMailbox[Any, Any]:
    return FakeMailbox("letters", body=DeadLetter[Ask])


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "policy without a mailbox": (lambda: DLQPolicy("letters"), "mailbox is a Mailbox"),  # type: ignore[arg-type]
    "class for a set": (lambda: DLQPolicy(letters(), include_errors=ValueError), "include_errors is a set"),  # type: ignore[arg-type]
    "text for a set": (lambda: DLQPolicy(letters(), exclude_errors="ValueError"), "exclude_errors is a set"),  # type: ignore[arg-type]
    "number for a type": (lambda: DLQPolicy(letters(), include_errors=frozenset({5})), "include_errors is a set"),  # type: ignore[arg-type]
    "type of no error": (lambda: DLQPolicy(letters(), exclude_errors=frozenset({int})), "exclude_errors is a set"),  # type: ignore[arg-type]
    "no delivery": (lambda: DLQPolicy(letters(), 0), "max_delivery_count is a whole number"),
    "list of routes": (lambda: DLQRoutes(letters(), routes=[ValueError]), "routes is a table"),  # type: ignore[arg-type]
    "route of a number": (lambda: DLQRoutes(letters(), routes={1: letters()}), "routes is a table"),  # type: ignore[dict-item]
    "route to a name": (lambda: DLQRoutes(letters(), routes={"E": "letters"}), "routes is a Mailbox"),  # type: ignore[dict-item]
    "routes without errors": (lambda: DLQRoutes(letters(), include_errors=ValueError), "include_errors is a set"),  # type: ignore[arg-type]
    "no visibility": (lambda: MainLoopConfig(visibility_timeout=0), "visibility_timeout is more than 0"),
    "visibility as text": (lambda: MainLoopConfig(visibility_timeout="5m"), "visibility_timeout is a number"),  # type: ignore[arg-type]
    "too long a visibility": (lambda: MainLoopConfig(visibility_timeout=43_201), "visibility_timeout is a number"),
    "retry as a number": (lambda: MainLoopConfig(retry=60), "retry is a function"),  # type: ignore[arg-type]
    "retry without an argument": (lambda: MainLoopConfig(retry=lambda: 60), "retry is a function"),  # type: ignore[arg-type, misc]
    "part of a delivery": (lambda: MainLoopConfig(max_delivery_count=1.5), "max_delivery_count is a whole"),  # type: ignore[arg-type]
    "requests of JSON": (lambda: MainLoop(requests=requests(None), handler=len), "body=MainLoopRequest"),
    "requests of texts": (lambda: MainLoop(requests=requests(str), handler=len), "body=MainLoopRequest"),
    "replies of JSON": (lambda: MainLoop(requests=requests(Ask, None), handler=len), "reply=MainLoopResult"),
    "requests as a name": (lambda: MainLoop(requests="requests", handler=len), "mailbox of a loop is a Mailbox"),  # type: ignore[arg-type]
    "handler without an argument": (lambda: MainLoop(requests=requests(), handler=lambda: 1), "handler is a function"),  # type: ignore[arg-type, misc]
    "handler of two": (lambda: MainLoop(requests=requests(), handler=lambda a, b: 1), "handler is a function"),  # type: ignore[arg-type, misc]
    "handler that is none": (lambda: MainLoop(requests=requests(), handler=5), "handler is a function"),  # type: ignore[arg-type]
    "adapter of two": (lambda: MainLoop(requests=requests(), adapter=OneByOne()), "adapter.evaluate is a function"),  # type: ignore[arg-type]
    "adapter that is none": (lambda: MainLoop(requests=requests(), adapter=5), "adapter.evaluate is a function"),  # type: ignore[arg-type]
    "handler and adapter": (lambda: MainLoop(requests=requests(), handler=len, adapter=5), "adapter is omitted"),  # type: ignore[arg-type]
    "resources in a list": (lambda: MainLoop(requests=requests(), handler=len, resources=[1]), "resources is a map"),  # type: ignore[arg-type]
    "options in a table": (lambda: MainLoop(requests=requests(), handler=len, config={}), "config is a MainLoopConfig"),  # type: ignore[arg-type]
    "mailbox as a policy": (lambda: MainLoop(requests=requests(), handler=len, dlq=letters()), "dlq is a DLQPolicy"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", WRONG)
def test_argument_that_cannot_work_is_refused_where_it_is_given(case: str) -> None:
    make, words = WRONG[case]
    with pytest.raises(InvalidParameterError, match=words):
        make()


def test_time_that_a_run_holds_its_messages_is_checked() -> None:
    loop: MainLoop[str, int] = MainLoop(requests=requests(), handler=len)
    with pytest.raises(InvalidParameterError, match="visibility_timeout is more than 0"):
        loop.run(visibility_timeout=0, max_iterations=1, wait_time_seconds=0)
    assert not loop.running


def exact(output: int, expected: int) -> Score:
    return Score(float(output == expected), output == expected)


def test_arguments_that_work_are_accepted() -> None:
    lists: Any = ([ValueError, "RateLimitError"], {TimeoutError}, (), None)
    for errors in lists:
        DLQPolicy(letters(), include_errors=errors, exclude_errors=errors)
    DLQRoutes(letters(), routes={ValueError: letters(), "RateLimitError": letters()})
    MainLoopConfig(visibility_timeout=0.5, retry=float)
    for handler in (len, print, lambda text, more=1: 1, lambda *all: 1, str.upper):
        MainLoop(requests=requests(), handler=handler)
    MainLoop(requests=requests(OwnRequest), handler=len)
    evaluations: FakeMailbox[Any, Any] = FakeMailbox("evaluations", body=EvalRequest[str, int], reply=EvalResult)
    EvalLoop(loop=MainLoop(requests=requests(), handler=len), evaluator=exact, requests=evaluations)


def test_loop_that_responds_by_itself_takes_any_type() -> None:
    class Echo(MainLoop[Any, Any]):
        def respond(self, request: Any) -> Any:
            return request

    mailbox = requests(str, str)
    mailbox.send("?")
    Echo(requests=mailbox, handler=len).run(max_iterations=1, wait_time_seconds=0)
    assert mailbox.approximate_count() == 0
