"""Resolvers: find a mailbox by its name, for addresses that arrive in a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from redrive.broker.broker import Broker
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.mailbox_errors import MailboxResolutionError
from redrive.model.limits import check_address, split_address

T = TypeVar("T")


class MailboxResolver(Protocol):
    """The interface of resolvers: find mailboxes by name."""

    def resolve(self, name: str) -> Mailbox[Any, Any]:
        """Return the mailbox. Raises MailboxResolutionError if none has this name."""
        ...


class RegistryResolver:
    """Mailboxes that the program lists."""

    def __init__(self, mailboxes: Mapping[str, Mailbox[Any, Any]]) -> None:
        self._mailboxes = dict(mailboxes)

    def resolve(self, name: str) -> Mailbox[Any, Any]:
        """Return the mailbox that is listed under this name."""
        if name not in self._mailboxes:
            raise MailboxResolutionError(name)
        return self._mailboxes[name]


class StoreResolver(Generic[T]):
    """Mailboxes of one type in the store of a broker, `name`, or in other stores that it knows, `name@store`."""

    def __init__(self, broker: Broker, body: type[T] | None = None) -> None:
        self._broker = broker
        self._body = body

    def resolve(self, name: str) -> Mailbox[T, None]:
        """Open the mailbox, which must exist."""
        queue, store = split_address(check_address("mailbox", name))
        elsewhere = store is not None and store != self._broker.core.store.name
        broker = self._broker.on_store(store) if elsewhere and store is not None else self._broker
        mailbox: Mailbox[T, None] = Mailbox(broker, queue, body=self._body)
        mailbox._check_exists()
        return mailbox


class CompositeResolver:
    """Several resolvers: the first that knows a name returns the mailbox."""

    def __init__(self, *resolvers: MailboxResolver) -> None:
        self._resolvers = resolvers

    def resolve(self, name: str) -> Mailbox[Any, Any]:
        """Return the mailbox from the first resolver that knows the name. Raises MailboxResolutionError."""
        for resolver in self._resolvers:
            try:
                return resolver.resolve(name)
            except MailboxResolutionError:
                continue
        raise MailboxResolutionError(name)
