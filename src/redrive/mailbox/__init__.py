"""Mailboxes: typed messages with replies, on the queues of a broker."""

from redrive.mailbox.async_loops import AsyncDLQConsumer, AsyncMainLoop, AsyncService
from redrive.mailbox.async_mailbox import AsyncMailbox
from redrive.mailbox.async_message import AsyncMessage
from redrive.mailbox.dead_letter import DeadLetter
from redrive.mailbox.dlq_consumer import Discard, DLQAction, DLQConsumer, Keep, Replay
from redrive.mailbox.dlq_policy import (
    AMBIGUOUS_ERRORS,
    NON_RETRIABLE_ERRORS,
    RETRIABLE_ERRORS,
    DLQPolicy,
    DLQRoutes,
)
from redrive.mailbox.eval_loop import EvalLoop, EvalRequest, EvalResult, Evaluator, Score
from redrive.mailbox.loop_group import LoopGroup
from redrive.mailbox.loop_types import (
    Adapter,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    VisibilityExpansionRequired,
)
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
from redrive.mailbox.main_loop import MainLoop
from redrive.mailbox.message import Message
from redrive.mailbox.message_loop import LoopHeartbeat, MessageLoop
from redrive.mailbox.replay import ReplayResult, replay
from redrive.mailbox.request_loop import RequestLoop, Service
from redrive.mailbox.resolver import CompositeResolver, MailboxResolver, RegistryResolver, StoreResolver

__all__ = [
    "AMBIGUOUS_ERRORS",
    "NON_RETRIABLE_ERRORS",
    "RETRIABLE_ERRORS",
    "Adapter",
    "AsyncDLQConsumer",
    "AsyncMailbox",
    "AsyncMainLoop",
    "AsyncMessage",
    "AsyncService",
    "CompositeResolver",
    "DLQAction",
    "DLQConsumer",
    "DLQPolicy",
    "DLQRoutes",
    "DeadLetter",
    "Discard",
    "EvalLoop",
    "EvalRequest",
    "EvalResult",
    "Evaluator",
    "InvalidParameterError",
    "Keep",
    "LoopGroup",
    "LoopHeartbeat",
    "Mailbox",
    "MailboxClosedError",
    "MailboxConnectionError",
    "MailboxError",
    "MailboxFullError",
    "MailboxResolutionError",
    "MailboxResolver",
    "MainLoop",
    "MainLoopConfig",
    "MainLoopRequest",
    "MainLoopResult",
    "Message",
    "MessageFinalizedError",
    "MessageLoop",
    "ReceiptHandleExpiredError",
    "RegistryResolver",
    "Replay",
    "ReplayResult",
    "ReplyMissingError",
    "ReplyNotAvailableError",
    "RequestFailedError",
    "RequestLoop",
    "RequestTimeoutError",
    "Score",
    "SerializationError",
    "Service",
    "StoreResolver",
    "VisibilityExpansionRequired",
    "replay",
]
