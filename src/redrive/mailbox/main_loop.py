"""`MainLoop`: handle requests of a mailbox and reply, with retries and a dead-letter policy."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic

from redrive.errors import AccessError, InvalidInput, InvalidSetting
from redrive.mailbox.dead_letter import qualified_name
from redrive.mailbox.dlq_policy import DLQPolicy
from redrive.mailbox.loop_types import (
    NO_RESOURCES,
    Adapter,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    OutputT,
    RequestT,
    VisibilityExpansionRequired,
)
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.message import Message
from redrive.mailbox.message_loop import MessageLoop, VisibilityKeeper
from redrive.model.death import DeadReason
from redrive.model.judge import Dead, RetryVerdict, Verdict
from redrive.telemetry import events

_log = events.logger("redrive.mailbox")


class MainLoop(MessageLoop[MainLoopRequest[RequestT], MainLoopResult[OutputT]], Generic[RequestT, OutputT]):
    """Handles requests: subclass it with `process`, or give a function or an adapter with `evaluate`.

    A request that succeeds is acknowledged with its result, in one transaction. One that fails is delivered again after
    a back-off, until the policy says that it is dead; then it moves to a dead-letter mailbox, and its sender gets a
    `MainLoopResult` with the error. Handlers may be coroutine functions.
    """

    def __init__(
        self,
        *,
        requests: Mailbox[MainLoopRequest[RequestT], MainLoopResult[OutputT]],
        adapter: Adapter[RequestT, OutputT] | None = None,
        handler: Callable[[RequestT], Any] | None = None,
        resources: Mapping[str, Any] | None = None,
        config: MainLoopConfig | None = None,
        dlq: DLQPolicy[MainLoopRequest[RequestT], MainLoopResult[OutputT]] | None = None,
    ) -> None:
        self.config = config or MainLoopConfig()
        super().__init__(requests, self.config.visibility_timeout)
        self.adapter = adapter
        self.resources = NO_RESOURCES if resources is None else resources
        self._handler = handler
        self._dlq = dlq
        if adapter is None and handler is None and type(self).process is MainLoop.process:
            raise InvalidInput("a MainLoop needs a handler=, an adapter=, or a subclass with process()")

    def process(self, request: RequestT) -> Any:
        """Return the output for a request, or a coroutine that does."""
        if self._handler is not None:
            return self._handler(request)
        assert self.adapter is not None
        return self.adapter.evaluate(request)

    def prepare(self) -> None:
        """Let the queue of the mailbox judge losses as the policy says. Raises if it may not be changed."""
        self.mailbox._open()
        if self._dlq is None:
            return
        broker, name = self.mailbox._broker, self.mailbox.name
        self._dlq.mailbox._open_for_dead_letters()
        target = self.mailbox._address(self._dlq.mailbox)
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

    def handle(
        self, message: Message[MainLoopRequest[RequestT], MainLoopResult[OutputT]], visibility_timeout: float
    ) -> None:
        """Process one request, and reply."""
        try:
            with VisibilityKeeper(message, visibility_timeout):
                output = self._result_of(self.process(message.body.request))
        except VisibilityExpansionRequired:
            message._return()
        except Exception as error:
            self._fail(message, error)
        else:
            result: MainLoopResult[OutputT] = MainLoopResult(message.body.request_id, output)
            message.acknowledge(reply=result if message.asks_for_reply else None)

    def _result_of(self, given: Any) -> Any:
        if not inspect.isawaitable(given):
            return given

        async def awaited() -> Any:
            return await given

        return asyncio.run(awaited())

    def _fail(self, message: Message[MainLoopRequest[RequestT], MainLoopResult[OutputT]], error: Exception) -> None:
        """Record the failure: dead as the policy says, or delivered again after a back-off."""
        verdict: Verdict
        is_dead = self._is_dead(message, error)
        if not is_dead:
            verdict = RetryVerdict.after(self.config.retry(message.delivery_count))
        elif self._dlq is None:
            verdict = Dead(DeadReason.RETRIES_EXHAUSTED)
        else:
            target = self._dlq.route(message, error)
            target._open_for_dead_letters()
            verdict = Dead(DeadReason.POLICY, self.mailbox._address(target))
        message._fail(error, verdict)
        if is_dead:
            _log.warning(
                "message_dead_lettered",
                message_id=message.id,
                request_id=message.request_id,
                source_mailbox=self.mailbox.name,
                delivery_count=message.delivery_count,
                error_type=qualified_name(type(error).__name__),
                error=str(error),
            )

    def _is_dead(self, message: Message[MainLoopRequest[RequestT], MainLoopResult[OutputT]], error: Exception) -> bool:
        if self._dlq is None:
            return message.delivery_count >= self.config.max_delivery_count
        try:
            return bool(self._dlq.should_dead_letter(message, error))
        except Exception:
            _log.exception("dlq_policy_failed", mailbox=self.mailbox.name, message_id=message.id)
            return DLQPolicy.should_dead_letter(self._dlq, message, error)
