"""The reason of a death, and the cause by which dead letters are grouped and found."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from redrive.model.classify import ErrorClass
from redrive.model.failure import MAX_TITLE_CHARS, Failure
from redrive.model.fingerprint import fingerprint, normalise_text


class DeadReason(StrEnum):
    """The reason of a death. If several apply, the first one in this order is recorded."""

    BURIED = "buried"
    """An operator or a worker buried it."""
    UNDECODABLE = "undecodable"
    """The payload cannot be decoded."""
    UNKNOWN_HANDLER = "unknown_handler"
    """No worker knows the task."""
    FINAL_ERROR = "final_error"
    """The type or class of the error is never retried."""
    POLICY = "policy"
    """A policy of the program decided it."""
    EXPIRED = "expired"
    """`expire_deadline` passed before the item was completed."""
    WORKER_LOST = "worker_lost"
    """Its leases expired `max_losses` times: it kills or hangs its workers."""
    MAX_ATTEMPTS = "max_attempts"
    """It was delivered `max_attempts` times."""
    RETRIES_EXHAUSTED = "retries_exhausted"
    """It failed `retry.attempts` times."""


EXHAUSTED_REASONS = frozenset({DeadReason.RETRIES_EXHAUSTED, DeadReason.MAX_ATTEMPTS})
"""The reasons of items that used up their attempts or retries."""
_POISON = frozenset({DeadReason.WORKER_LOST, DeadReason.UNDECODABLE})
_TITLES = {
    DeadReason.BURIED: "buried by hand",
    DeadReason.UNDECODABLE: "the payload cannot be decoded",
    DeadReason.UNKNOWN_HANDLER: "no worker knows the task",
    DeadReason.FINAL_ERROR: "an error that is never retried",
    DeadReason.POLICY: "a policy said so",
    DeadReason.EXPIRED: "expired before it was completed",
    DeadReason.WORKER_LOST: "its workers vanished: leases ran out",
    DeadReason.MAX_ATTEMPTS: "delivered too often",
    DeadReason.RETRIES_EXHAUSTED: "failed too often",
}


class Cause(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The cause of a death. Dead letters with the same fingerprint are one group."""

    fingerprint: str
    title: str
    """The error or the note, in one line."""
    error_type: str = ""
    """The full name of the error's type; empty if no error was reported."""
    error_class: ErrorClass = ErrorClass.PERMANENT

    @property
    def group_title(self) -> str:
        """The title with its varying parts replaced by placeholders. The name of the type is kept unchanged."""
        # Computed when it is read: at each death it would cost as much as all the writes.
        name = self.error_type.rpartition(".")[2]
        kept = name if self.title.startswith(f"{name}:") else ""
        return kept + normalise_text(self.title[len(kept) :])


def cause_of(reason: DeadReason, failure: Failure | None, note: str | None = None) -> Cause:
    """Return the cause of a death: the failure of the last delivery, else the note, else the reason."""
    if failure is not None:
        return Cause(failure.fingerprint, failure.title, failure.type, failure.error_class)
    error_class = ErrorClass.POISON if reason in _POISON else ErrorClass.PERMANENT
    if note:
        return Cause(fingerprint(reason.value, (), note), _title(note), error_class=error_class)
    return Cause(fingerprint(reason.value, (), ""), _TITLES[reason], error_class=error_class)


def _title(text: str) -> str:
    line = text.strip().partition("\n")[0].strip()
    return line if len(line) <= MAX_TITLE_CHARS else line[: MAX_TITLE_CHARS - 1] + "…"
