"""The judge: whose settings count, and the verdict on an item that was leased although it is dead.

Verdicts that a program brings: what can be meant is taken, others are refused.
"""

from __future__ import annotations

from typing import Any

import pytest

from redrive.errors import InvalidInput
from redrive.model.death import DeadReason
from redrive.model.duration import MINUTE, SECOND
from redrive.model.failure import Failure
from redrive.model.item import NO_OVERRIDES, Counters, Overrides, Status
from redrive.model.judge import (
    Dead,
    OutcomeKind,
    RetryVerdict,
    Verdict,
    check_custom_verdict,
    check_verdict,
    has_attempts_left,
    judge,
    settings_for,
)
from redrive.model.queue import QueueSettings
from redrive.model.queue_options import parse_settings
from redrive.model.retry_policy import parse_retry_policy


@pytest.mark.parametrize("reason", DeadReason)
def test_reason_as_text_is_the_reason_it_names(reason: DeadReason) -> None:
    brought: Any = check_custom_verdict(Dead(reason.value, "morgue", True))  # type: ignore[arg-type]
    assert brought == Dead(reason, "morgue", True)
    assert isinstance(brought.reason, DeadReason)


@pytest.mark.parametrize("reason", ["nonsense", "POLICY", "", None, 7, []], ids=repr)
def test_text_that_names_no_reason_is_refused_with_those_there_are(reason: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a reason of death; there are buried, undecodable"):
        check_custom_verdict(Dead(reason))


def test_status_as_text_is_the_status_it_names() -> None:
    brought: Any = check_custom_verdict(RetryVerdict(5, "failed"))  # type: ignore[arg-type]
    assert brought == RetryVerdict(5, Status.FAILED)
    assert isinstance(brought.status, Status)


@pytest.mark.parametrize("status", ["dead", Status.ACTIVE, "", None, []], ids=repr)
def test_item_is_tried_again_as_pending_or_failed_only(status: Any) -> None:
    with pytest.raises(InvalidInput, match="is pending or failed, not"):
        check_custom_verdict(RetryVerdict(0, status))


NEVER = {"attempts": 9, "delay": "never"}
GROWING = {"attempts": 3, "delay": "exponential", "base": "1m"}


def own(retry: Any, **limits: int) -> Overrides:
    return Overrides(retry=parse_retry_policy(retry), **limits)


def failed(settings: QueueSettings, overrides: Overrides, n: int, error: str = "E", **more: Any) -> Verdict:
    """The verdict on the n-th failure of an item."""
    counters = Counters(deliveries=n, attempts=n, failures=n)
    return judge(settings, OutcomeKind.FAILED, counters, failure=Failure(error, ""), overrides=overrides, **more)


def test_item_without_settings_of_its_own_has_those_of_the_queue() -> None:
    settings = parse_settings({"retry": GROWING})
    assert settings_for(settings, NO_OVERRIDES) is settings


def test_settings_of_an_item_replace_those_of_the_queue_one_by_one() -> None:
    settings = parse_settings({"retry": NEVER, "max_attempts": 20, "max_losses": 7, "dead_queue": "dead"})
    judged = settings_for(settings, own(GROWING, max_losses=0))
    assert judged == parse_settings({"retry": GROWING, "max_attempts": 20, "max_losses": 0, "dead_queue": "dead"})


def test_names_of_what_an_item_overrides_are_those_of_settings() -> None:
    assert set(Overrides.__struct_fields__) <= set(QueueSettings.__struct_fields__)


@pytest.mark.parametrize(
    ("queue", "overrides", "verdicts"),
    [
        (NEVER, own(GROWING), [MINUTE, 2 * MINUTE, None]),
        (GROWING, own(NEVER), [None]),
        (GROWING, own({}), [None]),
        (None, own({"attempts": 3}), [0, 0, None]),
        (GROWING, own({"attempts": 2, "cooldown": "5s"}), [5 * SECOND, None]),
        (GROWING, Overrides(max_losses=1), [MINUTE, 2 * MINUTE, None]),
    ],
    ids=repr,
)
def test_item_is_judged_by_its_own_policy(queue: Any, overrides: Overrides, verdicts: list[int | None]) -> None:
    settings = parse_settings({"retry": queue})
    for n, delay in enumerate(verdicts, start=1):
        expected = Dead(DeadReason.RETRIES_EXHAUSTED) if delay is None else RetryVerdict(delay, Status.FAILED)
        assert failed(settings, overrides, n) == expected


def test_rule_by_type_of_the_item_counts_and_that_of_the_queue_does_not() -> None:
    settings = parse_settings({"retry": {"attempts": 5, "by_type": {"E": "never", "F": "1s"}}})
    overrides = own({"attempts": 5, "by_type": {"F": "never"}})
    assert failed(settings, overrides, 1, "E") == RetryVerdict(0, Status.FAILED)
    assert failed(settings, overrides, 1, "F") == Dead(DeadReason.FINAL_ERROR)


def test_function_is_asked_by_the_name_that_the_item_has() -> None:
    settings, overrides = parse_settings({}), own({"attempts": 3, "function": "f"})
    assert failed(settings, overrides, 2, backoffs={"f": lambda n: 7 * n}) == RetryVerdict(14 * SECOND, Status.FAILED)
    assert failed(settings, overrides, 2) == RetryVerdict(2 * SECOND, Status.FAILED)


@pytest.mark.parametrize(
    ("queue", "overrides", "limit"),
    [
        ({}, NO_OVERRIDES, 5),
        ({"retry": {"attempts": 7}}, NO_OVERRIDES, 7),
        ({}, own({"attempts": 7}), 7),
        ({"retry": {"attempts": 7}}, own({"attempts": 2}), 5),
        ({"retry": {"attempts": 7}}, own({"attempts": 2}, max_attempts=3), 3),
        ({"max_attempts": 4}, own({"attempts": 7}), 4),
        ({"max_attempts": 4}, own({"attempts": 7}, max_attempts=8), 8),
    ],
    ids=repr,
)
def test_deliveries_end_at_the_limit_of_the_item_or_the_queue(
    queue: dict[str, Any], overrides: Overrides, limit: int
) -> None:
    settings = parse_settings(queue)
    for attempts in (limit - 1, limit):
        counters = Counters(deliveries=attempts, attempts=attempts)
        assert has_attempts_left(settings, counters, overrides) is (attempts < limit)
        released = judge(settings, OutcomeKind.RELEASED, counters, overrides=overrides)
        assert released == (RetryVerdict() if attempts < limit else Dead(DeadReason.MAX_ATTEMPTS))


def test_item_without_a_limit_is_released_as_often_as_it_takes() -> None:
    settings = parse_settings({"max_attempts": 1})
    assert has_attempts_left(settings, Counters(attempts=10**6), own({"attempts": 7}, max_attempts=0))


@pytest.mark.parametrize("outcome_kind", OutcomeKind)
def test_item_that_was_dead_is_dead_again_for_the_same_reason(outcome_kind: OutcomeKind) -> None:
    settings = QueueSettings(max_attempts=1, max_losses=1, dead_queue="morgue")
    verdict = judge(settings, outcome_kind, Counters(9, 9, 9, 9), expired=True, dead_reason=DeadReason.POLICY)
    assert verdict == Dead(DeadReason.POLICY)


@pytest.mark.parametrize("verdict", [Dead(), Dead(to="jobs"), Dead(drop=True)], ids=repr)
def test_any_death_can_follow_for_an_item_that_was_dead(verdict: Verdict) -> None:
    check_verdict("jobs", OutcomeKind.LOST, verdict, was_dead=True)
    with pytest.raises(InvalidInput, match="dead again; redrive it"):
        check_verdict("jobs", OutcomeKind.LOST, RetryVerdict(), was_dead=True)


@pytest.mark.parametrize("delay", [0, SECOND])
def test_item_that_is_returned_is_tried_again_whatever_was_counted(delay: int) -> None:
    settings = QueueSettings(max_attempts=1, max_losses=1)
    assert judge(settings, OutcomeKind.RETURNED, Counters(9, 9, 9, 9), expired=True, delay=delay) == RetryVerdict(delay)


def test_program_does_not_hold_by_a_verdict() -> None:
    with pytest.raises(InvalidInput, match="holds nothing"):
        check_custom_verdict(RetryVerdict(held_by=("ann",)))
