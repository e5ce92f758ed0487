# Generated from mailbox/async_message.py by tools/blocking_api.py; edit that file.
"""`Message`: one delivery of a message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from redrive.clock import to_datetime
from redrive.contract.replies import REPLY_FOR, REPLY_TO, REQUEST_ID
from redrive.mailbox import flows
from redrive.mailbox.dead_letter import DeadLetter
from redrive.mailbox.flows import MAX_VISIBILITY_SECONDS, Delivered, seconds
from redrive.mailbox.mailbox_errors import (
    MessageFinalizedError,
    ReceiptHandleExpiredError,
    RequestFailedError,
    named_errors,
)
from redrive.model.item import Lease, Result, Settled
from redrive.model.judge import Verdict

if TYPE_CHECKING:
    from redrive.mailbox.mailbox import Mailbox

T = TypeVar("T")
R = TypeVar("R")


class Message(Generic[T, R]):
    """A message that this consumer holds until its visibility timeout, unless it extends that.

    `acknowledge` or `nack` ends the delivery. Without either, the message is delivered again after the timeout.
    """

    def __init__(self, mailbox: Mailbox[T, R], delivered: Delivered, *, is_finalized: bool = False) -> None:
        self._mailbox = mailbox
        self._lease: Lease = delivered.lease
        self._result: Result | None = None
        """The last reply to a sender that awaits the result; it is stored when the message is acknowledged."""
        self._is_finalized = is_finalized
        self._is_completed = False
        self._body: T = delivered.body

    @property
    def body(self) -> T:
        """The body that was sent. Raises RequestFailedError for a reply that reports the death of the request, if the
        reply cannot be decoded as the body type of this mailbox."""
        if self._body is None and self.error is not None:
            raise self.error
        return self._body

    @property
    def error(self) -> RequestFailedError | None:
        """On a reply to a dead request: the error with which the request died; else None."""
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
        """The token of the lease, which proves that this consumer holds the message; each delivery has a new one."""
        return self._lease.token

    @property
    def delivery_count(self) -> int:
        """The number of deliveries since the message was sent or last redriven, including this one."""
        return self._lease.attempts

    @property
    def failures(self) -> int:
        """The number of failures since the message was sent or last redriven."""
        return self._lease.failures

    @property
    def enqueued_at(self) -> datetime:
        """The time at which it was sent."""
        return to_datetime(self._lease.put_at)

    @property
    def first_received_at(self) -> datetime:
        """The time of its first delivery to a consumer."""
        return to_datetime(self._lease.first_leased_at)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that its sender set."""
        return flows.sender_headers(self._lease)

    @property
    def request_id(self) -> str | None:
        """The `request_id` of its body, if that has one; on a reply, that of the request that it answers."""
        return self._lease.headers.get(REQUEST_ID)

    @property
    def reply_to(self) -> Mailbox[R, None] | None:
        """The mailbox that receives the replies, or None."""
        name = self._lease.headers.get(REPLY_TO)
        return None if name is None else self._mailbox._for_replies(name)

    @property
    def is_finalized(self) -> bool:
        """True if it was acknowledged or nacked with this object."""
        return self._is_finalized

    @property
    def asks_for_reply(self) -> bool:
        """True if a reply would reach a mailbox, or a sender that awaits it."""
        return REPLY_TO in self._lease.headers or flows.is_awaited(self._lease)

    def acknowledge(self, *, reply: R | None = None) -> Settled:
        """Complete and remove the message. `reply` is sent in the same transaction.

        If the mailbox for replies is gone or full, the message is removed without a reply: `reply_refused` of the
        returned value says why. Raises ReceiptHandleExpiredError if another consumer may hold it by now,
        ReplyNotAvailableError for a reply to a message that asks for none, and PayloadTooLarge for a reply that does
        not fit; then nothing is changed.
        """
        self._check_handle()
        body = self._result if reply is None else self._mailbox._reply_type.encode(reply)
        with named_errors:
            settled = self._mailbox._run(flows.acknowledge(self._mailbox._core, self._lease, body))
        self._is_finalized = self._is_completed = True
        return settled

    def nack(self, *, visibility_timeout: float = 0) -> None:
        """Release the message: it is delivered again after `visibility_timeout` seconds, and this delivery counts."""
        delay = seconds("visibility_timeout", visibility_timeout, MAX_VISIBILITY_SECONDS)
        self._check_handle()
        is_letter = self._mailbox._body_type.is_a(DeadLetter)
        with named_errors:
            self._mailbox._run(flows.nack(self._mailbox._core, self._lease, delay, is_letter))
        self._is_finalized = True

    def extend_visibility(self, timeout: float) -> None:
        """Set the visibility timeout of the message to `timeout` seconds from now."""
        visibility = seconds("timeout", timeout, MAX_VISIBILITY_SECONDS)
        self._check_handle()
        with named_errors:
            self._mailbox._run(flows.extend(self._lease, visibility))

    def reply(self, body: R) -> str | None:
        """Send a reply, and return its id. Several may be sent until the message is acknowledged or nacked.

        Use `acknowledge(reply=…)` for a reply that must be sent exactly once. A sender that awaits the result by
        `request` gets the last reply, when the message is acknowledged; such a reply has no id, and None is returned.
        """
        if self._is_finalized:
            raise MessageFinalizedError(self.id)
        encoded = self._mailbox._reply_type.encode(body)
        with named_errors:
            id = self._mailbox._run(flows.reply(self._mailbox._core, self._lease, encoded))
        if flows.is_awaited(self._lease):
            self._result = encoded
        return id

    def _fail(self, error: BaseException, verdict: Verdict | None) -> None:
        """Record a failure of its handler. Without a verdict, the settings of the queue apply."""
        self._check_handle()
        with named_errors:
            self._mailbox._run(flows.fail(self._mailbox._core, self._lease, error, verdict))
        self._is_finalized = True

    def _return(self) -> None:
        """Release the message unhandled; this delivery does not count."""
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
        # Without the receipt handle, which is a credential for the message and does not belong in a log.
        return f"Message(id={self.id!r}, mailbox={self._mailbox.name!r}, delivery_count={self.delivery_count})"
