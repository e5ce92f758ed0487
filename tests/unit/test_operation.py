"""Operations: what a step makes of one, and what a person may set."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redrive.clock import Instant
from redrive.errors import OperationEnded
from redrive.model.duration import SECOND
from redrive.model.filter import Filter
from redrive.model.ids import ItemId
from redrive.model.operation import (
    BULK_VERBS,
    FINAL_STATUSES,
    MAX_SAMPLES,
    Operation,
    OperationStatus,
    SkippedItem,
    after_step,
    audit_change,
    audit_finish,
    audit_start,
    with_status,
)
from redrive.model.state_machine import MANUAL_VERBS, Verb

NOW = Instant(1_000 * SECOND)


def operation(**fields: Any) -> Operation:
    at_first = {"created_at": Instant(5), "updated_at": Instant(5), "next_at": Instant(5), "mark": 100}
    return Operation(**{"id": "0p", "verb": Verb.REDRIVE, "where": Filter(), "actor": "ada", **at_first, **fields})


def ids(*numbers: int) -> list[ItemId]:
    return [ItemId(f"{number:032x}") for number in numbers]


def refused(code: str, *numbers: int) -> list[SkippedItem]:
    return [SkippedItem(id, code) for id in ids(*numbers)]


def test_everything_that_is_done_to_many_can_be_done_to_one() -> None:
    assert BULK_VERBS < MANUAL_VERBS


def test_step_counts_what_it_met() -> None:
    after = after_step(
        operation(), NOW, ids(1, 2), [*refused("item_active", 3), *refused("queue_full", 4, 5)], 5, False
    )
    assert (after.changed, after.skipped, after.examined) == (2, {"item_active": 1, "queue_full": 2}, 5)
    assert (after.steps, after.position, after.updated_at, after.status) == (1, 5, NOW, "running")
    again = after_step(after, NOW, ids(6), refused("queue_full", 7), 7, False)
    assert (again.changed, again.skipped, again.examined) == (3, {"item_active": 1, "queue_full": 3}, 7)
    assert again.samples == {"item_active": tuple(ids(3)), "queue_full": tuple(ids(4, 5, 7))}
    assert (again.steps, again.position) == (2, 7)


def test_only_some_samples_are_kept() -> None:
    after = after_step(operation(), NOW, [], refused("queue_full", *range(50)), 50, False)
    after = after_step(after, NOW, [], refused("queue_full", *range(50, 60)), 60, False)
    assert after.samples["queue_full"] == tuple(ids(*range(MAX_SAMPLES)))
    assert after.skipped == {"queue_full": 60}


def test_step_that_finds_nothing_more_finishes() -> None:
    after = after_step(operation(), NOW, ids(1), [], 1, exhausted=True)
    assert (after.status, after.ended, after.changed) == ("finished", True, 1)
    nothing = after_step(operation(position=7), NOW, [], [], None, exhausted=True)
    assert (nothing.status, nothing.position) == ("finished", 7)


@pytest.mark.parametrize(("rate", "changed", "wait"), [(None, 5, 0), (10.0, 5, SECOND // 2), (0.5, 3, 6 * SECOND)])
def test_rate_is_a_time_before_which_the_next_step_may_not_run(rate: float | None, changed: int, wait: int) -> None:
    after = after_step(operation(rate=rate), NOW, ids(*range(changed)), refused("queue_full", 99), 99, False)
    assert after.next_at == NOW + wait


def test_rate_counts_only_what_was_changed() -> None:
    assert after_step(operation(rate=1.0), NOW, [], refused("queue_full", 1, 2), 2, False).next_at == NOW


def test_canaries_are_released_and_then_watched() -> None:
    first = after_step(operation(canary=3), NOW, ids(1, 2), refused("item_active", 3), 3, False)
    assert (first.status, first.canary_ids, first.canaries_left) == ("running", tuple(ids(1, 2)), 1)
    second = after_step(first, NOW, ids(4), [], 4, False)
    assert (second.status, second.canary_ids, second.canaries_left) == ("watching", tuple(ids(1, 2, 4)), 0)
    on = with_status(second, NOW, OperationStatus.RUNNING, None, None)
    third = after_step(on, NOW, ids(5, 6), [], 6, False)
    assert (third.status, third.canary_ids, third.changed) == ("running", tuple(ids(1, 2, 4)), 5)


def test_canaries_are_watched_even_if_nothing_comes_after_them() -> None:
    after = after_step(operation(canary=2), NOW, ids(1, 2), [], 2, exhausted=True)
    assert after.status == "watching"
    assert after_step(with_status(after, NOW, OperationStatus.RUNNING, None, None), NOW, [], [], None, True).ended


def test_fewer_items_than_canaries_finish() -> None:
    assert after_step(operation(canary=5), NOW, ids(1, 2), [], 2, exhausted=True).status == "finished"


@pytest.mark.parametrize("status", [OperationStatus.PAUSED, OperationStatus.CANCELLED, OperationStatus.STOPPED])
def test_status_is_set(status: OperationStatus) -> None:
    after = with_status(operation(next_at=Instant(7)), NOW, status, "too many died", None)
    assert (after.status, after.problem, after.updated_at, after.next_at) == (status, "too many died", NOW, 7)


def test_operation_that_goes_on_may_step_at_once() -> None:
    paused = operation(status=OperationStatus.PAUSED, next_at=Instant(NOW + 1))
    assert with_status(paused, NOW, OperationStatus.RUNNING, None, None).next_at == NOW


def test_operation_that_was_paused_while_it_watched_goes_on_watching() -> None:
    """Otherwise a pause would let the rest go before anybody knows how the canaries end."""
    watching = after_step(operation(canary=2), NOW, ids(1, 2), [], 2, False)
    paused = with_status(watching, NOW, OperationStatus.PAUSED, None, None)
    assert with_status(paused, NOW, OperationStatus.RUNNING, None, None).status == "watching"
    on = with_status(watching, NOW, OperationStatus.RUNNING, None, None)
    beyond = after_step(on, NOW, ids(3), [], 3, False)
    paused = with_status(beyond, NOW, OperationStatus.PAUSED, None, None)
    assert with_status(paused, NOW, OperationStatus.RUNNING, None, None).status == "running"


def test_new_rate_counts_from_now_and_0_takes_it_away() -> None:
    slow = operation(rate=0.001, next_at=Instant(NOW + 999))
    assert (with_status(slow, NOW, None, None, 5.0).rate, with_status(slow, NOW, None, None, 5.0).next_at) == (5.0, NOW)
    assert with_status(slow, NOW, None, None, 0).rate is None
    assert with_status(slow, NOW, OperationStatus.PAUSED, None, None).rate == 0.001


@pytest.mark.parametrize("status", sorted(FINAL_STATUSES))
def test_what_has_ended_stays_as_it_is(status: OperationStatus) -> None:
    with pytest.raises(OperationEnded, match=f"is {status} and cannot be changed any more"):
        with_status(operation(status=status), NOW, OperationStatus.RUNNING, None, None)


def test_audit_says_what_was_meant_and_what_came_of_it() -> None:
    began = operation(where=Filter(queue="jobs"), note="fixed in 1.2", expected=9)
    assert (audit_start(began).verb, audit_start(began).count) == ("start redrive", 9)
    assert audit_start(began).note == 'operation 0p where {"queue":"jobs"}: fixed in 1.2'
    ended = after_step(began, NOW, ids(1, 2), [], 2, exhausted=True)
    assert (audit_finish(ended).verb, audit_finish(ended).count, audit_finish(ended).note) == (
        "redrive",
        2,
        "operation 0p: fixed in 1.2",
    )
    stopped = with_status(began, NOW, OperationStatus.STOPPED, "2 of 3 died", None)
    assert (audit_change(stopped, OperationStatus.STOPPED).verb, audit_change(stopped, None).verb) == (
        "set stopped redrive",
        "set rate redrive",
    )
    assert audit_change(stopped, OperationStatus.STOPPED).note == "operation 0p: 2 of 3 died"


def test_operation_survives_json() -> None:
    after = after_step(operation(canary=1, rate=2.5), NOW, ids(1), refused("queue_full", 2), 2, False)
    assert msgspec.json.decode(msgspec.json.encode(after), type=Operation) == after
