"""Types of loops: requests with an id, results with an output or an error, and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID, uuid4

from redrive.broker.validation import to_instant
from redrive.mailbox.flows import MAX_VISIBILITY_SECONDS, seconds
from redrive.mailbox.mailbox_errors import InvalidParameterError
from redrive.model.options import MessageOptions

RequestT = TypeVar("RequestT")
OutputT = TypeVar("OutputT")
RequestT_contra = TypeVar("RequestT_contra", contravariant=True)
OutputT_co = TypeVar("OutputT_co", covariant=True)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class MainLoopRequest(Generic[RequestT]):
    """A request to a loop. After its `deadline` it is not delivered any more, and dies as expired."""

    request: RequestT
    request_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=_now)
    deadline: datetime | None = None


@dataclass(frozen=True, slots=True)
class MainLoopResult(Generic[OutputT]):
    """The reply of a loop: an output, or the error with which the request died."""

    request_id: UUID
    output: OutputT | None = None
    error: str | None = None

    @property
    def success(self) -> bool:
        """True if there is no error."""
        return self.error is None


class Adapter(Protocol[RequestT_contra, OutputT_co]):
    """An object that can evaluate a request."""

    def evaluate(self, request: RequestT_contra) -> OutputT_co:
        """Return the output for a request."""
        ...


def default_backoff(delivery_count: int) -> float:
    """Return the seconds until the next delivery: 60 for each delivery so far, at most 900."""
    return min(60 * delivery_count, 900)


@dataclass(frozen=True, slots=True)
class MainLoopConfig:
    """Options of a loop."""

    visibility_timeout: float = 300
    """Seconds that a request is invisible to other consumers. A heartbeat extends it while the handler runs."""
    retry: Callable[[int], float] = default_backoff
    """A function from the number of deliveries so far to the seconds until the next one."""
    max_delivery_count: int = 5
    """The number of the delivery in which a failed request is dead, in its own mailbox; only without a policy."""

    def __post_init__(self) -> None:
        check_visibility(self.visibility_timeout)
        check_function("retry", self.retry)
        check_delivery_count(self.max_delivery_count)


NO_RESOURCES: Mapping[str, Any] = {}


class VisibilityExpansionRequired(Exception):
    """Raised by a handler that needs another run with more input: the request is delivered again, uncounted."""


def set_expiry(body: object, options: MessageOptions) -> None:
    """Set the expiry of a request to a loop to its deadline, unless the options contain an expiry."""
    if isinstance(body, MainLoopRequest) and not (options.get("expire_timeout") or options.get("expire_at")):
        if body.deadline is not None:
            to_instant("deadline", body.deadline)  # its error names the field that the caller has set
        options["expire_at"] = body.deadline


def check_visibility(timeout: float) -> float:
    """Return the visibility timeout of a loop, which handles what it receives. Raises InvalidParameterError for 0."""
    if not seconds("visibility_timeout", timeout, MAX_VISIBILITY_SECONDS):
        raise InvalidParameterError("visibility_timeout", timeout, "more than 0: a loop holds what it handles")
    return timeout


def check_function(name: str, function: object) -> None:
    """Raise InvalidParameterError unless it is a function of one argument, as far as that can be known."""
    if callable(function):
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # a function in C may have none
            return
        try:
            signature.bind(None)
        except TypeError:
            pass
        else:
            return
    raise InvalidParameterError(name, function, "a function of one argument")


def check_delivery_count(count: object) -> None:
    """Raise InvalidParameterError unless it is a number of deliveries."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidParameterError("max_delivery_count", count, "a whole number of 1 or more")
