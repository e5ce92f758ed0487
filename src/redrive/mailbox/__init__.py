"""Mailboxes: typed messages with replies, on the queues of a broker."""

from redrive.mailbox.async_mailbox import AsyncMailbox
from redrive.mailbox.async_message import AsyncMessage
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.mailbox_errors import (
    InvalidParameterError,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxError,
    MailboxFullError,
    MailboxResolutionError,
    MessageFinalizedError,
    ReceiptHandleExpiredError,
    ReplyMissingError,
    ReplyNotAvailableError,
    RequestFailedError,
    RequestTimeoutError,
    SerializationError,
)
from redrive.mailbox.message import Message

__all__ = [
    "AsyncMailbox",
    "AsyncMessage",
    "InvalidParameterError",
    "Mailbox",
    "MailboxClosedError",
    "MailboxConnectionError",
    "MailboxError",
    "MailboxFullError",
    "MailboxResolutionError",
    "Message",
    "MessageFinalizedError",
    "ReceiptHandleExpiredError",
    "ReplyMissingError",
    "ReplyNotAvailableError",
    "RequestFailedError",
    "RequestTimeoutError",
    "SerializationError",
]
