"""The judge: the decision whether an item is retried or dead after a delivery that did not complete.

A pure function of the queue's settings, the item's overrides and counters, and the outcome. It runs in Python, never
in SQL or Lua; a store only executes the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from redrive.errors import InvalidInput, InvalidSetting, short_repr
from redrive.model.death import DeadReason
from redrive.model.duration import MAX_DURATION, Duration, DurationInput, parse_duration
from redrive.model.failure import Failure
from redrive.model.holder import check_holder_names
from redrive.model.item import NO_OVERRIDES, WAITING_STATUSES, Counters, Overrides, Status
from redrive.model.limits import check_address
from redrive.model.queue import OnDead, QueueSettings, RetryAfter
from redrive.model.retry_policy import BackoffKind, DelayFunction, backoff_for, retry_delay


class OutcomeKind(StrEnum):
    """The outcome of a delivery other than completion."""

    FAILED = "failed"
    """The worker reported a failure."""
    EXTRA_FAILED = "extra_failed"
    """A run beyond those of the retry policy failed; the number of failures does not change."""
    LOST = "lost"
    """The lease expired."""
    RELEASED = "released"
    """The worker released the item after it ran; the attempt counts."""
    RETURNED = "returned"
    """The worker returned the item; it counts neither as an attempt nor as a failure."""
    EXPIRED = "expired"
    """The expire deadline passed while the item was not leased."""
    BURIED = "buried"
    """A worker or an operator buried it."""

    @property
    def is_failure(self) -> bool:
        """True if a failure was reported, counted or not."""
        return self in _FAILURES


# Every failure is judged, and the lookup of an enumeration member takes 0.1 µs on Python 3.11.
_FAILED, _LOST, _RETURNED = OutcomeKind.FAILED, OutcomeKind.LOST, OutcomeKind.RETURNED
_EXPIRED, _BURIED = OutcomeKind.EXPIRED, OutcomeKind.BURIED
_FAILURES = (_FAILED, OutcomeKind.EXTRA_FAILED)
_RETRIED, _DROPPED = Status.FAILED, OnDead.DROP


class RetryVerdict(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The verdict to retry after `delay`. *failed* waits for a retry; *pending* goes to the tail of the queue."""

    delay: int = 0
    status: Status = Status.PENDING
    held_by: tuple[str, ...] = ()
    """The names of lasting holders to add (`redrive.model.holder`)."""

    @classmethod
    def after(cls, delay: DurationInput) -> RetryVerdict:
        """Return the verdict with status failed and this delay, as after any failure that is retried."""
        return cls(parse_duration(delay, "delay"), Status.FAILED)


class Dead(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The verdict that an item is dead: it moves `to` another queue, stays, or is removed with `drop`."""

    reason: DeadReason = DeadReason.BURIED
    to: str | None = None
    drop: bool = False
    note: str | None = None
    """The note in the history, if a program made the verdict."""

    @property
    def drops(self) -> bool:
        """True if the item is removed."""
        return self.drop and self.to is None


Verdict = RetryVerdict | Dead


def count_outcome(counters: Counters, outcome_kind: OutcomeKind) -> Counters:
    """Return the counters after an outcome."""
    if outcome_kind is _FAILED:
        return msgspec.structs.replace(counters, failures=counters.failures + 1)
    if outcome_kind is _LOST:
        return msgspec.structs.replace(counters, losses=counters.losses + 1)
    if outcome_kind is _RETURNED:
        return msgspec.structs.replace(counters, attempts=max(0, counters.attempts - 1))
    return counters


RETRY_STATUSES: dict[OutcomeKind, tuple[Status, ...]] = {
    OutcomeKind.FAILED: (Status.FAILED, Status.PENDING),
    OutcomeKind.EXTRA_FAILED: (Status.FAILED, Status.PENDING),
    OutcomeKind.LOST: (Status.PENDING,),
    OutcomeKind.RELEASED: (Status.PENDING,),
    OutcomeKind.RETURNED: (Status.PENDING,),
    OutcomeKind.EXPIRED: (),
    OutcomeKind.BURIED: (),
}
"""The statuses that a retry verdict may have after each outcome."""


def check_verdict(queue: str, outcome_kind: OutcomeKind, verdict: Verdict, *, was_dead: bool = False) -> None:
    """Raise unless the verdict is valid for an item of that queue after that outcome.

    An item that `was_dead` when it was leased stays dead, for any target of the verdict.
    """
    if isinstance(verdict, RetryVerdict) and verdict.held_by:
        check_holder_names(verdict.held_by)
    match verdict:
        case RetryVerdict() if was_dead and outcome_kind is not OutcomeKind.RETURNED:
            raise InvalidInput("an item that was leased although it is dead is dead again; redrive it to try it again")
        case _ if was_dead:
            return
        case RetryVerdict(status=status):
            if status not in RETRY_STATUSES[outcome_kind]:
                raise InvalidInput(f"an item that is {outcome_kind} cannot be made {status} by a verdict")
        case Dead() if outcome_kind is OutcomeKind.RETURNED:
            raise InvalidInput("an item that is returned, not counted, does not die of it")
        case Dead(to=to):
            if to == queue:
                raise InvalidSetting("dead_queue", "cannot reference itself")


def judge(
    settings: QueueSettings,
    outcome_kind: OutcomeKind,
    counters: Counters,
    *,
    failure: Failure | None = None,
    overrides: Overrides = NO_OVERRIDES,
    expired: bool = False,
    delay: int = 0,
    jitter: float = 0.0,
    backoffs: Mapping[str, DelayFunction] | None = None,
    dead_reason: DeadReason | None = None,
) -> Verdict:
    """Return the verdict for an outcome: retry or dead.

    An item that was leased although it is dead, for `dead_reason`, is dead again.
    `counters` include this outcome (see `count_outcome`). `delay` is that of a release or return, `jitter` a random
    number in [0, 1) from the caller, `backoffs` the delay functions of the program by name.
    """
    if dead_reason is not None:
        return Dead(dead_reason)
    if outcome_kind is _RETURNED:
        return RetryVerdict(delay)
    settings = settings_for(settings, overrides)
    reason = _cause_of_death(settings, outcome_kind, counters, failure, expired)
    if reason is not None:
        return dead_verdict(settings, reason, failure)
    if outcome_kind not in _FAILURES:
        return RetryVerdict(delay)
    rule = backoff_for(settings.retry, failure)
    pause = retry_delay(rule, counters.failures, jitter, backoffs or {})
    if pause is None:
        return dead_verdict(settings, DeadReason.RETRIES_EXHAUSTED, failure)
    return RetryVerdict(max(pause, _asked_delay(settings, failure)), _RETRIED)


def _asked_delay(settings: QueueSettings, failure: Failure | None) -> Duration:
    """Return the delay that the called service asked for, unless the queue ignores it."""
    if failure is None or failure.retry_after is None or settings.retry_after_mode is RetryAfter.IGNORE:
        return 0
    return failure.retry_after


def settings_for(settings: QueueSettings, overrides: Overrides) -> QueueSettings:
    """Return the settings for judging an item: those of its queue with its overrides."""
    if overrides == NO_OVERRIDES:
        return settings
    own = {name: value for name in overrides.__struct_fields__ if (value := getattr(overrides, name)) is not None}
    return msgspec.structs.replace(settings, **own)


def has_attempts_left(settings: QueueSettings, counters: Counters, overrides: Overrides = NO_OVERRIDES) -> bool:
    """Return whether an item has attempts left, regardless of the retry policy."""
    limit = settings_for(settings, overrides).attempts_limit
    return not limit or counters.attempts < limit


def dead_verdict(settings: QueueSettings, reason: DeadReason, failure: Failure | None = None) -> Dead:
    """Return the dead verdict with the dead queue for that failure; without one, `on_dead` decides whether it drops."""
    to = settings.dead_queue_for(failure)
    return Dead(reason, to, drop=to is None and settings.on_dead is _DROPPED)


def check_custom_verdict(verdict: object) -> Verdict:
    """Return a verdict that a program made, after checks; a status or reason as text becomes the enumeration member.

    Raise InvalidInput for any other value: the verdict of a program is not validated before.
    """
    match verdict:
        case RetryVerdict(delay, status, held_by):
            if held_by != ():
                raise InvalidInput("the verdict of a program holds nothing; hold the item with hold()")
            if delay.__class__ is not int or not 0 <= delay <= MAX_DURATION:
                raise InvalidInput(
                    f"a verdict has a delay from 0 microseconds to 100 years, not {short_repr(delay, 40)}"
                )
            if status not in WAITING_STATUSES:
                raise InvalidInput(f"an item that is retried is pending or failed, not {short_repr(status, 40)}")
            return RetryVerdict(delay, Status(status))
        case Dead(reason, to, drop):
            if reason not in tuple(DeadReason):
                raise InvalidInput(
                    f"{short_repr(reason, 40)} is not a reason of death; there are {', '.join(DeadReason)}"
                )
            if to is not None:
                check_address("queue", to)
            return Dead(DeadReason(reason), to, drop)
        case _:
            raise InvalidInput(f"a verdict is RetryVerdict(…) or Dead(…), not {short_repr(verdict, 40)}")


def _cause_of_death(
    settings: QueueSettings,
    outcome_kind: OutcomeKind,
    counters: Counters,
    failure: Failure | None,
    expired: bool,
) -> DeadReason | None:
    """Return the first reason that applies, in the order of `DeadReason`; None if the item does not die."""
    attempts_limit, is_failure = settings.attempts_limit, outcome_kind in _FAILURES
    if outcome_kind is _BURIED:
        return DeadReason.BURIED
    if is_failure and _is_final(settings, failure):
        return DeadReason.FINAL_ERROR
    if expired or outcome_kind is _EXPIRED:
        return DeadReason.EXPIRED
    if outcome_kind is _LOST and settings.max_losses and counters.losses >= settings.max_losses:
        return DeadReason.WORKER_LOST
    if attempts_limit and counters.attempts >= attempts_limit:
        return DeadReason.MAX_ATTEMPTS
    if is_failure and counters.failures >= max(1, settings.retry.attempts):
        return DeadReason.RETRIES_EXHAUSTED
    return None


def _is_final(settings: QueueSettings, failure: Failure | None) -> bool:
    if failure is None:
        return False
    if failure.final or failure.error_class in settings.final_errors:
        return True
    rule = backoff_for(settings.retry, failure)
    if rule.schedule is BackoffKind.NEVER and rule is not settings.retry.delay:
        return True  # configured for this type or class of error, not for the queue as a whole
    return bool(settings.final_errors) and any(name in settings.final_errors for name in failure.type_names)
