"""`MessageLoop`: receive and handle messages until shutdown. The base of `MainLoop` and `DLQConsumer`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from redrive.broker.background_thread import BackgroundThread
from redrive.broker.worker_session import RETRYABLE_STORE_ERRORS
from redrive.errors import InvalidInput, RedriveError
from redrive.mailbox.flows import during_wait
from redrive.mailbox.loop_types import check_visibility, default_backoff
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.mailbox_errors import InvalidParameterError, MailboxClosedError, ReceiptHandleExpiredError
from redrive.mailbox.message import Message
from redrive.model.caller_input import is_of_a_signal
from redrive.model.exception import safe_str
from redrive.model.failure import failure_from_exception
from redrive.model.judge import RetryVerdict
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
            except Exception as error:
                _log.warning("visibility_not_extended", message_id=self._message.id, error=safe_str(error))


def is_interruption(error: BaseException) -> bool:
    """Return whether the main thread was interrupted, by Ctrl-C or a signal handler: no message is the cause."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and (isinstance(error, KeyboardInterrupt) or is_of_a_signal(error))


class HandlerFailed(Exception):
    """An error that code of the program raised, so that it is not taken for an error of the mailbox."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


@contextlib.contextmanager
def handler_errors() -> Iterator[None]:
    """Raise what code of the program raises as HandlerFailed, also an exit; an interruption stays what it is."""
    try:
        yield
    except BaseException as error:
        reraise_interruption(error)
        raise HandlerFailed(error) from error


def reraise_interruption(error: BaseException) -> None:
    """Raise an interruption of code of the program. An Exception may be the time limit of that code itself."""
    if not isinstance(error, Exception) and is_interruption(error):
        raise error


class Turns:
    """The turns of the loops of a process: several handle messages side by side, but a suspect is handled alone. A
    message is a suspect after a loss: it may have ended the process, and would end it for other messages too."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._handling: set[object] = set()
        self._with_suspects: set[object] = set()
        """Loops with a suspect, which waits or is handled. Until it has ended, no other message is handled."""
        self._waits = Counter[object]()
        """The waits of the handlers of loops."""

    def begin(self, loop: object, is_suspect: bool, is_stopped: Callable[[], bool]) -> bool:
        """Wait for the turn of a loop. Returns False if the loop was stopped before."""
        with self._changed:
            if is_suspect:
                self._with_suspects.add(loop)
            while not is_stopped():
                if not (self._handling if is_suspect else self._with_suspects):
                    self._handling.add(loop)
                    return True
                self._changed.wait(WAIT_SLICE_SECONDS)
            self._with_suspects.discard(loop)
            return False

    @contextlib.contextmanager
    def paused(self, loop: object, is_suspect: bool, is_stopped: Callable[[], bool]) -> Iterator[None]:
        """Give up the turn of a loop while its handler waits: for what another loop of the process sends, perhaps. A
        handler may wait for several things together."""
        with self._changed:
            self._waits[loop] += 1
        self.end(loop)
        try:
            yield
        finally:
            with self._changed:
                self._waits[loop] -= 1
            if not self._waits[loop]:
                self._resume(loop, is_suspect, is_stopped)

    def _resume(self, loop: object, is_suspect: bool, is_stopped: Callable[[], bool]) -> None:
        """Take the turn again. An event loop does not wait for it: handlers that have it may run on the same one."""
        with self._changed:
            if asyncio._get_running_loop() is None:
                self.begin(loop, is_suspect, is_stopped)
            elif not is_stopped():
                self._handling.add(loop)
                self._with_suspects.update({loop} if is_suspect else ())

    def end(self, loop: object) -> None:
        """End the turn of a loop, or its wait."""
        with self._changed:
            self._handling.discard(loop)
            self._with_suspects.discard(loop)
            self._changed.notify_all()


class MessageLoop(ABC, Generic[T, R]):
    """A loop that receives and handles messages one by one. `run` blocks; `shutdown` ends it from another thread."""

    def __init__(self, mailbox: Mailbox[T, R], visibility_timeout: float) -> None:
        if not isinstance(mailbox, Mailbox):
            raise InvalidParameterError("the mailbox of a loop", mailbox, "a Mailbox")
        self.mailbox = mailbox
        self._visibility_timeout = check_visibility(visibility_timeout)
        self._heartbeat = LoopHeartbeat()
        self._stop = threading.Event()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._starting = threading.Lock()
        self._in_flight_log: InFlightLog | None = None
        self._slot = 0
        self._turns = Turns()
        """Its group sets one for all of its loops."""
        self._is_handling = False
        self._has_ended = threading.Event()
        """Set at the end of a turn: what the handler started, and did not wait for, does not take it again."""
        self._may_hold_more = False
        """True if the outcome of a receive or message is unknown: the loop may hold a message until it times out."""
        self._is_away = False
        """True after an error of the store, until a receive succeeds."""
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
        """Handle messages until `shutdown`, until the mailbox is closed, or for `max_iterations` receives.

        Raises MailboxClosedError if the mailbox is closed already, and InvalidInput after `shutdown`. No message ends
        the loop: what it causes is its failure.
        """
        if self._stop.is_set():
            raise InvalidInput(f"the loop on mailbox '{self.mailbox.name}' was shut down; make another one")
        self._run(max_iterations, visibility_timeout, wait_time_seconds)

    def _run(
        self,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,
        wait_seconds: float = DEFAULT_WAIT_SECONDS,
    ) -> None:
        """Run the loop. After a shutdown it does nothing."""
        timeout = self._visibility_timeout if visibility_timeout is None else check_visibility(visibility_timeout)
        with self._starting:
            if self.running:
                raise InvalidInput(f"the loop on mailbox '{self.mailbox.name}' runs already; make another one")
            self._is_idle.clear()
        try:
            if self.mailbox.closed:
                raise MailboxClosedError(self.mailbox.name)
            self.prepare()
            iterations = 0
            while not self._stop.is_set() and not self.mailbox.closed and iterations != max_iterations:
                iterations += 1
                for message in self._receive(timeout, wait_seconds):
                    try:
                        self._deliver(message, timeout)
                    except BaseException as error:  # the message is delivered again when it times out
                        self._go_on(error, message)
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
        """Handle a message, and settle its delivery. What it raises is a failure of the message; after an error of the
        store, and after ReceiptHandleExpiredError, the message is delivered again when its visibility timeout has
        passed, unless it is settled."""

    def record_failure(self, message: Message[T, R], error: BaseException) -> None:
        """Record a failure of a message. Here the settings of its queue apply."""
        message._fail(error, None)

    def record_plainly(self, message: Message[T, R], error: BaseException) -> None:
        """Record a failure where `record_failure` has raised: the message is delivered again after a back-off."""
        message._fail(error, RetryVerdict.after(default_backoff(message.delivery_count)))

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
        """Wait up to `wait_seconds` for a message, in slices, so that a shutdown is noticed soon. A refusal, as of a
        queue that is gone, is raised."""
        end = time.monotonic() + wait_seconds
        while True:
            left = max(0.0, end - time.monotonic())
            try:
                received = self.mailbox.receive(
                    visibility_timeout=visibility_timeout, wait_time_seconds=min(left, WAIT_SLICE_SECONDS)
                )
            except BaseException as error:
                if isinstance(error, RedriveError) and not isinstance(error, RETRYABLE_STORE_ERRORS):
                    raise
                self._go_on(error)
                self._stop.wait(RECONNECT_SECONDS)
                received = []
            else:
                if self._is_away:
                    _log.info("mailbox_available", mailbox=self.mailbox.name)
                self._is_away = False
            self._heartbeat.beat()
            if received or not left or self._stop.is_set() or self.mailbox.closed:
                return list(received)

    def _deliver(self, message: Message[T, R], visibility_timeout: float) -> None:
        """Handle and settle one message. Any error is its failure; if `record_failure` raises, it is recorded plainly.
        If the store is unavailable, the message is delivered again when it times out."""
        errors: list[BaseException] = []
        try:
            for step in (self._handle_in_turn, self._record_failure, self._retry_later):
                try:
                    step(message, errors, visibility_timeout)
                    return
                except BaseException as error:  # judged by the next step, so that nothing is raised here
                    errors.append(error)
            self._go_on(errors[-1], message)
        finally:
            self._end_turn(message)

    def _handle_in_turn(self, message: Message[T, R], _: Sequence[BaseException], visibility_timeout: float) -> None:
        """Handle a message in its turn. While its handler runs, the log of the worker contains its receipt handle."""
        if self._stop.is_set():  # it was received after the loop was stopped
            message._return()
            return
        with VisibilityKeeper(message, visibility_timeout):
            is_suspect = message._lease.is_suspect
            if not self._turns.begin(self, is_suspect, self._is_stopped_in_wait):
                message._return()
                return
            self._is_handling = True
            if self._in_flight_log is not None:
                self._in_flight_log.begin(self._slot, message._lease.token, self.mailbox.name)
            self._has_ended = has_ended = threading.Event()
            is_over: Callable[[], bool] = lambda: has_ended.is_set() or self._is_stopped_in_wait()  # noqa: E731
            token = during_wait.set(partial(self._turns.paused, self, is_suspect, is_over))
            try:
                self.handle(message, visibility_timeout)
            finally:
                during_wait.reset(token)

    def _record_failure(self, message: Message[T, R], errors: Sequence[BaseException], _: float) -> None:
        if self._may_fail_of(message, errors[0]):
            self.record_failure(message, _cause(errors))

    def _retry_later(self, message: Message[T, R], errors: Sequence[BaseException], _: float) -> None:
        """Record a failure without a rule of the program, as that has raised."""
        if self._may_fail_of(message, errors[-1]):
            self._go_on(errors[-1], message)
            self.record_plainly(message, _cause(errors))

    def _may_fail_of(self, message: Message[T, R], error: BaseException) -> bool:
        """Return whether a message is still to be settled after an error. If not, the error is logged here."""
        if is_interruption(error) and not message.is_finalized:
            with contextlib.suppress(RedriveError):
                message._return()
        if message.is_finalized or isinstance(error, (ReceiptHandleExpiredError, *RETRYABLE_STORE_ERRORS)):
            self._go_on(error, message)
            return False
        return True

    def _is_stopped_in_wait(self) -> bool:
        self._heartbeat.beat()  # a wait for a turn is no hang
        return self._stop.is_set()

    def _end_turn(self, message: Message[T, R]) -> None:
        """Record the end of a message. A second call does nothing."""
        self._may_hold_more |= not message.is_finalized
        if self._is_handling:
            if self._in_flight_log is not None:
                self._in_flight_log.end(self._slot)
            self._completed += message._is_completed
            self._not_completed += not message._is_completed
            self._is_handling = False
        self._has_ended.set()
        self._turns.end(self)

    def _go_on(self, error: BaseException, message: Message[T, R] | None = None) -> None:
        """Log an error that does not end the loop. An interruption of the main thread is raised."""
        if is_interruption(error):
            raise error
        self._may_hold_more = True
        id = None if message is None else message.id
        with events.together():  # so that a handler of the log cannot raise here
            if isinstance(error, RETRYABLE_STORE_ERRORS):
                self._is_away = True
                _log.warning("mailbox_unavailable", mailbox=self.mailbox.name, error=safe_str(error))
            elif isinstance(error, ReceiptHandleExpiredError):
                _log.warning("message_outcome_too_late", mailbox=self.mailbox.name, message_id=id)
            else:
                failure = failure_from_exception(error)
                _log.error(
                    "loop_error",
                    mailbox=self.mailbox.name,
                    message_id=id,
                    error_type=failure.type,
                    error=failure.text,
                    traceback=failure.traceback,
                )


def _cause(errors: Sequence[BaseException]) -> BaseException:
    """Return the error of which a message has failed: the first one, which all others follow."""
    return errors[0].error if isinstance(errors[0], HandlerFailed) else errors[0]
