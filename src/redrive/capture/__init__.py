"""Capture: a dead-letter queue behind any call. Calls that fail outside a queue are kept, and retried by policy."""

from redrive.capture.async_dead_letter_queue import AsyncDeadLetterQueue
from redrive.capture.capture_alerts import Alert, AlertKind, AlertThresholds
from redrive.capture.capture_errors import (
    CallbackFailed,
    CaptureDisabledError,
    CaptureError,
    CaptureFullError,
    NoCallbackError,
    TaskNotFoundError,
    UnboundMethodError,
    UnknownPolicyError,
)
from redrive.capture.capture_queue import DLQIntegrationStrategy
from redrive.capture.captured_task import DeadLetterStatus, ErrorCategory, FailedTask
from redrive.capture.dead_letter_queue import DeadLetterQueue
from redrive.capture.failure_templates import FailureTemplate, list_templates
from redrive.capture.flows import TaskPage
from redrive.capture.guard import Captured
from redrive.capture.retry_policies import CapturePolicy as RetryPolicy

__all__ = [
    "Alert",
    "AlertKind",
    "AlertThresholds",
    "AsyncDeadLetterQueue",
    "CallbackFailed",
    "CaptureDisabledError",
    "CaptureError",
    "CaptureFullError",
    "Captured",
    "DLQIntegrationStrategy",
    "DeadLetterQueue",
    "DeadLetterStatus",
    "ErrorCategory",
    "FailedTask",
    "FailureTemplate",
    "NoCallbackError",
    "RetryPolicy",
    "TaskNotFoundError",
    "TaskPage",
    "UnboundMethodError",
    "UnknownPolicyError",
    "list_templates",
]
