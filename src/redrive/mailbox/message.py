# Generated from mailbox/async_message.py by tools/blocking_api.py; edit that file.
"""`Message`: one delivery of a message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from redrive.clock import to_datetime
from redrive.contract.replies import REPLY_FOR, REPLY_TO, REQUEST_ID
from redrive.mailbox import flows
from redrive.mailbox.flows import MAX_VISIBILITY_SECONDS, Delivered, seconds
from redrive.mailbox.mailbox_errors import (
    MessageFinalizedError,
    ReceiptHandleExpiredError,
    ReplyNotAvailableError,
    RequestFailedError,
    named_errors,
)
from redrive.model.item import Lease, Result
from redrive.model.judge import Verdict

if TYPE_CHECKING:
    from redrive.mailbox.mailbox import Mailbox

T = TypeVar("T")
R = TypeVar("R")


class Message(Generic[T, R]):
    """A message that this consumer holds until its visibility timeout, unless it extends that.

    It ends by `acknowledge` or `nack`. A message that ends by neither is delivered again.
    """

    def __init__(self, mailbox: Mailbox[T, R], delivered: Delivered, *, is_finalized: bool = False) -> None:
        self._mailbox = mailbox
        self._lease: Lease = delivered.lease
        self._result: Result | None = None
        """The last reply to a sender who awaits the result: it is kept when the message is acknowledged."""
        self._is_finalized = is_finalized
        self._is_completed = False
        self._body: T = delivered.body

    @property
    def body(self) -> T:
        """What was sent. Raises RequestFailedError on a reply that says that the request is dead, if the type of this
        mailbox has no place for an error."""
        if self._body is None and self.error is not None:
            raise self.error
        return self._body

    @property
    def error(self) -> RequestFailedError | None:
        """On a reply: what it says of the death of the request, if that is dead."""
        return flows.error_of(self._mailbox.name, self._lease)

    @property
    def reply_for(self) -> str | None:
        """On a reply: the id of the message that it answers."""
        return self._lease.headers.get(REPLY_FOR)

    @property
    def id(self) -> str:
        """Its id: the one that `send` returned, until it is redriven from a dead-letter mailbox."""
        return self._lease.id

    @property
    def receipt_handle(self) -> str:
        """The proof that this delivery holds the message: another one with each delivery."""
        return self._lease.token

    @property
    def delivery_count(self) -> int:
        """Deliveries since the message was sent or last redriven, with this one."""
        return self._lease.attempts

    @property
    def failures(self) -> int:
        """Failures that were reported since then."""
        return self._lease.failures

    @property
    def enqueued_at(self) -> datetime:
        """When it was sent."""
        return to_datetime(self._lease.put_at)

    @property
    def first_received_at(self) -> datetime:
        """When it was first delivered to a consumer."""
        return to_datetime(self._lease.first_leased_at)

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that its sender set."""
        return flows.sender_headers(self._lease)

    @property
    def request_id(self) -> str | None:
        """The `request_id` of its body, if that has one; on a reply, that of the request which it answers."""
        return self._lease.headers.get(REQUEST_ID)

    @property
    def reply_to(self) -> Mailbox[R, None] | None:
        """The mailbox that gets the replies."""
        name = self._lease.headers.get(REPLY_TO)
        return None if name is None else self._mailbox._for_replies(name)

    @property
    def is_finalized(self) -> bool:
        """Whether it was acknowledged or nacked here."""
        return self._is_finalized

    @property
    def asks_for_reply(self) -> bool:
        """Whether a reply would reach a mailbox, or a sender who awaits it."""
        return REPLY_TO in self._lease.headers or flows.is_awaited(self._lease)

    def acknowledge(self, *, reply: R | None = None) -> None:
        """The message is done, and removed. `reply` is sent in the same transaction.

        Raises ReceiptHandleExpiredError if another consumer may have it by now, and ReplyNotAvailableError if it asks
        for no reply; then nothing was done.
        """
        self._check_handle()
        body = self._result if reply is None else self._mailbox._reply_type.encode(reply)
        with named_errors:
            self._mailbox._run(flows.acknowledge(self._mailbox._core, self._lease, body))
        self._is_finalized = self._is_completed = True

    def nack(self, *, visibility_timeout: float = 0) -> None:
        """Give the message back: it is delivered again after `visibility_timeout` seconds, and this delivery counts."""
        delay = seconds("visibility_timeout", visibility_timeout, MAX_VISIBILITY_SECONDS)
        self._check_handle()
        with named_errors:
            self._mailbox._run(flows.nack(self._mailbox._core, self._lease, delay))
        self._is_finalized = True

    def extend_visibility(self, timeout: float) -> None:
        """Hold the message for `timeout` seconds from now."""
        visibility = seconds("timeout", timeout, MAX_VISIBILITY_SECONDS)
        self._check_handle()
        with named_errors:
            self._mailbox._run(flows.extend(self._lease, visibility))

    def reply(self, body: R) -> None:
        """Send a reply. Several may be sent until the message is acknowledged or nacked.

        The one that must not be sent twice belongs into `acknowledge(reply=…)`. A sender who awaits the result by
        `request` gets the last one, when the message is acknowledged.
        """
        if self._is_finalized:
            raise MessageFinalizedError(self.id)
        encoded = self._mailbox._reply_type.encode(body)
        if flows.is_awaited(self._lease):
            self._result = encoded
        if REPLY_TO in self._lease.headers:
            with named_errors:
                self._mailbox._run(flows.reply(self._mailbox._core, self._lease, encoded))
        elif self._result is None:
            raise ReplyNotAvailableError(self.id)

    def _fail(self, error: Exception, verdict: Verdict | None) -> None:
        """Record a failure of its handler. Without a verdict the settings of the queue decide."""
        self._check_handle()
        with named_errors:
            self._mailbox._run(flows.fail(self._mailbox._core, self._lease, error, verdict))
        self._is_finalized = True

    def _return(self) -> None:
        """Return it: it was not handled, and this delivery does not count."""
        self._check_handle()
        with named_errors:
            self._mailbox._run(flows.return_(self._mailbox._core, self._lease))
        self._is_finalized = True

    def _replay_or_discard(self, is_replay: bool) -> None:
        """Redrive or remove a dead letter."""
        self._check_handle()
        with named_errors:
            self._mailbox._run(flows.replay_or_discard(self._mailbox._core, self._lease, is_replay))
        self._is_finalized = self._is_completed = True

    def _check_handle(self) -> None:
        if self._is_finalized:
            raise ReceiptHandleExpiredError(self.id, None)

    def __repr__(self) -> str:
        # Without the receipt handle, which is the right to the message and does not belong in a log.
        return f"Message(id={self.id!r}, mailbox={self._mailbox.name!r}, delivery_count={self.delivery_count})"
