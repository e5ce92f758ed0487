"""Who may change what by hand: one rule for every store."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.clock import Instant
from redrive.errors import InvalidInput, ItemActive, WrongStatus
from redrive.model.death import DeadReason, cause_of
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Death, HistoryEntry, HistoryEvent, Status
from redrive.model.manual_change import (
    ItemSnapshot,
    check_manual_change,
    check_verb,
    counters_after_undo,
    counts_for_max_size,
    move_queue,
    redrive_queue,
    revives,
    stays_dead_letter,
    undo_target,
)
from redrive.model.state_machine import MANUAL_VERBS, Verb

ID = ItemId("0123456789abcdef" * 2)
VERBS = sorted(MANUAL_VERBS)
RESTING = [status for status in Status if status not in (Status.ACTIVE, Status.MOVING)]

# The verbs that apply to an item in each status, when it is no dead letter (a dead one always is) and when it is one.
APPLIES = {
    (Status.PENDING, False): "archive bury done drop fail move reschedule",
    (Status.FAILED, False): "archive bury done drop fail move reschedule retry",
    (Status.PENDING, True): "archive bury done drop fail move redrive reschedule",
    (Status.FAILED, True): "archive bury done drop fail move redrive reschedule retry",
    (Status.DEAD, True): "archive done drop move redrive retry",
    (Status.ARCHIVED, False): "done drop purge restore",
    (Status.COMPLETED, False): "archive drop",
}
FORCED = {False: "archive bury done drop fail move retry", True: "archive bury done drop fail move redrive retry"}


def applying(item: ItemSnapshot, *, force: bool = False) -> str:
    found = []
    for verb in VERBS:
        try:
            check_manual_change(verb, item, force=force)
        except (WrongStatus, ItemActive):
            continue
        found.append(verb.value)
    return " ".join(found)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(("status", "is_dead_letter"), APPLIES)
def test_status_decides_which_verbs_apply(status: Status, is_dead_letter: bool, force: bool) -> None:
    assert applying(ItemSnapshot(ID, status, is_dead_letter), force=force) == APPLIES[status, is_dead_letter]


def test_every_status_that_an_item_rests_in_is_named_above() -> None:
    assert {status for status, _ in APPLIES} == set(RESTING)


@pytest.mark.parametrize("verb", VERBS)
def test_active_item_is_refused_with_its_worker(verb: Verb) -> None:
    with pytest.raises(ItemActive, match="worker 'w1'; wait for it, or revoke the lease by a call that takes force"):
        check_manual_change(verb, ItemSnapshot(ID, Status.ACTIVE, True, "w1"), force=False)


@pytest.mark.parametrize("is_dead_letter", FORCED)
def test_force_applies_to_an_active_item_what_applies_to_work(is_dead_letter: bool) -> None:
    assert applying(ItemSnapshot(ID, Status.ACTIVE, is_dead_letter, "w1"), force=True) == FORCED[is_dead_letter]


def test_refusal_names_the_statuses_that_fit_and_never_active() -> None:
    with pytest.raises(WrongStatus, match="for items that are pending or failed") as refusal:
        check_manual_change(Verb.BURY, ItemSnapshot(ID, Status.DEAD, True), force=False)
    assert (refusal.value.status, refusal.value.allowed) == ("dead", (Status.PENDING, Status.FAILED))
    with pytest.raises(WrongStatus) as refusal:
        check_manual_change(Verb.REDRIVE, ItemSnapshot(ID, Status.PENDING, False), force=False)
    assert refusal.value.allowed == (Status.DEAD,)


def test_verbs_that_need_a_token_are_not_done_by_hand() -> None:
    for verb in Verb:
        if verb in MANUAL_VERBS:
            check_verb(verb)
        else:
            with pytest.raises(InvalidInput, match=f"{verb} is no manual change; there are archive"):
                check_verb(verb)


def test_redrive_goes_where_the_call_says_else_where_the_item_died() -> None:
    letter = ItemSnapshot(ID, Status.PENDING, True, queue="morgue")
    assert redrive_queue(letter, "jobs", None) == "jobs"
    assert redrive_queue(letter, "jobs", "slow") == "slow"


def test_redrive_of_a_dead_item_is_in_place_wherever_it_was_moved_since() -> None:
    dead = ItemSnapshot(ID, Status.DEAD, True, queue="mails")
    assert redrive_queue(dead, "jobs", None) == "mails"
    assert redrive_queue(dead, "jobs", "slow") == "slow"


def brought_back(**fields: Any) -> HistoryEntry:
    at_first = {"at": Instant(0), "event": HistoryEvent.REDRIVEN, "queue": "morgue", "delivery": 3}
    return HistoryEntry(**{**at_first, "from_status": Status.PENDING, "from_dead_letter": True, **fields})


@pytest.mark.parametrize(
    ("entry", "queue", "undoes"),
    [
        (brought_back(), "jobs", True),
        (brought_back(queue="jobs", from_status=Status.DEAD), "jobs", True),
        (brought_back(queue="jobs", from_status=Status.DEAD), "slow", True),
        (brought_back(from_dead_letter=False), "morgue", False),
        (brought_back(from_dead_letter=False), "jobs", False),
        (brought_back(delivery=2), "jobs", False),
        (None, "jobs", False),
    ],
)
def test_undo_is_for_what_was_brought_back_and_leased_by_nobody_since(
    entry: HistoryEntry | None, queue: str, undoes: bool
) -> None:
    item = ItemSnapshot(ID, Status.PENDING, False, None, entry, queue, 3)
    assert ("undo" in applying(item).split()) is undoes
    if not undoes:
        with pytest.raises(WrongStatus, match="for items that are dropped or redriven and not leased or changed since"):
            check_manual_change(Verb.UNDO, item, force=False)


def test_dropped_item_can_be_undone_and_not_dropped_again() -> None:
    entry = HistoryEntry(Instant(0), HistoryEvent.DROPPED, "jobs", 3, operation="one")
    dropped = ItemSnapshot(ID, Status.ARCHIVED, False, None, entry, "jobs", 3, is_dropped=True)
    assert applying(dropped) == "done purge restore undo"
    with pytest.raises(WrongStatus, match=r"it is dropped, and drop is for .*; it is in the archive already"):
        check_manual_change(Verb.DROP, dropped, force=True)
    check_manual_change(Verb.UNDO, dropped, force=False, undoes="one")
    with pytest.raises(WrongStatus):
        check_manual_change(Verb.UNDO, dropped, force=False, undoes="another")


@pytest.mark.parametrize(
    ("verb", "before", "brings"),
    [
        (Verb.REDRIVE, Status.DEAD, True),
        (Verb.REDRIVE, Status.PENDING, True),
        (Verb.RETRY, Status.DEAD, True),
        (Verb.RETRY, Status.FAILED, False),
        (Verb.MOVE, Status.DEAD, False),
    ],
)
def test_what_was_only_retried_in_its_dead_queue_was_not_brought_back(verb: Verb, before: Status, brings: bool) -> None:
    assert revives(verb, before) is brings


def test_undo_leads_back_to_what_it_was() -> None:
    death = Death(
        Instant(0), DeadReason.POLICY, "jobs", "n", "s", ID, Counters(3, 2, 1, 1), cause_of(DeadReason.POLICY, None)
    )
    assert undo_target(brought_back()) == ("morgue", Status.PENDING)
    assert undo_target(brought_back(queue="jobs", from_status=Status.DEAD)) == ("jobs", Status.DEAD)
    assert counters_after_undo(Counters(3, redrives=2), Status.DEAD, death) == Counters(3, 2, 1, 1, 1)
    assert counters_after_undo(Counters(3, redrives=1), Status.PENDING, death) == Counters(3)


def test_move_needs_another_queue() -> None:
    item = ItemSnapshot(ID, Status.PENDING, False, queue="jobs")
    assert move_queue(item, "slow") == "slow"
    for to, told in ((None, "name it with to="), ("jobs", "is in queue 'jobs' already")):
        with pytest.raises(InvalidInput, match=told):
            move_queue(item, to)


@pytest.mark.parametrize(
    ("status", "is_dead_letter", "to_dead_queue", "stays"),
    [
        (Status.DEAD, True, False, True),
        (Status.PENDING, True, True, True),
        (Status.PENDING, True, False, False),
        (Status.PENDING, False, True, False),
    ],
)
def test_move_keeps_a_dead_letter_that_is_dead_or_goes_to_a_dead_queue(
    status: Status, is_dead_letter: bool, to_dead_queue: bool, stays: bool
) -> None:
    item = ItemSnapshot(ID, status, is_dead_letter)
    assert stays_dead_letter(Verb.MOVE, item, to_dead_queue=to_dead_queue) is stays


@pytest.mark.parametrize(
    ("status", "queue", "needs"),
    [
        (Status.DEAD, "jobs", True),
        (Status.PENDING, "jobs", False),
        (Status.ACTIVE, "jobs", False),
        (Status.PENDING, "x", True),
    ],
)
def test_room_is_needed_where_an_item_is_one_more(status: Status, queue: str, needs: bool) -> None:
    assert counts_for_max_size(ItemSnapshot(ID, status, True, queue="jobs"), queue) is needs


@pytest.mark.parametrize(
    ("verb", "status", "is_dead_letter", "stays"),
    [
        (Verb.RETRY, Status.FAILED, True, True),
        (Verb.RETRY, Status.ACTIVE, True, True),
        (Verb.RETRY, Status.DEAD, True, False),
        (Verb.RETRY, Status.FAILED, False, False),
        (Verb.REDRIVE, Status.PENDING, True, False),
        (Verb.REDRIVE, Status.DEAD, True, False),
    ],
)
def test_only_a_retry_in_a_dead_queue_leaves_a_dead_letter(
    verb: Verb, status: Status, is_dead_letter: bool, stays: bool
) -> None:
    assert stays_dead_letter(verb, ItemSnapshot(ID, status, is_dead_letter)) is stays
