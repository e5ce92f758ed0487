"""Why an item died."""

from __future__ import annotations

from enum import StrEnum


class DeadReason(StrEnum):
    """Why an item died. Where several apply, the first one here is given."""

    BURIED = "buried"
    """A person or a worker said so."""
    UNDECODABLE = "undecodable"
    """The payload cannot be decoded."""
    UNKNOWN_HANDLER = "unknown_handler"
    """No worker knows the task."""
    FINAL_ERROR = "final_error"
    """The type or class of the error is one that is never retried."""
    POLICY = "policy"
    """A policy given by the program said so."""
    EXPIRED = "expired"
    """`expire_deadline` passed before the item was completed."""
    WORKER_LOST = "worker_lost"
    """Leases ran out `max_losses` times: it kills or hangs its workers."""
    MAX_ATTEMPTS = "max_attempts"
    """It was delivered `max_attempts` times."""
    RETRIES_EXHAUSTED = "retries_exhausted"
    """It failed `retry.attempts` times."""
