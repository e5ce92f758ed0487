# Generated from mailbox/async_mailbox.py by tools/blocking_api.py; edit that file.
"""`Mailbox`: typed messages with replies on a queue."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from redrive.broker.broker import Broker
from redrive.broker.core import Core
from redrive.broker.flow import Flow
from redrive.broker.flows import moves, queues
from redrive.broker.flows.deliveries import queue_name
from redrive.connect import connect, token_for
from redrive.contract.item_calls import NewItem
from redrive.errors import Closed, InvalidInput, short_repr
from redrive.mailbox import flows
from redrive.mailbox.body_types import BodyType
from redrive.mailbox.dead_letter import DeadLetter
from redrive.mailbox.flows import (
    DEFAULT_VISIBILITY_SECONDS,
    MAX_MESSAGES,
    MAX_VISIBILITY_SECONDS,
    MAX_WAIT_SECONDS,
    seconds,
)
from redrive.mailbox.loop_types import set_expiry
from redrive.mailbox.mailbox_errors import InvalidParameterError, MailboxClosedError, named_errors
from redrive.mailbox.message import Message
from redrive.model.caller_input import flag
from redrive.model.declaration import lists_options
from redrive.model.duration import DurationInput
from redrive.model.limits import split_address
from redrive.model.options import MessageOptions
from redrive.model.queue_options import QueueOptions
from redrive.worker.worker import worker_name

if TYPE_CHECKING:
    from redrive.mailbox.dlq_policy import DLQPolicy
    from redrive.mailbox.loop_types import MainLoopConfig

T = TypeVar("T")
R = TypeVar("R")
_Any = TypeVar("_Any")


class Mailbox(Generic[T, R]):
    """A queue whose items are messages of one type.

    broker: a `Broker`, or a URL as for `connect`; then `close` also closes the broker, which authenticates
    to a server with the token in the variable REDRIVE_TOKEN.
    body, reply: the types of messages and replies, any that msgspec can decode from JSON; by default JSON values.
    settings: the settings of the queue if it has to be created. An existing queue keeps its settings.
    """

    def __init__(
        self,
        broker: Broker | str,
        name: str,
        *,
        body: type[T] | None = None,
        reply: type[R] | None = None,
        settings: QueueOptions | None = None,
    ) -> None:
        self.name = queue_name(name)
        self._body_type: BodyType[T] = BodyType("body", body)
        self._reply_type: BodyType[R] = BodyType("reply", reply)
        self._settings: QueueOptions = {**(settings or {})}
        if self._body_type.is_a(DeadLetter):
            self._settings = {**flows.DEAD_LETTER_SETTINGS, **self._settings}
        self._owns_broker = isinstance(broker, str)
        self._broker = connect(broker, token=token_for(broker)) if isinstance(broker, str) else broker
        if not isinstance(self._broker, Broker):
            raise InvalidInput(f"a mailbox takes a Broker or a URL, not {short_repr(broker, 60)}")
        self._worker = worker_name()
        self._store: str | None = None
        """The name of the store that it is in, if that is another one than that of the broker, until it is opened."""
        self._is_ready = False
        self._is_closed = False

    @property
    def closed(self) -> bool:
        """True if the mailbox is closed."""
        return self._is_closed

    @lists_options(MessageOptions)
    def send(
        self,
        body: T,
        *,
        reply_to: Mailbox[R, Any] | str | None = None,
        **options: Unpack[MessageOptions],
    ) -> str:
        """Send a message, and return its id once it is on disk.

        reply_to: the mailbox that receives the replies, or its name (`name@store` in another store of the program).
        A `DeadLetter` that a program made, for a test or from another system, is imported. This requires the right to
        import and allows no options; a letter that was sent before is ignored.
        """
        self._open()
        with named_errors:
            if self._body_type.is_a(DeadLetter):
                letter = flows.import_letter(self._core, self.name, self._body_type, body, reply_to=reply_to, **options)
                return self._run(letter)
            address = None if reply_to is None else self._address(reply_to)
            item = self._message(body, options, reply_to=address)
            return self._run(flows.send(self.name, item))

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = DEFAULT_VISIBILITY_SECONDS,
        wait_time_seconds: float = 0,
    ) -> list[Message[T, R]]:
        """Receive up to `max_messages` (1 to 10) messages, in order. Wait up to 20 seconds for the first one.

        They are invisible to other consumers for `visibility_timeout` seconds (0 to 43,200). A message that is not of
        the type of the mailbox is dead (`undecodable`), and others are received instead. A dead-letter mailbox delivers
        it, with the bytes of its body. A closed mailbox returns none, also one that is closed during the wait.
        """
        if isinstance(max_messages, bool) or not isinstance(max_messages, int) or not 1 <= max_messages <= MAX_MESSAGES:
            raise InvalidParameterError("max_messages", max_messages, f"a whole number from 1 to {MAX_MESSAGES}")
        visibility = seconds("visibility_timeout", visibility_timeout, MAX_VISIBILITY_SECONDS)
        wait = seconds("wait_time_seconds", wait_time_seconds, MAX_WAIT_SECONDS)
        if self._is_closed:
            return []
        self._open()
        flow = flows.receive(
            self._core,
            self.name,
            self._body_type,
            max_messages,
            visibility,
            wait,
            self._worker,
            lambda: self._is_closed,
        )
        try:
            with named_errors:
                delivered = self._run(flow)
        except Closed:
            if not self._is_closed:
                raise
            return []
        return [Message(self, each, is_finalized=not visibility) for each in delivered]

    @lists_options(MessageOptions)
    def request(
        self,
        body: T,
        timeout: DurationInput | None = None,
        *,
        fail_fast: bool = False,
        **options: Unpack[MessageOptions],
    ) -> R:
        """Send a message and return its reply. Wait up to `timeout`, or without a limit. No reply mailbox is needed.

        fail_fast: the message is dead after its first failure, release or loss, instead of being delivered again.

        Raises RequestFailedError as soon as the message is dead, RequestTimeoutError, and ReplyMissingError if it was
        acknowledged without a reply.
        """
        self._open()
        with named_errors:
            item = self._message(body, options, keep_result=flows.result_timeout(timeout))
            if flag("fail_fast", fail_fast):
                item = flows.delivered_once(item)
            return self._run(flows.request(self._core, self.name, self._reply_type, item, timeout))

    def serve(
        self,
        handler: Callable[[T], Any],
        *,
        config: MainLoopConfig | None = None,
        dlq: DLQPolicy[T, R] | None = None,
        max_iterations: int | None = None,
        wait_time_seconds: float = MAX_WAIT_SECONDS,
    ) -> None:
        """Reply to each message with what the handler returns, until the mailbox is closed, or for `max_iterations`
        receives.

        A message whose handler raises is delivered again, until it is dead: by `config`, or by the policy `dlq`. Use a
        `Service` to run it in a `LoopGroup`, or to end it with `shutdown`.
        """
        from redrive.mailbox.request_loop import Service  # which imports this module

        service = Service(self, handler, config=config, dlq=dlq)
        service.run(max_iterations=max_iterations, wait_time_seconds=wait_time_seconds)

    def approximate_count(self) -> int:
        """Return the number of messages: visible, scheduled and held by consumers. In a dead-letter mailbox, also of
        letters that killed their consumers, and are not delivered any more."""
        self._open()
        with named_errors:
            return self._run(flows.count(self.name, self._body_type))

    def purge(self, confirm: int) -> int:
        """Permanently delete all messages that no consumer holds, and return their number, which `confirm` must be."""
        self._open()
        with named_errors:
            return self._run(flows.purge(self._core, self.name, self._body_type, confirm))

    def close(self) -> None:
        """Close the mailbox, and the broker if the mailbox opened it. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._core.notify.notify_all(self.name)
            if self._owns_broker:
                self._broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Mailbox(name={self.name!r}, store={self._core.store.name!r})"

    @property
    def _core(self) -> Core:
        return self._broker.core

    def _message(
        self, body: T, options: MessageOptions, *, reply_to: str | None = None, keep_result: int | None = None
    ) -> NewItem:
        """Return the item of a message, checked and encoded."""
        set_expiry(body, options)
        request_id, encoded = flows.request_id_of(body), self._body_type.encode(body)
        return flows.new_message(encoded, options, reply_to=reply_to, request_id=request_id, keep_result=keep_result)

    def _run(self, flow: Flow[_Any]) -> _Any:
        return self._broker.run_flow(flow)

    def _open(self) -> None:
        """Create the queue if it does not exist, before the first use."""
        if self._is_closed:
            raise MailboxClosedError(self.name)
        if not self._is_ready:
            if self._store is not None:
                self._broker, self._store = self._broker.on_store(self._store), None
            with named_errors:
                self._run(queues.ensure(self._core, self.name, self._settings))
            self._is_ready = True

    def _check_exists(self) -> None:
        """Raise MailboxResolutionError if it does not exist."""
        with named_errors:
            self._run(flows.check_address(self._core, self.name))

    def _open_for_dead_letters(self) -> None:
        """Create the queue with the settings of a dead-letter mailbox, if it does not exist."""
        self._settings = {**flows.DEAD_LETTER_SETTINGS, **self._settings}
        self._open()

    def _address(self, mailbox: Mailbox[Any, Any] | str) -> str:
        """Return the address of a mailbox for the store of this one. A mailbox object is opened; a name must exist."""
        if isinstance(mailbox, Mailbox):
            mailbox._open()
            mailbox = self._run(moves.address_of(self._core, mailbox.name, mailbox._core))
        return self._run(flows.check_address(self._core, mailbox))

    def _for_replies(self, address: str) -> Mailbox[R, None]:
        name, store = split_address(address)
        found: Mailbox[R, None] = Mailbox(self._broker, name, body=self._reply_type.type)
        found._store = store
        return found
