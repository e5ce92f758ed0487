"""`DLQConsumer`: handle dead letters, and replay, discard or keep them."""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from redrive.clock import to_datetime
from redrive.errors import InvalidInput, short_repr
from redrive.mailbox.dead_letter import DeadLetter
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.mailbox_errors import ReceiptHandleExpiredError
from redrive.mailbox.message import Message
from redrive.mailbox.message_loop import MessageLoop, VisibilityKeeper, exits_as_failures
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
    """A loop that calls a handler for each dead letter. After an error, it handles the letter again in one hour."""

    def __init__(
        self,
        *,
        mailbox: Mailbox[DeadLetter[T], None],
        handler: Callable[[DeadLetter[T]], DLQAction | None],
        visibility_timeout: float = 300,
    ) -> None:
        super().__init__(mailbox, visibility_timeout)
        self._handler = handler
        self.counts: Counter[str] = Counter()
        """The numbers of dead letters by outcome: processed, replay, discard, keep, and failed."""

    def prepare(self) -> None:
        """Open the mailbox with the settings of a dead-letter mailbox."""
        self.mailbox._open_for_dead_letters()

    def handle(self, message: Message[DeadLetter[T], None], visibility_timeout: float) -> None:
        """Call the handler with one dead letter, and apply the action that it returns."""
        letter = message.body
        began = time.perf_counter()
        try:
            with VisibilityKeeper(message, visibility_timeout), exits_as_failures():
                action = self._handler(letter)
            if action is not None and action not in tuple(DLQAction):
                raise InvalidInput(f"a handler returns Replay, Discard, Keep or None, not {short_repr(action, 60)}")
            took = time.perf_counter() - began
            self._do(message, action)
        except ReceiptHandleExpiredError:
            raise
        except Exception as error:
            self._count(letter, "failed", time.perf_counter() - began)
            _log.error("dlq_handler_failed", message_id=letter.message_id, error=str(error))
            message.nack(visibility_timeout=RETRY_SECONDS)
            return
        self._count(letter, _PROCESSED if action is None else str(action), took)
        _log.info(
            "dead_letter_processed",
            message_id=letter.message_id,
            request_id=None if letter.request_id is None else str(letter.request_id),
            age_seconds=self._age(letter),
            action=_PROCESSED if action is None else str(action),
        )

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

    def _do(self, message: Message[DeadLetter[T], None], action: DLQAction | None) -> None:
        if action is DLQAction.KEEP:
            message.nack(visibility_timeout=RETRY_SECONDS)
        elif action is None:
            message.acknowledge()
        else:
            message._replay_or_discard(action is DLQAction.REPLAY)
