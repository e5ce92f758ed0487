"""`MessageLoop`: receive and handle messages until shutdown. The base of `MainLoop` and `DLQConsumer`."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from redrive.broker.background_thread import BackgroundThread
from redrive.broker.worker_session import RETRYABLE_STORE_ERRORS
from redrive.errors import InvalidInput, RedriveError
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.mailbox_errors import ReceiptHandleExpiredError
from redrive.mailbox.message import Message
from redrive.telemetry import events
from redrive.worker.in_flight import InFlightLog

T = TypeVar("T")
R = TypeVar("R")

WAIT_SLICE_SECONDS = 1.0
"""The longest time until a loop that waits for messages notices a shutdown."""
RECONNECT_SECONDS = 1.0
"""The pause before the next attempt while the store cannot be reached."""
DEFAULT_WAIT_SECONDS = 20
_EXTENSIONS = 3
"""The number of extensions of a message within one visibility timeout."""
_log = events.logger("redrive.mailbox")


class LoopHeartbeat:
    """The time of the last progress of a loop, for a watchdog. A slow handler calls `beat` at intervals."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def beat(self) -> None:
        """Record progress."""
        self._at = time.monotonic()

    def elapsed(self) -> float:
        """Return the seconds since the last progress."""
        return time.monotonic() - self._at


class VisibilityKeeper(BackgroundThread):
    """A thread that extends the visibility of a message while a handler runs."""

    def __init__(self, message: Message[Any, Any], visibility_timeout: float) -> None:
        super().__init__("visibility")
        self._message = message
        self._timeout = visibility_timeout

    def _run(self) -> None:
        while not self._end.wait(self._timeout / _EXTENSIONS):
            try:
                self._message.extend_visibility(self._timeout)
            except ReceiptHandleExpiredError:
                return  # another consumer may hold it, and the outcome of this one is refused
            except RedriveError as error:
                _log.warning("visibility_not_extended", message_id=self._message.id, error=str(error))


@contextmanager
def exits_as_failures() -> Iterator[None]:
    """Raise an exit of a handler, such as `sys.exit()`, as RuntimeError; in the main thread it interrupts the loop."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or threading.current_thread() is threading.main_thread():
            raise
        raise RuntimeError(f"the handler raised {error!r}") from error


class MessageLoop(ABC, Generic[T, R]):
    """A loop that receives and handles messages one by one. `run` blocks; `shutdown` ends it from another thread."""

    def __init__(self, mailbox: Mailbox[T, R], visibility_timeout: float) -> None:
        self.mailbox = mailbox
        self._visibility_timeout = visibility_timeout
        self._heartbeat = LoopHeartbeat()
        self._stop = threading.Event()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._starting = threading.Lock()
        self._in_flight_log: InFlightLog | None = None
        self._slot = 0
        self._is_handling = False
        self._may_hold_more = False
        """True if the outcome of a receive or message is unknown: the loop may hold a message until it times out."""
        self._completed = self._not_completed = 0

    @property
    def running(self) -> bool:
        """True while a thread is in `run`."""
        return not self._is_idle.is_set()

    @property
    def heartbeat(self) -> LoopHeartbeat:
        """The time of its last progress."""
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
                    self._handle_on_record(message, timeout)
                iterations += 1
        finally:
            self._is_idle.set()

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Stop after the message that is being handled. Returns whether the loop ended within `timeout` seconds."""
        self._stop.set()
        return self._is_idle.wait(timeout)

    def prepare(self) -> None:
        """Prepare the loop before its first receive; raise if it cannot run."""

    @abstractmethod
    def handle(self, message: Message[T, R], visibility_timeout: float) -> None:
        """Handle a message, and settle its delivery."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _join_worker(self, worker: str, in_flight_log: InFlightLog | None, slot: int) -> None:
        """Set the worker whose name receives use, and the slot of its log that records the message being handled."""
        self.mailbox._worker = worker
        self._in_flight_log, self._slot = in_flight_log, slot

    def _receive(self, visibility_timeout: float, wait_seconds: float) -> list[Message[T, R]]:
        """Wait up to `wait_seconds` for a message, in slices, so that a shutdown is noticed soon."""
        end = time.monotonic() + wait_seconds
        while True:
            left = max(0.0, end - time.monotonic())
            try:
                received = self.mailbox.receive(
                    visibility_timeout=visibility_timeout, wait_time_seconds=min(left, WAIT_SLICE_SECONDS)
                )
            except RETRYABLE_STORE_ERRORS as error:
                self._may_hold_more = True
                _log.warning("mailbox_unavailable", mailbox=self.mailbox.name, error=str(error))
                self._stop.wait(RECONNECT_SECONDS)
                received = []
            self._heartbeat.beat()
            if received or not left or self._stop.is_set() or self.mailbox.closed:
                return list(received)

    def _handle_on_record(self, message: Message[T, R], visibility_timeout: float) -> None:
        """Handle a message. While its handler runs, the log of the worker contains its receipt handle."""
        log = self._in_flight_log
        self._is_handling = True
        if log is not None:
            log.begin(self._slot, message._lease.token, self.mailbox.name)
        try:
            self._handle_or_return(message, visibility_timeout)
        finally:
            self._may_hold_more |= not message.is_finalized
            if log is not None:
                log.end(self._slot)
            self._is_handling = False

    def _handle_or_return(self, message: Message[T, R], visibility_timeout: float) -> None:
        """Handle a message. After an interrupt it is released uncounted; a late outcome is only logged. An error that
        `handle` does not expect is recorded as a failure of the message, and ends the loop."""
        try:
            if self._stop.is_set():  # it was received after the loop was stopped
                message._return()
                return
            with exits_as_failures():
                self.handle(message, visibility_timeout)
            self._completed += message._is_completed
            self._not_completed += not message._is_completed
        except ReceiptHandleExpiredError:
            _log.warning("message_outcome_too_late", mailbox=self.mailbox.name, message_id=message.id)
        except RETRYABLE_STORE_ERRORS as error:  # delivered again if the outcome was not recorded
            _log.warning("mailbox_unavailable", mailbox=self.mailbox.name, error=str(error))
        except BaseException as error:
            if message.is_finalized or isinstance(error, RedriveError):
                raise
            if isinstance(error, Exception):
                message._fail(error, None)
            else:
                message._return()
            raise
