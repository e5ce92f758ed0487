"""Types of loops: requests with an id, results with an output or an error, and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID, uuid4

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


NO_RESOURCES: Mapping[str, Any] = {}


class VisibilityExpansionRequired(Exception):
    """Raised by a handler that needs another run with more input: the request is delivered again, uncounted."""
