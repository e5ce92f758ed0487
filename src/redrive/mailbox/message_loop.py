"""`MessageLoop`: receive and handle messages until shutdown. `MainLoop` and `DLQConsumer` are loops."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from redrive.errors import InvalidInput, OutcomeUnknown, RedriveError
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.mailbox_errors import MailboxConnectionError, ReceiptHandleExpiredError
from redrive.mailbox.message import Message
from redrive.telemetry import events

T = TypeVar("T")
R = TypeVar("R")

WAIT_SLICE_SECONDS = 1.0
"""A loop that waits for messages sees a shutdown after this time at the latest."""
RECONNECT_SECONDS = 1.0
"""Pause before the next try while the store cannot be reached."""
DEFAULT_WAIT_SECONDS = 20
_EXTENSIONS = 3
"""How often the visibility of a message is extended within one timeout."""
_log = events.logger("redrive.mailbox")


class LoopHeartbeat:
    """When a loop last made progress, for a watchdog. A handler that takes long calls `beat` now and then."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def beat(self) -> None:
        """Record progress."""
        self._at = time.monotonic()

    def elapsed(self) -> float:
        """Return the seconds since the last progress."""
        return time.monotonic() - self._at


class VisibilityKeeper:
    """Extends the visibility of a message from a thread, while a handler runs."""

    def __init__(self, message: Message[Any, Any], visibility_timeout: float) -> None:
        self._message = message
        self._timeout = visibility_timeout
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="redrive-visibility", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._end.wait(self._timeout / _EXTENSIONS):
            try:
                self._message.extend_visibility(self._timeout)
            except ReceiptHandleExpiredError:
                return  # another consumer has it; what this one says of it is refused
            except RedriveError as error:
                _log.warning("visibility_not_extended", message_id=self._message.id, error=str(error))


class MessageLoop(ABC, Generic[T, R]):
    """Receives messages one by one and handles each. `run` blocks; `shutdown` ends it from another thread."""

    def __init__(self, mailbox: Mailbox[T, R], visibility_timeout: float) -> None:
        self.mailbox = mailbox
        self._visibility_timeout = visibility_timeout
        self._heartbeat = LoopHeartbeat()
        self._stop = threading.Event()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._starting = threading.Lock()

    @property
    def running(self) -> bool:
        """Whether a thread is in `run`."""
        return not self._is_idle.is_set()

    @property
    def heartbeat(self) -> LoopHeartbeat:
        """When it last made progress."""
        return self._heartbeat

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,
        wait_time_seconds: float = DEFAULT_WAIT_SECONDS,
    ) -> None:
        """Handle messages until `shutdown`, until the mailbox is closed, or for `max_iterations` receives."""
        timeout = self._visibility_timeout if visibility_timeout is None else visibility_timeout
        with self._starting:
            if self.running:
                raise InvalidInput(f"the loop on mailbox '{self.mailbox.name}' runs already; make another one")
            self._is_idle.clear()
        try:
            self.prepare()
            iterations = 0
            while not self._stop.is_set() and not self.mailbox.closed and iterations != max_iterations:
                self._heartbeat.beat()
                for message in self._receive(timeout, wait_time_seconds):
                    self._handle_or_return(message, timeout)
                iterations += 1
        finally:
            self._is_idle.set()

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Stop after the message that is being handled. Returns whether the loop ended within `timeout` seconds."""
        self._stop.set()
        return self._is_idle.wait(timeout)

    def prepare(self) -> None:
        """Check what the loop needs, before its first receive."""

    @abstractmethod
    def handle(self, message: Message[T, R], visibility_timeout: float) -> None:
        """Handle a message, and end its delivery."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _receive(self, visibility_timeout: float, wait_seconds: float) -> list[Message[T, R]]:
        """Wait for a message in slices, so that a shutdown is seen soon."""
        end = time.monotonic() + wait_seconds
        while True:
            left = max(0.0, end - time.monotonic())
            try:
                received = self.mailbox.receive(
                    visibility_timeout=visibility_timeout, wait_time_seconds=min(left, WAIT_SLICE_SECONDS)
                )
            except MailboxConnectionError as error:
                _log.warning("mailbox_unavailable", mailbox=self.mailbox.name, error=str(error))
                self._stop.wait(RECONNECT_SECONDS)
                received = ()
            self._heartbeat.beat()
            if received or not left or self._stop.is_set() or self.mailbox.closed:
                return list(received)

    def _handle_or_return(self, message: Message[T, R], visibility_timeout: float) -> None:
        """Handle a message. One whose handler was interrupted never ran, and one that came too late is another's."""
        try:
            self.handle(message, visibility_timeout)
        except ReceiptHandleExpiredError:
            _log.warning("message_outcome_too_late", mailbox=self.mailbox.name, message_id=message.id)
        except (MailboxConnectionError, OutcomeUnknown) as error:  # delivered again if the outcome was not recorded
            _log.warning("mailbox_unavailable", mailbox=self.mailbox.name, error=str(error))
        except BaseException as error:
            if not isinstance(error, Exception) and not message.is_finalized:
                message._return()
            raise
