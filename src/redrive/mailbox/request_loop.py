"""`RequestLoop`: reply to requests, with retries and a dead-letter policy. The base of `MainLoop` and `EvalLoop`."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from redrive.errors import AccessError, InvalidInput, InvalidSetting
from redrive.mailbox.dead_letter import qualified_name
from redrive.mailbox.dlq_policy import DLQPolicy, for_threads
from redrive.mailbox.flows import seconds
from redrive.mailbox.loop_types import MainLoopConfig, VisibilityExpansionRequired, check_function, default_backoff
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.mailbox_errors import InvalidParameterError
from redrive.mailbox.message import Message
from redrive.mailbox.message_loop import MessageLoop, handler_errors, reraise_interruption
from redrive.model.death import DeadReason
from redrive.model.duration import DAY, SECOND
from redrive.model.exception import plain_name, safe_str
from redrive.model.judge import Dead, RetryVerdict, Verdict
from redrive.telemetry import events
from redrive.worker.execution import run_awaitable

T = TypeVar("T")
R = TypeVar("R")
MAX_RETRY_DAYS = 365
MAX_RETRY_SECONDS = MAX_RETRY_DAYS * DAY // SECOND
"""The longest back-off of a failed request."""
_log = events.logger("redrive.mailbox")


class RequestLoop(MessageLoop[T, R], Generic[T, R]):
    """A loop that receives requests and replies to each. A policy decides when a failed request is dead."""

    def __init__(
        self, requests: Mailbox[T, R], config: MainLoopConfig | None = None, dlq: DLQPolicy[T, R] | None = None
    ) -> None:
        for name, value, kind in (("config", config, MainLoopConfig), ("dlq", dlq, DLQPolicy)):
            if value is not None and not isinstance(value, kind):
                raise InvalidParameterError(name, value, f"a {kind.__name__}")
        self.config = config or MainLoopConfig()
        super().__init__(requests, self.config.visibility_timeout)
        self._dlq = dlq

    def prepare(self) -> None:
        """Set the limits and dead queue of the mailbox by the policy. Raises InvalidInput if they cannot be changed."""
        self.mailbox._open()
        if self._dlq is None:
            return
        broker, name = self.mailbox._broker, self.mailbox.name
        letters = for_threads(self._dlq.mailbox)
        letters._open_for_dead_letters()
        target = self.mailbox._address(letters)
        wanted: dict[str, Any] = {"max_attempts": 0, "max_losses": self._dlq.max_delivery_count, "dead_queue": target}
        present = broker.get_queue(name).settings
        differs = {key: value for key, value in wanted.items() if getattr(present, key) != value}
        if not differs:
            return
        if present.dead_queue not in (None, target):
            raise InvalidInput(
                f"mailbox '{name}' sends its dead letters to '{present.dead_queue}', and the policy of this loop to "
                f"'{target}'; give all loops of a mailbox the same dead-letter mailbox"
            )
        if present.dead_queue == target:
            _log.warning("dlq_policy_changed", mailbox=name, max_delivery_count=self._dlq.max_delivery_count)
        try:
            broker.update_queue(name, **differs)
        except (AccessError, InvalidSetting) as error:
            options = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in differs.items())
            raise InvalidInput(
                f"this loop may not change the settings of mailbox '{name}' ({error}); run: "
                f"redrive queue update {name} {options}"
            ) from error

    @abstractmethod
    def respond(self, request: T) -> R:
        """Return the reply to a request, or raise the error with which it failed."""

    def handle(self, message: Message[T, R], visibility_timeout: float) -> None:
        """Process one request, and reply. A reply that is refused, as one that is too large, fails the request."""
        with handler_errors():
            reply = self.respond(message.body)
        message.acknowledge(reply=reply if message.asks_for_reply else None)

    def record_failure(self, message: Message[T, R], error: BaseException) -> None:
        """Record a failure: the request is dead by the policy, or delivered again after a back-off."""
        if isinstance(error, VisibilityExpansionRequired):
            message._return()
            return
        verdict: Verdict
        is_dead = self._is_dead(message, error)
        pause = None if is_dead else self._backoff(message)
        if pause is not None:
            verdict = RetryVerdict.after(pause)
        elif self._dlq is None:
            verdict = Dead(DeadReason.RETRIES_EXHAUSTED)
        else:
            verdict = Dead(DeadReason.POLICY, self._target(self._dlq, message, error))
        message._fail(error, verdict)
        _log.warning(
            "message_dead_lettered" if is_dead else "message_failed",
            message_id=message.id,
            request_id=message.request_id,
            source_mailbox=self.mailbox.name,
            delivery_count=message.delivery_count,
            error_type=qualified_name(plain_name(error)),
            error=safe_str(error),
            retry_in_seconds=pause,
        )

    def _backoff(self, message: Message[T, R]) -> float:
        try:
            pause = self.config.retry(message.delivery_count)
            if pause > MAX_RETRY_SECONDS:
                _log.warning("loop_retry_cut", mailbox=self.mailbox.name, message_id=message.id, days=MAX_RETRY_DAYS)
                pause = MAX_RETRY_SECONDS
            return seconds("retry", pause, MAX_RETRY_SECONDS) / SECOND
        except BaseException as error:
            reraise_interruption(error)
            _log.exception("loop_retry_failed", mailbox=self.mailbox.name, message_id=message.id)
            return default_backoff(message.delivery_count)

    def _target(self, policy: DLQPolicy[T, R], message: Message[T, R], error: Any) -> str:
        """Return the address of a dead-letter mailbox: of the route, or of the policy if the route cannot be used."""
        try:
            mailbox = for_threads(policy.route(message, error))
            mailbox._open_for_dead_letters()
            return self.mailbox._address(mailbox)
        except BaseException as problem:
            reraise_interruption(problem)
            _log.exception("dlq_policy_failed", mailbox=self.mailbox.name, message_id=message.id)
            return self.mailbox._address(for_threads(policy.mailbox))

    def _is_dead(self, message: Message[T, R], error: Any) -> bool:
        policy, allowed = self._dlq, message._lease.overrides.max_attempts
        if allowed and message.delivery_count >= allowed:
            return True
        if policy is None:
            return message.delivery_count >= self.config.max_delivery_count
        for rule in (policy.should_dead_letter, partial(DLQPolicy.should_dead_letter, policy)):
            try:
                return bool(rule(message, error))
            except BaseException as problem:
                reraise_interruption(problem)
                _log.exception("dlq_policy_failed", mailbox=self.mailbox.name, message_id=message.id)
        return message.delivery_count >= policy.max_delivery_count


class Service(RequestLoop[T, R], Generic[T, R]):
    """A loop that replies to each message with what a function of its body returns, without wrappers of requests and
    results. `mailbox.serve` runs one; a `LoopGroup` takes several. The function may be a coroutine function."""

    def __init__(
        self,
        requests: Mailbox[T, R],
        handler: Callable[[T], Any],
        *,
        config: MainLoopConfig | None = None,
        dlq: DLQPolicy[T, R] | None = None,
    ) -> None:
        super().__init__(requests, config, dlq)
        check_function("handler", handler)
        self._handler = handler

    def respond(self, request: T) -> R:
        """Return the reply to a message."""
        reply: R = result_of(self._handler(request))
        return reply


def result_of(given: Any) -> Any:
    """Return a value; run an awaitable in a new event loop, and return its result."""
    return run_awaitable(given) if inspect.isawaitable(given) else given
