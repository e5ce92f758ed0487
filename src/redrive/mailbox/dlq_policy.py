"""`DLQPolicy`: the rule by which a failed message is dead, and the mailbox that receives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redrive.broker.broker import Broker
from redrive.mailbox.async_mailbox import AsyncMailbox
from redrive.mailbox.loop_types import check_delivery_count
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.mailbox_errors import InvalidParameterError

if TYPE_CHECKING:
    from redrive.mailbox.dead_letter import DeadLetter
    from redrive.mailbox.message import Message

T = TypeVar("T")
R = TypeVar("R")
AnyMailbox = Mailbox[T, R] | AsyncMailbox[T, R]
ErrorMatch = type[BaseException] | str
"""An exception type or the name of one, for types of libraries that are not imported. Subclasses match too."""
_MATCHES = "exception types, and names of types"

RETRIABLE_ERRORS: frozenset[ErrorMatch] = frozenset(
    {"MailboxConnectionError", "RateLimitError", TimeoutError, ConnectionError, "VisibilityExpansionRequired"}
)
"""Temporary errors, for `exclude_errors`."""
NON_RETRIABLE_ERRORS: frozenset[ErrorMatch] = frozenset(
    {"ValidationError", "ContentPolicyViolation", "AuthenticationError", "QuotaExceededError"}
)
"""Errors that another attempt cannot fix, for `include_errors`."""
AMBIGUOUS_ERRORS: frozenset[ErrorMatch] = frozenset({"ProviderError", "SerializationError", "ResourceNotFoundError"})
"""Errors that may be temporary or not. Without a rule, the number of deliveries decides."""


@dataclass(frozen=True)
class DLQPolicy(Generic[T, R]):
    """The rule by which a failed message moves to a dead-letter mailbox. Subclass it for another rule.

    A policy applies to failures of a handler. For a body that kills its process, the store decides: the message is dead
    after `max_delivery_count` lost leases.
    """

    mailbox: AnyMailbox[DeadLetter[T], None]
    """The mailbox that receives dead messages."""
    max_delivery_count: int = 5
    """The number of the delivery in which a failed message is dead."""
    include_errors: frozenset[ErrorMatch] | None = None
    """Errors after which a message is dead, regardless of the number of deliveries."""
    exclude_errors: frozenset[ErrorMatch] | None = None
    """Errors after which a message is always retried. They take precedence over `include_errors`."""

    def __post_init__(self) -> None:
        _check_mailbox("mailbox", self.mailbox)
        check_delivery_count(self.max_delivery_count)
        for name in ("include_errors", "exclude_errors"):
            errors = getattr(self, name)
            if errors is not None:
                fits = isinstance(errors, Set | Sequence) and not isinstance(errors, str | bytes)
                if not (fits and all(map(_is_match, errors))):
                    raise InvalidParameterError(name, errors, f"a set of {_MATCHES}")

    def should_dead_letter(self, message: Message[T, Any], error: Exception) -> bool:
        """Return whether the message is dead after this error. If this raises, the rule of `DLQPolicy` decides."""
        if self.exclude_errors and matches_any(error, self.exclude_errors):
            return False
        if self.include_errors and matches_any(error, self.include_errors):
            return True
        return message.delivery_count >= self.max_delivery_count

    def route(self, message: Message[T, Any], error: Exception) -> AnyMailbox[DeadLetter[T], None]:
        """Return the mailbox that receives a dead message."""
        return self.mailbox


@dataclass(frozen=True)
class DLQRoutes(DLQPolicy[T, R]):
    """A policy with separate dead-letter mailboxes by error. Other errors go to `mailbox`."""

    routes: Mapping[ErrorMatch, AnyMailbox[DeadLetter[T], None]] = field(default_factory=dict)
    """The mailbox by error. The first entry that matches the error applies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.routes, Mapping) or not all(map(_is_match, self.routes)):
            raise InvalidParameterError("routes", self.routes, f"a table from {_MATCHES} to mailboxes")
        for mailbox in self.routes.values():
            _check_mailbox("routes", mailbox)

    def route(self, message: Message[T, Any], error: Exception) -> AnyMailbox[DeadLetter[T], None]:
        """Return the mailbox of the first route that matches the error, else `mailbox`."""
        found = (mailbox for match, mailbox in self.routes.items() if matches_any(error, frozenset({match})))
        return next(found, self.mailbox)


def _check_mailbox(name: str, mailbox: object) -> None:
    if not isinstance(mailbox, Mailbox | AsyncMailbox):
        raise InvalidParameterError(name, mailbox, "a Mailbox for dead letters")


def _is_match(match: object) -> bool:
    return bool(match) if isinstance(match, str) else isinstance(match, type) and issubclass(match, BaseException)


def matches_any(error: BaseException, listed: frozenset[ErrorMatch]) -> bool:
    """Return whether the type of an error, or one that it derives from, is listed."""
    types = tuple(match for match in listed if isinstance(match, type))
    if isinstance(error, types):
        return True
    names = {name for kind in type(error).__mro__ for name in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}")}
    return any(match in names for match in listed if isinstance(match, str))


class ThreadMailbox(Mailbox[T, R]):
    """The blocking form of an `AsyncMailbox`, on the same open store. It is closed when that is."""

    def __init__(self, origin: AsyncMailbox[T, R]) -> None:
        types = origin._body_type.type, origin._reply_type.type
        broker = Broker(origin._core)
        super().__init__(broker, origin.name, body=types[0], reply=types[1], settings=origin._settings)
        self._origin = origin

    @property
    def closed(self) -> bool:
        """True if the mailbox is closed."""
        return self._origin.closed


def for_threads(mailbox: Mailbox[T, R] | AsyncMailbox[T, R]) -> Mailbox[T, R]:
    """Return the blocking form of a mailbox."""
    return ThreadMailbox(mailbox) if isinstance(mailbox, AsyncMailbox) else mailbox
