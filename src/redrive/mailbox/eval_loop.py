"""`EvalLoop`: run the processing of a loop on requests with an expected output, and score its outputs."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, TypeVar
from uuid import UUID, uuid4

from redrive.mailbox.dlq_policy import DLQPolicy
from redrive.mailbox.loop_types import MainLoopConfig
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.main_loop import MainLoop
from redrive.mailbox.request_loop import RequestLoop, result_of

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
ExpectedT = TypeVar("ExpectedT")
_FEWEST_ARGUMENTS, _MOST_ARGUMENTS = 2, 4


@dataclass(frozen=True, slots=True)
class Score:
    """The score of an output."""

    value: float
    passed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EvalRequest(Generic[InputT, ExpectedT]):
    """An input, and its expected output."""

    input: InputT
    expected: ExpectedT
    request_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The score of a request, or the error with which it died."""

    request_id: UUID
    score: Score | None = None
    latency_ms: float | None = None
    """The duration of the processing, without the evaluator."""
    error: str | None = None


Evaluator = Callable[..., Score | Awaitable[Score]]
"""A function or coroutine function (output, expected) → Score. With a third parameter it gets the session of the loop,
with a fourth the input too."""


class EvalLoop(RequestLoop[EvalRequest[InputT, ExpectedT], EvalResult], Generic[InputT, OutputT, ExpectedT]):
    """A loop that evaluates requests with the processing of another loop, which does not have to run."""

    def __init__(
        self,
        *,
        loop: MainLoop[InputT, OutputT],
        evaluator: Evaluator,
        requests: Mailbox[EvalRequest[InputT, ExpectedT], EvalResult],
        config: MainLoopConfig | None = None,
        dlq: DLQPolicy[EvalRequest[InputT, ExpectedT], EvalResult] | None = None,
    ) -> None:
        super().__init__(requests, config, dlq)
        self._loop = loop
        self._evaluator = evaluator
        self._arguments = _count_arguments(evaluator)

    def respond(self, request: EvalRequest[InputT, ExpectedT]) -> EvalResult:
        """Process the input, and score the output."""
        began = time.perf_counter()
        output = result_of(self._loop.process(request.input))
        latency = (time.perf_counter() - began) * 1000
        arguments = (output, request.expected, self._loop.session, request.input)[: self._arguments]
        return EvalResult(request.request_id, result_of(self._evaluator(*arguments)), latency)


def _count_arguments(evaluator: Evaluator) -> int:
    """Return the number of arguments that an evaluator takes, 2 to 4. A third one with a default is its own option."""
    try:
        parameters = inspect.signature(evaluator).parameters.values()
    except ValueError:  # of a function in C
        return _FEWEST_ARGUMENTS
    plain = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(plain) < _MOST_ARGUMENTS:
        plain = [each for each in plain if each.default is each.empty]
    return min(max(len(plain), _FEWEST_ARGUMENTS), _MOST_ARGUMENTS)
