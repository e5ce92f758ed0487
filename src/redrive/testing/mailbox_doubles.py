"""Doubles of mailboxes for tests of programs: one that drops, one that collects, one that can fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from redrive.broker.flow import Flow
from redrive.connect import connect
from redrive.errors import InvalidInput, StoreUnavailable
from redrive.mailbox import Mailbox, Message

T = TypeVar("T")
R = TypeVar("R")
_Any = TypeVar("_Any")


class SentMessage(NamedTuple):
    """A message that a program sent."""

    body: Any
    reply_to: str | None
    headers: Mapping[str, str]


class FakeMailbox(Mailbox[T, R]):
    """A mailbox in memory. A test can break its connection, and expire its receipt handles.

    Each has a separate store. One that is the `reply_to` or a dead-letter mailbox of another shares its store from then
    on. The names must differ, and one of the two must be new: without messages, and alone in its store.
    """

    def __init__(self, name: str = "fake", *, body: type[T] | None = None, reply: type[R] | None = None) -> None:
        super().__init__(connect("memory://", maintenance=False), name, body=body, reply=reply)
        self._owns_broker = True
        self.is_connected = True
        """True while the mailbox works. While it is False, every call raises MailboxConnectionError."""

    def inject(self, body: T, **options: Any) -> str:
        """Send a message, even while the connection is broken, and return its id."""
        broken, self.is_connected = not self.is_connected, True
        try:
            return self.send(body, **options)
        finally:
            self.is_connected = not broken

    def expire_handle(self, message: Message[T, R]) -> None:
        """End the visibility timeout of a message now: its handle has expired, and it is delivered again."""
        self._broker.release(message._lease)

    def _run(self, flow: Flow[_Any]) -> _Any:
        if not self.is_connected:
            flow.close()
            raise StoreUnavailable(self.name, "the test has broken the connection")
        return super()._run(flow)

    def _address(self, mailbox: Mailbox[Any, Any] | str) -> str:
        if isinstance(mailbox, FakeMailbox) and mailbox._core is not self._core:
            self._share_store(mailbox)
        return super()._address(mailbox)

    def _share_store(self, other: FakeMailbox[Any, Any]) -> None:
        """Move one of two doubles, which is still empty, into the store of the other."""
        guest, host = (other, self) if other._may_move else (self, other)
        if not guest._may_move or self.name == other.name:
            raise InvalidInput(
                f"the doubles '{self.name}' and '{other.name}' cannot share a store: they have one name, or both have "
                "messages or share a store with others; use them together from the start"
            )
        guest._broker, guest._is_ready = host._broker, False
        guest._owns_broker = host._owns_broker = False
        guest._open()

    @property
    def _may_move(self) -> bool:
        stats = self._broker.list_stats([self.name])
        used = any(each.pending + each.failed + each.active + each.dead for each in stats)
        return self._owns_broker and not used


class CollectingMailbox(FakeMailbox[T, R]):
    """A mailbox that keeps sent messages in `sent` for the test, and delivers none."""

    def __init__(self, name: str = "collecting", *, body: type[T] | None = None, reply: type[R] | None = None) -> None:
        super().__init__(name, body=body, reply=reply)
        self.sent: list[SentMessage] = []

    def send(
        self,
        body: T,
        *,
        reply_to: Mailbox[R, Any] | str | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        """Check the type of the body, and append the message to `sent`."""
        self._body_type.encode(body)
        name = reply_to.name if isinstance(reply_to, Mailbox) else reply_to
        self.sent.append(SentMessage(body, name, dict(headers or {})))
        return f"collected-{len(self.sent)}"

    def receive(self, **options: Any) -> list[Message[T, R]]:
        """Return no messages."""
        return []


class NullMailbox(CollectingMailbox[T, R]):
    """A mailbox that drops every message, after a check of the type of its body."""

    def send(self, body: T, **options: Any) -> str:
        """Check the type of the body, and drop the message."""
        super().send(body, **options)
        self.sent.clear()
        return "dropped"
