"""Retry policies of captured tasks by name, and the policy for each category of error."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from redrive.broker.validation import check_integer
from redrive.capture.capture_errors import UnknownPolicyError
from redrive.capture.captured_task import POLICY_HEADER, ErrorCategory
from redrive.model.duration import HOUR, MINUTE, SECOND
from redrive.model.item import Item, Overrides
from redrive.model.retry_policy import IMMEDIATE, NEVER, Backoff, BackoffKind
from redrive.model.retry_policy import RetryPolicy as ItemRetry

MAX_RETRIES = 1000


class CapturePolicy(StrEnum):
    """The built-in retry policies of captured tasks. n is the number of retries so far."""

    NEVER = "never"
    """No automatic retry: the task is a dead letter for an operator."""
    LINEAR = "linear"
    """Retry after 5 × (n + 1) minutes."""
    EXPONENTIAL = "exponential"
    """Retry after min(2^n, 60) minutes."""
    IMMEDIATE = "immediate"
    """Retry without a delay, and then once a second."""


BACKOFFS: Mapping[str, Backoff] = {
    CapturePolicy.NEVER: NEVER,
    CapturePolicy.LINEAR: Backoff(BackoffKind.LINEAR, base=5 * MINUTE),
    CapturePolicy.EXPONENTIAL: Backoff(BackoffKind.EXPONENTIAL, base=MINUTE, cap=HOUR),
    CapturePolicy.IMMEDIATE: Backoff(BackoffKind.FIXED, base=SECOND),
}


class Treatment(NamedTuple):
    """A retry policy, by its name, and the highest number of retries."""

    policy: str
    max_retries: int


BY_CATEGORY: Mapping[ErrorCategory, Treatment] = {
    ErrorCategory.TRANSIENT: Treatment(CapturePolicy.EXPONENTIAL, 5),
    ErrorCategory.NETWORK: Treatment(CapturePolicy.EXPONENTIAL, 3),
    ErrorCategory.RESOURCE: Treatment(CapturePolicy.LINEAR, 2),
    ErrorCategory.PERMISSION: Treatment(CapturePolicy.NEVER, 0),
    ErrorCategory.VALIDATION: Treatment(CapturePolicy.NEVER, 0),
    ErrorCategory.PERMANENT: Treatment(CapturePolicy.NEVER, 0),
}
"""The treatment of a failed guarded call by the category of its error, if no template fits."""


def policy_of_item(item: Item) -> str | None:
    """Return the policy of a task. If its headers are hidden from the caller, find it by the delays of its item."""
    if item.headers or item.overrides.retry is None:
        return item.headers.get(POLICY_HEADER)
    delay = msgspec.structs.replace(item.overrides.retry.delay, jitter=False)
    return delay.function or next((name for name, backoff in BACKOFFS.items() if backoff == delay), None)


def item_retry(treatment: Treatment, functions: Mapping[str, object], *, jitter: bool) -> ItemRetry:
    """Return the retry policy of an item: the run that was captured is its first attempt.

    Raises UnknownPolicyError, and InvalidInput for a number of retries that is not in 0…1,000.
    """
    policy, retries = str(treatment.policy), treatment.max_retries
    check_integer("max_retries", retries, 0, MAX_RETRIES)
    backoff = BACKOFFS.get(policy)
    if backoff is None:
        if policy not in functions:
            raise UnknownPolicyError(policy, (*CapturePolicy, *functions))
        backoff = Backoff(BackoffKind.FUNCTION, function=policy)
    if backoff is NEVER or not retries:
        return ItemRetry(attempts=1, delay=backoff)
    jitter = jitter and policy != CapturePolicy.IMMEDIATE
    return ItemRetry(attempts=retries + 1, delay=msgspec.structs.replace(backoff, jitter=jitter))


def first_overrides(policy: str, overrides: Overrides) -> Overrides:
    """Return the overrides by which the call that failed is judged: its first retry may be immediate."""
    if policy != CapturePolicy.IMMEDIATE or overrides.retry is None or overrides.retry.delay is NEVER:
        return overrides
    return msgspec.structs.replace(overrides, retry=msgspec.structs.replace(overrides.retry, delay=IMMEDIATE))
