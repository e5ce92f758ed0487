"""Why an item died: the reason, and the cause by which dead letters are grouped and found."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from redrive.model.classify import ErrorClass
from redrive.model.failure import MAX_TITLE_CHARS, Failure
from redrive.model.fingerprint import fingerprint, normalise_text


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


EXHAUSTED_REASONS = frozenset({DeadReason.RETRIES_EXHAUSTED, DeadReason.MAX_ATTEMPTS})
"""The item was tried as often as its limits say."""
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
    """What an item died of. Dead letters with one fingerprint are one group."""

    fingerprint: str
    title: str
    """The error, or what was noted, in one line."""
    error_type: str = ""
    """The type of the error, in full. Empty where nobody reported one."""
    error_class: ErrorClass = ErrorClass.PERMANENT

    @property
    def group_title(self) -> str:
        """The title without what varies from one death to the next. The type does not, whatever is in its name."""
        # Made when somebody reads it: for each death it would cost as much as all that is written.
        name = self.error_type.rpartition(".")[2]
        kept = name if self.title.startswith(f"{name}:") else ""
        return kept + normalise_text(self.title[len(kept) :])


def cause_of(reason: DeadReason, failure: Failure | None, note: str | None = None) -> Cause:
    """The cause of a death: the failure of the delivery it ended with, else what was noted, else the reason itself."""
    if failure is not None:
        return Cause(failure.fingerprint, failure.title, failure.type, failure.error_class)
    error_class = ErrorClass.POISON if reason in _POISON else ErrorClass.PERMANENT
    if note:
        return Cause(fingerprint(reason.value, (), note), _title(note), error_class=error_class)
    return Cause(fingerprint(reason.value, (), ""), _TITLES[reason], error_class=error_class)


def _title(text: str) -> str:
    line = text.strip().partition("\n")[0].strip()
    return line if len(line) <= MAX_TITLE_CHARS else line[: MAX_TITLE_CHARS - 1] + "…"
