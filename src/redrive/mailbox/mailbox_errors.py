"""Errors of mailboxes. Each is also one of `redrive.errors`, with its code and its fields."""

from __future__ import annotations

from redrive.errors import (
    Closed,
    InvalidInput,
    InvalidPayload,
    LeaseLost,
    QueueFull,
    QueueNotFound,
    RedriveError,
    Refused,
    ResultNotKept,
    ResultTimeout,
    StoreUnavailable,
    TaskFailed,
)
from redrive.model.failure import Failure


class MailboxError(RedriveError):
    """The base of all errors of mailboxes."""


class InvalidParameterError(MailboxError, InvalidInput):
    """An argument is out of its range, or of the wrong type."""

    def __init__(self, name: str, value: object, range: str) -> None:
        self.name, self.value, self.range = name, value, range
        super().__init__(f"{name} is {range}, not {value!r:.60}")


class SerializationError(MailboxError, InvalidPayload):
    """A body is not of the type that the mailbox declares. `path` names the invalid part."""


class ReceiptHandleExpiredError(MailboxError, LeaseLost):
    """The message is no longer held under this receipt handle: it timed out, or was acknowledged or nacked."""


class MailboxFullError(MailboxError, QueueFull):
    """The mailbox holds `max_size` messages."""


class MailboxConnectionError(MailboxError, StoreUnavailable):
    """The store of the mailbox cannot be reached. A test may make one with words alone."""

    def __init__(self, problem: str, store: str = "") -> None:
        self.store, self.problem = store, problem
        RedriveError.__init__(self, problem)


class MailboxResolutionError(MailboxError, QueueNotFound):
    """No mailbox has this name."""


class MailboxClosedError(MailboxError, Closed):
    """The mailbox is closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        RedriveError.__init__(self, f"mailbox '{name}' is closed; open another one")


class ReplyNotAvailableError(MailboxError, InvalidInput):
    """The message asks for no reply."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(
            f"message {id} asks for no reply: it was sent without reply_to, and no caller awaits its result"
        )


class MessageFinalizedError(MailboxError, Refused):
    """A reply was sent after the message was acknowledged or nacked."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"message {id} was acknowledged or nacked before; reply first, or acknowledge(reply=…)")


class RequestFailedError(MailboxError, TaskFailed):
    """The message of a request is dead. `failure` is the last failure, or None if it is unknown to this process."""

    def __init__(self, mailbox: str, id: str, reason: str, title: str, failure: Failure | None = None) -> None:
        self.task, self.id, self.reason, self.title, self.failure = mailbox, id, reason, title, failure
        RedriveError.__init__(self, f"message {id} to mailbox '{mailbox}' is dead ({reason}): {title}")


class RequestTimeoutError(MailboxError, ResultTimeout):
    """No reply came within the timeout. The message stays in the mailbox, and may still be answered."""

    def __init__(self, mailbox: str, id: str, timeout: int) -> None:
        self.task, self.id, self.timeout = mailbox, id, timeout
        waited = f"{timeout / 1_000_000:g} s"
        RedriveError.__init__(self, f"no reply to message {id} came from mailbox '{mailbox}' within {waited}")


class ReplyMissingError(MailboxError, ResultNotKept):
    """The message of a request was acknowledged without a reply."""

    def __init__(self, mailbox: str, id: str) -> None:
        self.task, self.id = mailbox, id
        RedriveError.__init__(self, f"message {id} was acknowledged without a reply, or removed from '{mailbox}'")


_NAMED: tuple[tuple[type[RedriveError], type[MailboxError]], ...] = (
    (LeaseLost, ReceiptHandleExpiredError),
    (QueueFull, MailboxFullError),
    (StoreUnavailable, MailboxConnectionError),
    (QueueNotFound, MailboxResolutionError),
    (InvalidPayload, SerializationError),
)


class _NamedErrors:
    """A context manager that raises errors of the broker as errors of mailboxes, with the same text and fields. It is
    a stateless class: a generator per call would cost more than all other overhead of a mailbox."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, RedriveError) and not isinstance(error, MailboxError):
            named = _named(error)
            if named is not None:
                raise named from error


def _named(error: RedriveError) -> RedriveError | None:
    match error:
        case TaskFailed():
            return RequestFailedError(error.task, error.id, error.reason, error.title, error.failure)
        case ResultTimeout():
            return RequestTimeoutError(error.task, error.id, error.timeout)
        case ResultNotKept():
            return ReplyMissingError(error.task, error.id)
    for kind, name in _NAMED:
        if isinstance(error, kind):
            named = name.__new__(name, *error.args)
            named.__dict__.update(error.__dict__)
            return named
    return None


named_errors = _NamedErrors()
