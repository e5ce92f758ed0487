"""`DLQConsumer`: handle dead letters, and replay, discard or keep them."""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from redrive.broker.flows.inspection import parse_choice
from redrive.clock import to_datetime
from redrive.errors import AccessError
from redrive.mailbox import flows
from redrive.mailbox.dead_letter import DeadLetter
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.message import Message
from redrive.mailbox.message_loop import MessageLoop, handler_errors
from redrive.mailbox.request_loop import result_of
from redrive.model.exception import safe_str
from redrive.telemetry import events
from redrive.telemetry.metrics import LETTER_AGE_SECONDS, LETTER_HANDLER_SECONDS, LETTERS_HANDLED

T = TypeVar("T")
RETRY_SECONDS = 3600
"""Seconds until a dead letter that was kept, or whose handler failed, is handled again."""
_log = events.logger("redrive.mailbox")


class DLQAction(enum.StrEnum):
    """The return value of a handler of dead letters. None: the letter was processed, and is removed."""

    REPLAY = "replay"
    """Redrive the letter: it returns to its mailbox as a new delivery."""
    DISCARD = "discard"
    """Drop the letter, with a row in the audit."""
    KEEP = "keep"
    """Keep the letter, and handle it again in one hour."""


Replay, Discard, Keep = DLQAction.REPLAY, DLQAction.DISCARD, DLQAction.KEEP
_PROCESSED = "processed"


class DLQConsumer(MessageLoop[DeadLetter[T], None], Generic[T]):
    """A loop that calls a handler, a function or a coroutine function, for each dead letter. After an error, it handles
    the letter again in one hour."""

    def __init__(
        self,
        *,
        mailbox: Mailbox[DeadLetter[T], None],
        handler: Callable[[DeadLetter[T]], DLQAction | Awaitable[DLQAction | None] | None],
        visibility_timeout: float = 300,
    ) -> None:
        super().__init__(mailbox, visibility_timeout)
        self._handler = handler
        self._began = 0.0
        self.counts: Counter[str] = Counter()
        """The numbers of dead letters by outcome: processed, replay, discard, keep, and failed."""

    def prepare(self) -> None:
        """Open the mailbox with the settings of a dead-letter mailbox. Log a warning if this caller may not replay its
        letters: each `Replay` would be refused after its handler has run."""
        self.mailbox._open_for_dead_letters()
        try:
            self.mailbox._run(flows.check_replay(self.mailbox._core, self.mailbox.name))
        except AccessError as error:
            _log.warning("dlq_replay_not_allowed", mailbox=self.mailbox.name, error=str(error))

    def handle(self, message: Message[DeadLetter[T], None], visibility_timeout: float) -> None:
        """Call the handler with one dead letter, and apply the action that it returns."""
        self._began = time.perf_counter()
        with handler_errors():
            letter = message.body
            action = result_of(self._handler(letter))
            if action is not None:
                action = parse_choice("the action of a handler", DLQAction, action, "None")
        took = time.perf_counter() - self._began
        if action is None:
            message.acknowledge()
        elif action is DLQAction.KEEP:
            message.nack(visibility_timeout=RETRY_SECONDS)
        else:
            message._replay_or_discard(action is DLQAction.REPLAY)
        said = _PROCESSED if action is None else action.value
        self._count(letter, said, took)
        _log.info(
            "dead_letter_processed",
            message_id=letter.message_id,
            request_id=None if letter.request_id is None else str(letter.request_id),
            age_seconds=self._age(letter),
            action=said,
        )

    def record_failure(self, message: Message[DeadLetter[T], None], error: BaseException) -> None:
        """Keep the letter for an hour: it does not die of its handler."""
        message.nack(visibility_timeout=RETRY_SECONDS)
        self._count(message.body, "failed", time.perf_counter() - self._began)
        _log.error("dlq_handler_failed", message_id=message.body.message_id, error=safe_str(error))

    def record_plainly(self, message: Message[DeadLetter[T], None], error: BaseException) -> None:
        """Keep the letter for an hour."""
        message.nack(visibility_timeout=RETRY_SECONDS)

    def _age(self, letter: DeadLetter[T]) -> float:
        return (to_datetime(self.mailbox._core.clock.now()) - letter.dead_lettered_at).total_seconds()

    def _count(self, letter: DeadLetter[T], action: str, took: float) -> None:
        """Count an outcome in `counts`, and in the metrics of the broker if they are enabled."""
        self.counts[action] += 1
        if (meter := self.mailbox._core.meter) is not None:
            name = self.mailbox.name
            meter.metrics.add(LETTERS_HANDLED, (name, action))
            meter.metrics.observe(LETTER_AGE_SECONDS, (name,), self._age(letter))
            meter.metrics.observe(LETTER_HANDLER_SECONDS, (name,), took)
