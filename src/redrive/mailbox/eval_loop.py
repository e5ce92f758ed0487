"""`EvalLoop`: run the processing of a loop on requests with an expected output, and score its outputs."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

from redrive.mailbox.dlq_policy import DLQPolicy
from redrive.mailbox.loop_types import MainLoopConfig
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.main_loop import MainLoop
from redrive.mailbox.request_loop import RequestLoop, result_of

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
ExpectedT = TypeVar("ExpectedT")
_PLAIN_ARGUMENTS = 2


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


Evaluator = Callable[..., Score]
"""A function (output, expected) → Score, or (output, expected, session, input) → Score with the session of the loop."""


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
        self._sees_session = len(inspect.signature(evaluator).parameters) > _PLAIN_ARGUMENTS

    def respond(self, request: EvalRequest[InputT, ExpectedT]) -> EvalResult:
        """Process the input, and score the output."""
        began = time.perf_counter()
        output = result_of(self._loop.process(request.input))
        latency = (time.perf_counter() - began) * 1000
        more: tuple[Any, ...] = (self._loop.session, request.input) if self._sees_session else ()
        return EvalResult(request.request_id, self._evaluator(output, request.expected, *more), latency)
